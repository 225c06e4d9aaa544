// What all parts of the simulator share: the state of a wave, a decoded instruction, and the kinds of stops.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;

enum { LANES = 32, SGPRS = 128, VGPRS = 256 };
// Operand numbers of scalar registers and special sources; 256 and above are VGPRs.
enum { VCC = 106, NULL_REG = 124, M0 = 125, EXEC = 126, SCC_SOURCE = 253, LITERAL = 255, VGPR = 256 };

// Why a wave stops running. NEXT: it does not.
enum { NEXT = 0, ENDED, AT_BARRIER, OUT_OF_TURN, FAULT };

// Classes of instructions in the accounts.
#define CLASSES(X)                                                                                                  \
  X(scalar) X(vector) X(pair) X(transcendental) X(dot) X(wmma) X(scalar_load) X(global_load) X(global_store) X(global_atomic) \
  X(lds) X(scratch) X(branch) X(barrier) X(wait)
enum {
#define X(name) CLASS_##name,
  CLASSES(X)
#undef X
  NUM_CLASSES
};

typedef struct wave wave;
typedef struct instruction instruction;
typedef int (*execute_function)(wave *, const instruction *);
// One result for each of 32 lanes; elements are u32, for types Q, L and D u64.
typedef void (*lanes_function)(void *result, const void *a, const void *b, const void *c);

// An opcode of one encoding. types: the result, then the sources, one letter each (see vector_types.h); "" for opcodes
// that `run` handles wholly.
typedef struct {
  const char *name, *types;
  execute_function run;
  lanes_function lanes;
  u64 executed;
  u8 class;
} opcode;

struct instruction {
  execute_function run;  // NULL: not decoded yet
  opcode *op;
  instruction *second;   // of a VOPD pair
  u32 words[3];          // as in memory
  u32 literal, dpp;      // dpp: its control word
  i32 offset;            // of memory accesses and branches
  u16 source[4];         // operand numbers
  u16 result, mask_result;  // a VGPR's or SGPR's index; where a lane mask goes
  u8 words_used, negate, absolute, negate_high, select, select_high, clamp, scale, dpp_kind, class;
};

typedef struct launch launch;
typedef struct workgroup workgroup;
struct wave {
  u32 s[256];             // SGPRs, and from 128 on the inline constants, so that an operand number is an index
  u32 v[VGPRS][LANES];
  u32 scc, pc;            // pc: in words from the start of the code
  u32 flush;              // float32 denormals are flushed
  u32 index;              // in the workgroup
  u8 *scratch;            // scratch_bytes for each lane
  workgroup *group;
  launch *launch;
  u32 waiting, ended;
};

// Who used a word of LDS since a barrier, to find races: readers (a bit a wave), the last writer's wave + 1 (6 bits),
// which of the four bytes it wrote (4), whether atomically (1), and that barrier's number (20).
typedef u64 lds_shadow;
enum { SHADOW_WRITER = 32, SHADOW_BYTES = 38, SHADOW_ATOMIC = 42, SHADOW_BARRIER = 44 };

struct workgroup {
  u8 *lds;
  lds_shadow *shadow;
  u32 lds_bytes, barriers, index, number[3];
};

struct launch {
  const char *kernel;
  u8 *code;
  instruction *table;
  u32 code_words, scratch_bytes, epoch;
  u64 classes[NUM_CLASSES];
  u64 bytes_requested[2], bytes_distinct[2], lds_bytes_moved, uninitialized_bytes;
  char fault[1024], uninitialized[256];
};

// Stops the wave with a message that names kernel, address, workgroup and wave. Returns FAULT.
int fault(wave *w, const instruction *i, const char *format, ...);
// Fills `table[pc]`; FAULT for an unknown instruction.
int decode(wave *w, u32 pc);
static inline u64 scalar_pair(const wave *w, u32 r) { return w->s[r] | (u64)w->s[r + 1] << 32; }
static inline void write_scalar(wave *w, u32 r, u32 value) {
  if (r != NULL_REG) w->s[r] = value;
}
static inline float as_float(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline u32 float_bits(float f) { u32 u; memcpy(&u, &f, 4); return u; }
static inline double as_double(u64 bits) { double d; memcpy(&d, &bits, 8); return d; }
static inline u64 double_bits(double d) { u64 u; memcpy(&u, &d, 8); return u; }
