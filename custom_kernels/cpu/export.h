// How kernels are named and called: a buffer is a base pointer and an offset in elements (see ops/launch.py).
#pragma once
#include "vector.h"

#if STRIXHLO_SHARED
#define KERNEL extern "C" __attribute__((visibility("default"))) void
#else
#define KERNEL extern "C" void
#endif

#define BUFFER(type, name) type *name##_base, int64_t name##_offset
#define AT(name) (name##_base + name##_offset)
