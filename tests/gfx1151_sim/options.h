// What a test may choose for the launches that follow; set through simulator_option (launch.c).
#pragma once
#include "machine.h"
typedef struct {
  i64 poison;        // byte that fills new memory, LDS and registers
  i64 wave_order;    // 0: first to last, 1: last to first
  i64 group_order;   // 0: first to last, 1: last to first, 2: shuffled
  i64 turn;          // instructions a wave runs before the next has its turn; 0: up to a barrier
  i64 most;          // instructions of one wave between two barriers before it counts as endless
  i64 races;         // whether races in LDS and global memory stop a launch
  i64 uninitialized; // whether reading uninitialized memory stops a launch
} simulator_options;
extern simulator_options options;
