// Copies of 16, 8 or 4 bytes from global into local memory that go on while the wave computes. A lane waits for its own
// copies only: `wave_meets` makes them visible to the wave. Elsewhere than on NVIDIA a copy is done at once.
#pragma once

#include "device.h"

#if defined(__NVPTX__)

// `there`: else 16 bytes of zero, and nothing is read. LINE: all 128 bytes around are wanted soon.
template <bool LINE = true>
DEVICE void copy_async(LOCAL u32x4* to, const GLOBAL u32x4* from, bool there) {
  const u32 at = (u32)(u64)to, size = there ? 16u : 0u;
  if constexpr (LINE) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(size) : "memory");
  }
}
// 16 or 8 bytes; zero unless `there`, without the arithmetic that a size takes.
DEVICE void copy_if_async(LOCAL u32x4* to, const GLOBAL u32x4* from, bool there) {
  asm volatile("{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p;}"
               :
               : "r"((u32)(u64)to), "l"(from), "r"((u32)there)
               : "memory");
}
DEVICE void copy_if_async(LOCAL u32x2* to, const GLOBAL u32x2* from, bool there) {
  asm volatile("{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 8, p;}"
               :
               : "r"((u32)(u64)to), "l"(from), "r"((u32)there)
               : "memory");
}
// How the second cache keeps what is read once: it goes first. What others read stays, as x does.
struct ReadOnce {
  u64 policy;
  MEMBER ReadOnce() { asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy)); }
};
DEVICE void copy_if_async(LOCAL u32x4* to, const GLOBAL u32x4* from, bool there, const ReadOnce& once) {
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, p, %3;}"
      :
      : "r"((u32)(u64)to), "l"(from), "r"((u32)there), "l"(once.policy)
      : "memory");
}
// 4 bytes, of which the first `size` are read, and the others zero.
DEVICE void copy_word_async(LOCAL u32* to, const GLOBAL u8* from, u32 size) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"((u32)(u64)to), "l"(from), "r"(size) : "memory");
}
// 4, 8 or 16 bytes to AT bytes behind `to`; zeros unless `rows` is more than `row`.
template <u32 BYTES, u32 AT>
DEVICE void copy_row_async(LOCAL u8* to, const GLOBAL u8* from, u32 rows, u32 row) {
  if constexpr (BYTES == 16) {
    asm volatile("{.reg .pred p; setp.le.u32 p, %2, %3; cp.async.cg.shared.global.L2::128B [%0+%4], [%1], 16, p;}"
                 :
                 : "r"((u32)(u64)to), "l"(from), "r"(rows), "r"(row), "n"(AT)
                 : "memory");
  } else {
    asm volatile("{.reg .pred p; setp.le.u32 p, %2, %3; cp.async.ca.shared.global [%0+%4], [%1], %5, p;}"
                 :
                 : "r"((u32)(u64)to), "l"(from), "r"(rows), "r"(row), "n"(AT), "n"(BYTES)
                 : "memory");
  }
}
// What was asked for since the last call is one group of copies.
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// At most the last LEFT groups are still on their way.
template <u32 LEFT>
DEVICE void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
DEVICE void wave_meets() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

#else

template <bool = true>
DEVICE void copy_async(LOCAL u32x4* to, const GLOBAL u32x4* from, bool there) { *to = there ? *from : (u32x4)0u; }
template <class V>
DEVICE void copy_if_async(LOCAL V* to, const GLOBAL V* from, bool there) { *to = there ? *from : (V)0u; }
struct ReadOnce {};
DEVICE void copy_if_async(LOCAL u32x4* to, const GLOBAL u32x4* from, bool there, const ReadOnce&) {
  copy_if_async(to, from, there);
}
DEVICE void copy_word_async(LOCAL u32* to, const GLOBAL u8* from, u32 size) {
  u32 word = 0;
  for (u32 i = 0; i < size; i++) word |= (u32)from[i] << (8 * i);
  *to = word;
}
template <u32 BYTES, u32 AT>
DEVICE void copy_row_async(LOCAL u8* to, const GLOBAL u8* from, u32 rows, u32 row) {
  for (u32 i = 0; i < BYTES / 4; i++) ((LOCAL u32*)(to + AT))[i] = row < rows ? ((const GLOBAL u32*)from)[i] : 0u;
}
DEVICE void end_group() {}
template <u32>
DEVICE void wait_for_groups() {}
DEVICE void wave_meets() { broadcast_bits(0, 0); }

#endif
