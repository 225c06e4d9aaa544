// The GPU of device.h on an x86-64 CPU, so that tests execute every kernel: each thread of a workgroup is a fiber that
// runs to its next shuffle or barrier. Freestanding, like the kernels. Only host.cpp's `launch` starts kernels.
#pragma once

#define GLOBAL
#define LOCAL
// One section for all local memory, so that each workgroup can be given garbage to start with.
#define LOCAL_ARRAY __attribute__((section("local_memory")))
#define KERNEL(threads) extern "C" __attribute__((visibility("default")))
#define REGISTERS(most)

namespace host {
u32 current_thread();
u32 current_workgroup();
void wait_for_workgroup();
u32 exchange(u32 value, u32 lane);  // gives `value` to the wave, waits for it, takes the value of `lane`
}  // namespace host

DEVICE u32 thread_id() { return host::current_thread(); }
DEVICE u32 workgroup_id() { return host::current_workgroup(); }
DEVICE void barrier() { host::wait_for_workgroup(); }
DEVICE u32 shuffle_bits(u32 value, u32 lane) { return host::exchange(value, lane % WAVE); }
DEVICE u32 broadcast_bits(u32 value, u32 lane) { return host::exchange(value, lane % WAVE); }

DEVICE void schedule_barrier() {}
DEVICE f32 float_of_byte(u32 word, u32 i, u32 zero) { return (f32)((word >> (8 * i)) & 255u) - (f32)zero; }
DEVICE f32 float_of_nibble(u32 word, u32 i, u32 zero) { return (f32)((word >> (4 * i)) & 15u) - (f32)zero; }
DEVICE f32 float_of_bits(u32 bits) { return (f32)bits; }

DEVICE f32 reciprocal_fast(f32 x) { return 1.0f / x; }
// 2^x by the integer part in the exponent and a polynomial of degree 7 (Taylor; relative error under 1e-7) for the rest.
DEVICE f32 exp2_fast(f32 x) {
  if (!(x > -126.0f)) return x != x ? x : 0.0f;
  if (x >= 128.0f) return __builtin_inff();
  const i32 whole = (i32)(x + (x < 0 ? -0.5f : 0.5f));
  const f32 r = (x - (f32)whole) * 0.693147180559945f;
  constexpr f32 rest[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  f32 p = 1.0f / 5040;
  for (const f32 c : rest) p = __builtin_fmaf(p, r, c);
  return p * __builtin_bit_cast(f32, (u32)(whole + 127) << 23);
}
