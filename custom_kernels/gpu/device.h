// What a kernel sees of the machine: one vocabulary for amdgcn (wave32), nvptx64 and, for tests, the CPU (host.h).
// Waves have 32 lanes everywhere. Shuffles and barriers must be reached by every lane of the wave or workgroup.
#pragma once

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using f16 = _Float16;
using f32 = float;

typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef f16 f16x2 __attribute__((ext_vector_type(2)));
typedef f16 f16x4 __attribute__((ext_vector_type(4)));
typedef f16 f16x8 __attribute__((ext_vector_type(8)));
typedef f32 f32x2 __attribute__((ext_vector_type(2)));
typedef f32 f32x4 __attribute__((ext_vector_type(4)));
typedef f32 f32x8 __attribute__((ext_vector_type(8)));

#define DEVICE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")

inline constexpr u32 WAVE = 32;
#if defined(__NVPTX__)
inline constexpr u32 MOST_LOCAL = 48 * 1024;  // bytes of local memory that a kernel can declare
#else
inline constexpr u32 MOST_LOCAL = 64 * 1024;
#endif

DEVICE f32 multiply_add(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }

// float_of_byte, float_of_nibble: element i of a word, less `zero`; float_of_bits: of a number below 2^23. All exact.
#if defined(__AMDGCN__)

#define GLOBAL __attribute__((address_space(1)))
#define LOCAL __attribute__((address_space(3)))
#define LOCAL_ARRAY [[clang::loader_uninitialized]] LOCAL
#define KERNEL(threads) \
  extern "C" __attribute__((amdgpu_kernel, amdgpu_flat_work_group_size(threads, threads), visibility("protected")))
#define REGISTERS(most) __attribute__((amdgpu_num_vgpr(most)))

DEVICE u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 workgroup_id() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE u32 shuffle_bits(u32 value, u32 lane) { return (u32)__builtin_amdgcn_ds_bpermute((i32)(lane << 2), (i32)value); }
// The lane must be the same in the whole wave.
DEVICE u32 broadcast_bits(u32 value, u32 lane) { return (u32)__builtin_amdgcn_readlane((i32)value, (i32)lane); }
// What the first of each LANES (1, 2 or 4) neighbouring lanes has. It must be active.
template <u32 LANES>
DEVICE u32 bits_of_first(u32 value) {
  constexpr i32 quad = LANES == 4 ? 0 : LANES == 2 ? 0xa0 : 0xe4;  // two bits a lane: whose it takes
  return (u32)__builtin_amdgcn_mov_dpp((i32)value, quad, 15, 15, true);
}
inline constexpr bool FIRST_LANE_ASKS = true;
DEVICE f32 exp2_fast(f32 x) { return __builtin_amdgcn_exp2f(x); }
DEVICE f32 reciprocal_fast(f32 x) { return __builtin_amdgcn_rcpf(x); }  // approximate
// No instruction is moved across: it keeps the compiler from loading everything first, and running out of registers.
DEVICE void schedule_barrier() { __builtin_amdgcn_sched_barrier(0); }
DEVICE f32 float_of_byte(u32 word, u32 i, u32 zero) { return (f32)((word >> (8 * i)) & 255u) - (f32)zero; }
DEVICE f32 float_of_nibble(u32 word, u32 i, u32 zero) {
  return float_of_byte((i % 2 ? word >> 4 : word) & 0x0f0f0f0fu, i / 2, zero);
}
DEVICE f32 float_of_bits(u32 bits) { return (f32)bits; }

#elif defined(__NVPTX__)

#define GLOBAL __attribute__((address_space(1)))
#define LOCAL __attribute__((address_space(3)))
#define LOCAL_ARRAY [[clang::loader_uninitialized]] LOCAL
#define KERNEL(threads) extern "C" __attribute__((nvptx_kernel))
#define REGISTERS(most)

