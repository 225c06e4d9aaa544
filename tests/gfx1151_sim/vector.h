// Reading the sources and writing the result of a vector instruction.
#pragma once
#include "machine.h"

// The lanes that an instruction with DPP runs on, and source 0 as it sees it.
int dpp_source(wave *w, const instruction *i, u32 *permuted, u32 *enabled);
// Source k of a type of vector_ops.h: 32 elements, in `buffer` or in the register itself. permuted: instead of the
// VGPR, or NULL.
const void *fetch(const wave *w, const instruction *i, int k, char type, u64 *buffer, const u32 *permuted);
// Output modifiers, and the write of a result to the enabled lanes.
int finish(wave *w, const instruction *i, char type, void *result, u32 enabled);
// One instruction whose lanes are independent.
int run_vector(wave *w, const instruction *i);
// Two instructions in one.
int run_pair(wave *w, const instruction *i);
// value[l] into register[l] for each lane of the mask.
static inline void blend(u32 *to, const u32 *value, u32 mask) {
  if (mask == ~0u) { memcpy(to, value, 4 * LANES); return; }
  for (u32 l = 0; l < LANES; l++) {
    u32 m = -(mask >> l & 1);
    to[l] = (value[l] & m) | (to[l] & ~m);
  }
}
// Tables by encoding, indexed by opcode number.
extern opcode vop1_table[256], vop2_table[64], vop3_table[1024], vopc_table[128];
