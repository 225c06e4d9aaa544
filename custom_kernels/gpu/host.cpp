// Fibers for host.h: see there.
#include "device.h"

namespace {

constexpr u32 MOST_THREADS = 512, STACK = 64 * 1024, MOST_ARGUMENTS = 40;

enum class State : u8 { ready, waits_for_wave, waits_for_workgroup, done };

struct Thread {
  void* stack_pointer;
  State state;
  u32 exchanges;
};

alignas(64) u8 stacks[MOST_THREADS][STACK];
Thread threads[MOST_THREADS];
u32 exchanged[2][MOST_THREADS];  // two, so that a fast lane does not overwrite what a slow one has yet to read
u32 thread, workgroup;
void* scheduler_stack;

using Kernel = void (*)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
                        u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
                        u64, u64);
Kernel kernel;
u64 arguments[MOST_ARGUMENTS];

}  // namespace

extern "C" {
extern u8 __start_local_memory[] __attribute__((weak, visibility("hidden")));
extern u8 __stop_local_memory[] __attribute__((weak, visibility("hidden")));

void strixhlo_switch(void** save, void* load);
// Saves what the System V ABI asks a function to keep, and goes on with another stack.
asm(R"(
.text
.globl strixhlo_switch
.hidden strixhlo_switch
strixhlo_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

// The compiler may call these for copies and clears, whatever -ffreestanding says.
void* memset(void* to, int value, unsigned long count) {
  for (unsigned long i = 0; i < count; i++) ((volatile u8*)to)[i] = (u8)value;
  return to;
}
void* memcpy(void* to, const void* from, unsigned long count) {
  for (unsigned long i = 0; i < count; i++) ((volatile u8*)to)[i] = ((const u8*)from)[i];
  return to;
}
}

namespace host {

u32 current_thread() { return thread; }
u32 current_workgroup() { return workgroup; }

static void give_way(State state) {
  threads[thread].state = state;
  strixhlo_switch(&threads[thread].stack_pointer, scheduler_stack);
}

void wait_for_workgroup() { give_way(State::waits_for_workgroup); }

u32 exchange(u32 value, u32 lane) {
  u32* values = exchanged[threads[thread].exchanges++ % 2];
  values[thread] = value;
  give_way(State::waits_for_wave);
  return values[thread / WAVE * WAVE + lane];
}

// A kernel takes pointers and 32-bit scalars (never in floating-point registers: see `launch`), each a 64-bit slot in the
// System V ABI; it does not look at the slots beyond its own.
static void run_thread() {
  const u64* a = arguments;
  kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16],
         a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24], a[25], a[26], a[27], a[28], a[29], a[30], a[31],
         a[32], a[33], a[34], a[35], a[36], a[37], a[38], a[39]);
  give_way(State::done);
}

static void start(u32 id) {
  u64* top = (u64*)(stacks[id] + STACK);
  *--top = 0;                 // keeps the stack aligned as at a call
  *--top = (u64)&run_thread;  // where the first switch returns to
  for (u32 i = 0; i < 6; i++) *--top = 0;
  threads[id] = {top, State::ready, 0};
}

// Lets waiting threads go on when all of their wave, or workgroup, wait for the same. False: none can.
static bool release(u32 count) {
  bool any = false, all_wait = true;
  for (u32 first = 0; first < count; first += WAVE) {
    u32 waiting = 0;
    for (u32 i = first; i < first + WAVE; i++) {
      waiting += threads[i].state == State::waits_for_wave;
      all_wait = all_wait && threads[i].state == State::waits_for_workgroup;
    }
    if (waiting != WAVE) continue;
    any = true;
    for (u32 i = first; i < first + WAVE; i++) threads[i].state = State::ready;
  }
  if (!all_wait) return any;
  for (u32 i = 0; i < count; i++) threads[i].state = State::ready;
  return true;
}

static bool all_done(u32 count) {
  for (u32 i = 0; i < count; i++) {
    if (threads[i].state != State::done) return false;
  }
  return true;
}

}  // namespace host

// Runs a kernel for `workgroups` of `count` threads, one workgroup after the other; `backwards` runs threads and
// workgroups in the opposite order. Returns 0; 1 if the threads of a wave or workgroup did not wait for the same thing;
// 2 for numbers that are not possible here. Float scalars must be passed as their bits.
extern "C" __attribute__((visibility("default"))) i32 strixhlo_launch(void* function, u32 workgroups, u32 count,
                                                                     const u64* values, u32 number, i32 backwards) {
  if (count == 0 || count % WAVE || count > MOST_THREADS || number > MOST_ARGUMENTS) return 2;
  kernel = (Kernel)function;
  for (u32 i = 0; i < MOST_ARGUMENTS; i++) arguments[i] = i < number ? values[i] : 0;
  for (u32 w = 0; w < workgroups; w++) {
    workgroup = backwards ? workgroups - 1 - w : w;
    for (u8* p = __start_local_memory; p < __stop_local_memory; p++) *p = 0xff;  // NaN
    for (u32 i = 0; i < count; i++) host::start(i);
    while (!host::all_done(count)) {
      for (u32 i = 0; i < count; i++) {
        thread = backwards ? count - 1 - i : i;
        if (threads[thread].state == State::ready) strixhlo_switch(&scheduler_stack, threads[thread].stack_pointer);
      }
      if (!host::release(count) && !host::all_done(count)) return 1;
    }
  }
  return 0;
}