DEVICE u32 thread_id() { return (u32)__nvvm_read_ptx_sreg_tid_x(); }
DEVICE u32 workgroup_id() { return (u32)__nvvm_read_ptx_sreg_ctaid_x(); }
DEVICE void barrier() { __syncthreads(); }
DEVICE u32 shuffle_bits(u32 value, u32 lane) {
  return (u32)__nvvm_shfl_sync_idx_i32(0xffffffffu, (i32)value, (i32)lane, 31);
}
DEVICE u32 broadcast_bits(u32 value, u32 lane) { return shuffle_bits(value, lane); }
DEVICE f32 exp2_fast(f32 x) { return __nvvm_ex2_approx_ftz_f(x); }  // subnormal results would take three more
DEVICE f32 reciprocal_fast(f32 x) { return __nvvm_rcp_approx_ftz_f(x); }
DEVICE void schedule_barrier() {}
// Conversions of integers run at a fraction of the rate of this: 2^23 + v has v in its lowest bits.
inline constexpr u32 MAGIC = 0x4b000000u;
DEVICE f32 after_magic(u32 bits, f32 unit, u32 zero) {
  return multiply_add(__builtin_bit_cast(f32, bits), unit, -8388608.0f * unit - (f32)zero);
}
DEVICE f32 float_of_byte(u32 word, u32 i, u32 zero) {
  return after_magic((u32)__nvvm_prmt((i32)word, (i32)MAGIC, (i32)(0x7440u + i)), 1.0f, zero);
}
DEVICE f32 float_of_nibble(u32 word, u32 i, u32 zero) {
  const u32 up = i < 5 ? i : i - 5;
  u32 bits;  // (word & mask) | MAGIC in one instruction, which ptxas does not find
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(i < 5 ? word : word >> 20), "r"(15u << (4 * up)), "r"(MAGIC));
  return after_magic(bits, 1.0f / (f32)(1u << (4 * up)), zero);
}
DEVICE f32 float_of_bits(u32 bits) { return after_magic(bits | MAGIC, 1.0f, 0); }

#else
#include "host.h"
#endif

#if !defined(__AMDGCN__)
// Lanes that ask for one address are one request here: each asks for itself.
template <u32>
DEVICE u32 bits_of_first(u32 value) { return value; }
inline constexpr bool FIRST_LANE_ASKS = false;
#endif
template <u32 LANES, class T>
DEVICE T of_first(T value) {
  if constexpr (sizeof(T) == 2) {
    return __builtin_bit_cast(T, (u16)bits_of_first<LANES>(__builtin_bit_cast(u16, value)));
  } else {
    return __builtin_bit_cast(T, bits_of_first<LANES>(__builtin_bit_cast(u32, value)));
  }
}

DEVICE u32 lane_id() { return thread_id() % WAVE; }
DEVICE u32 wave_id() { return broadcast_bits(thread_id() / WAVE, 0); }  // the compiler now knows that it is uniform
DEVICE f32 shuffle(f32 value, u32 lane) { return __builtin_bit_cast(f32, shuffle_bits(__builtin_bit_cast(u32, value), lane)); }
DEVICE f32 broadcast(f32 value, u32 lane) {
  return __builtin_bit_cast(f32, broadcast_bits(__builtin_bit_cast(u32, value), lane));
}

DEVICE u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
DEVICE i32 smaller(i32 a, i32 b) { return a < b ? a : b; }
DEVICE i32 larger(i32 a, i32 b) { return a > b ? a : b; }
DEVICE f32 larger(f32 a, f32 b) { return a > b ? a : b; }
DEVICE u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

// Sum and maximum over groups of `lanes` (a power of two) neighbouring lanes; every lane gets the result.
DEVICE f32 sum_over(f32 value, u32 lanes) {
  for (u32 mask = lanes / 2; mask; mask /= 2) value += shuffle(value, lane_id() ^ mask);
  return value;
}
DEVICE f32 maximum_over_wave(f32 value) {
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) value = larger(value, shuffle(value, lane_id() ^ mask));
  return value;
}
DEVICE f32 sum_over_wave(f32 value) {
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) value += shuffle(value, lane_id() ^ mask);
  return value;
}
#if defined(__NVPTX__)
DEVICE u32 largest_of_wave(u32 value) {
  return (u32)__nvvm_redux_sync_umax((i32)value, -1);
}
DEVICE u32 smallest_of_wave(u32 value) {
  return (u32)__nvvm_redux_sync_umin((i32)value, -1);
}
#else
DEVICE u32 largest_of_wave(u32 value) {
  UNROLL for (u32 mask = WAVE / 2; mask; mask /= 2) {
    const u32 other = shuffle_bits(value, lane_id() ^ mask);
    value = other > value ? other : value;
  }
  return value;
}
DEVICE u32 smallest_of_wave(u32 value) { return ~largest_of_wave(~value); }
#endif
