// Work of one launch that needs what other workgroups of the same launch have made, on NVIDIA GPUs.
//
// Workgroups take tickets, and a ticket's work may wait for that of lower tickets only. Those were taken by workgroups
// that run already, so that nobody waits for one that has not started: any number of workgroups may be resident.
// The counters of a launch are zero when it starts. They come after SCRATCH_WORDS words for what workgroups tell others, half
// of them for launches of even, half for those of odd numbers, which are zero too: each launch clears those of the next one.
#pragma once

#include "elements.h"

#if !defined(__AMDGCN__)

enum GridCounter : u32 { TICKETS, FINISHED = 16 };  // words of a launch's counters, in different sectors
inline constexpr u32 COUNTER_WORDS = 32, HALF_WORDS = 364 * 32, SCRATCH_WORDS = 2 * HALF_WORDS;

DEVICE GLOBAL u32* half_of_launch(GLOBAL u32* scratch, u32 slot) { return scratch + slot % 2 * HALF_WORDS; }
DEVICE void clear_other_half(GLOBAL u32* scratch, u32 slot, u32 workgroups, u32 threads) {
  GLOBAL u32* other = half_of_launch(scratch, slot + 1);
  for (u32 i = workgroup_id() * threads + thread_id(); i < HALF_WORDS; i += workgroups * threads) other[i] = 0;
}

#if defined(__NVPTX__)
DEVICE u32 take_ticket(GLOBAL u32* counters) {
  u32 ticket;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(counters + TICKETS) : "memory");
  return ticket;
}
// One thread, after a barrier: what its workgroup has written is there for those who see the count.
DEVICE void count_finished(GLOBAL u32* counters) {
  asm volatile("fence.acq_rel.gpu;\n\tred.release.gpu.global.add.u32 [%0], 1;" ::"l"(counters + FINISHED) : "memory");
}
// One thread, before a barrier.
DEVICE void wait_for_finished(const GLOBAL u32* counters, u32 count) {
  u32 finished;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(finished) : "l"(counters + FINISHED) : "memory");
  } while (finished < count);
}
// One thread, between barriers: whether its workgroup is the last of `count`. What all of them have written before is
// then there for it.
DEVICE bool last_of(GLOBAL u32* counter, u32 count) {
  u32 before;
  asm volatile("fence.acq_rel.gpu;\n\tatom.acq_rel.gpu.global.add.u32 %0, [%1], 1;\n\tfence.acq_rel.gpu;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before + 1 == count;
}
// Elements 4 i to 4 i + 3 of what other workgroups of this launch have written.
DEVICE f32x4 load_fresh(const GLOBAL f32* x, u64 i) {
  f32x4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(x + 4 * i)
               : "memory");
  return v;
}
template <class X>
DEVICE f32x4 load_fresh(const GLOBAL X* x, u64 i) {
  u32 first, second;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "l"(x + 4 * i) : "memory");
  return widen4(__builtin_bit_cast(Four<X>, (u32x2){first, second}));
}
// On the CPU, where a thread that waits keeps others from running: what is waited for must be there.
DEVICE void nobody_comes() {}
DEVICE void meet_where_nobody_waits() {}
#else
DEVICE void nobody_comes() { __builtin_trap(); }
DEVICE void meet_where_nobody_waits() { barrier(); }
DEVICE u32 take_ticket(GLOBAL u32* counters) { return counters[TICKETS]++; }
DEVICE void count_finished(GLOBAL u32* counters) { counters[FINISHED]++; }
DEVICE bool last_of(GLOBAL u32* counter, u32 count) { return ++*counter == count; }
DEVICE void wait_for_finished(const GLOBAL u32* counters, u32 count) {
  if (counters[FINISHED] < count) __builtin_trap();
}
template <class X>
DEVICE f32x4 load_fresh(const GLOBAL X* x, u64 i) { return load4(x, i); }
#endif

#endif
