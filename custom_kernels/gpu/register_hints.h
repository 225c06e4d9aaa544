// What NVIDIA's compiler is told so that fewer numbers wait in registers at a time.
#pragma once

#include "device.h"

// The same number; what is made of it is made again, since it would wait in a register.
DEVICE u32 anew(u32 value) {
#if defined(__NVPTX__)
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// The compiler may not put off until later what the number is made by: its operands would wait in registers.
DEVICE void now(f32& value) {
#if defined(__NVPTX__)
  asm volatile("" : "+f"(value));
#else
  (void)value;
#endif
}
