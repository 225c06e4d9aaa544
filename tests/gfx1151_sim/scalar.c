// The scalar ALU: one function for each opcode of scalar_ops.h, jumps, and what ends or pauses a wave.
#include "arithmetic.h"
#include "scalar.h"
#include "scalar_ops.h"

static u32 read_32(const wave *w, const instruction *i, int k) {
  u32 source = i->source[k];
  return source == LITERAL ? i->literal : source == SCC_SOURCE ? w->scc : w->s[source];
}
static u32 read_f(const wave *w, const instruction *i, int k) {
  u32 x = read_32(w, i, k);
  return w->flush ? flush_f32(x) : x;
}
static u64 read_64(const wave *w, const instruction *i, int k) {
  u32 source = i->source[k];
  if (source == LITERAL) return i->literal;
  if (source >= 240 && source <= 248) return double_bits(source == 248 ? 0.15915494309189532 : as_float(w->s[source]));
  if (source >= 128) return (u64)(i64)(i32)w->s[source];
  return source == NULL_REG ? 0 : scalar_pair(w, source);
}
#define TYPE_32 u32
#define TYPE_F u32
#define TYPE_64 u64
#define TYPE_0 u32
#define READ_32(k) read_32(w, i, k)
#define READ_F(k) read_f(w, i, k)
#define READ_64(k) read_64(w, i, k)
#define READ_0(k) 0
#define OLD_32 w->s[i->result]
#define OLD_F w->s[i->result]
#define OLD_64 scalar_pair(w, i->result)
#define OLD_0 0
#define WRITE_32 write_scalar(w, i->result, d)
#define WRITE_F write_scalar(w, i->result, w->flush ? flush_f32(d) : d)
#define WRITE_64 write_scalar(w, i->result, (u32)d), write_scalar(w, i->result + (i->result != NULL_REG), (u32)(d >> 32))
#define WRITE_0
#define FUNCTION(number, name, R, A, B, meaning)                          \
  static int run_##name(wave *w, const instruction *i) {                  \
    TYPE_##A a = READ_##A(0);                                             \
    TYPE_##B b = READ_##B(1);                                             \
    TYPE_##R d = OLD_##R;                                                 \
    u32 scc = w->scc, e = w->s[EXEC], literal = i->literal;               \
    (void)a, (void)b, (void)literal;                                      \
    meaning;                                                              \
    w->scc = scc;                                                         \
    w->s[EXEC] = e;                                                       \
    (void)d;                                                              \
    WRITE_##R;                                                            \
    return NEXT;                                                          \
  }
SOP2_OPS(FUNCTION)
SOP1_OPS(FUNCTION)
SOPC_OPS(FUNCTION)
SOPK_OPS(FUNCTION)

// ---------------------------------------------------------------- jumps
static int jump_if(wave *w, const instruction *i, int taken) {
  if (taken) w->pc += i->offset;
  return NEXT;
}
static int run_branch(wave *w, const instruction *i) { return jump_if(w, i, 1); }
static int run_branch_scc0(wave *w, const instruction *i) { return jump_if(w, i, !w->scc); }
static int run_branch_scc1(wave *w, const instruction *i) { return jump_if(w, i, w->scc); }
static int run_branch_vccz(wave *w, const instruction *i) { return jump_if(w, i, !w->s[VCC]); }
static int run_branch_vccnz(wave *w, const instruction *i) { return jump_if(w, i, w->s[VCC] != 0); }
static int run_branch_execz(wave *w, const instruction *i) { return jump_if(w, i, !w->s[EXEC]); }
static int run_branch_execnz(wave *w, const instruction *i) { return jump_if(w, i, w->s[EXEC] != 0); }
static void write_next_address(wave *w, u32 to) {
  u64 next = (u64)(uintptr_t)w->launch->code + 4ull * w->pc;
  write_scalar(w, to, (u32)next);
  write_scalar(w, to + 1, next >> 32);
}
static int jump_to(wave *w, const instruction *i, u64 target) {
  u64 at = (target - (u64)(uintptr_t)w->launch->code) / 4;
  if (at >= w->launch->code_words) return fault(w, i, "jumps to %#llx, outside the code", (unsigned long long)target);
  w->pc = (u32)at;
  return NEXT;
}
static int run_getpc(wave *w, const instruction *i) { write_next_address(w, i->result); return NEXT; }
static int run_setpc(wave *w, const instruction *i) { return jump_to(w, i, read_64(w, i, 0)); }
static int run_swappc(wave *w, const instruction *i) {
  u64 target = read_64(w, i, 0);
  write_next_address(w, i->result);
  return jump_to(w, i, target);
}
static int run_call(wave *w, const instruction *i) {
  write_next_address(w, i->result);
  w->pc += (i32)(i16)i->words[0];
  return NEXT;
}

// ---------------------------------------------------------------- state of a wave
static int run_end(wave *w, const instruction *i) { (void)i; w->ended = 1; return ENDED; }
static int run_barrier(wave *w, const instruction *i) { (void)i; w->waiting = 1; return AT_BARRIER; }
static int run_nothing(wave *w, const instruction *i) { (void)w, (void)i; return NEXT; }
static int run_round_mode(wave *w, const instruction *i) {
  return i->words[0] & 15 ? fault(w, i, "only rounding to nearest even is implemented") : NEXT;
}
// Bits 0 and 1 of the mode: float32 denormals; 2 and 3: float16 and float64 ones.
static int set_denormals(wave *w, const instruction *i, u32 mode) {
  if ((mode >> 2 & 3) != 3) return fault(w, i, "flushing float16 denormals is not implemented");
  if ((mode & 3) != 0 && (mode & 3) != 3) return fault(w, i, "flushing denormals on one side only is not implemented");
  w->flush = (mode & 3) == 0;
  return NEXT;
}
static int run_denorm_mode(wave *w, const instruction *i) { return set_denormals(w, i, i->words[0] & 15); }
static int set_register(wave *w, const instruction *i, u32 value) {
  u32 where = i->words[0] & 0xffff, id = where & 63, offset = where >> 6 & 31, bits = (where >> 11) + 1;
  if (id != 1) return fault(w, i, "hardware register %u is not implemented", id);
  if (offset == 4 && bits == 4) return set_denormals(w, i, value & 15);
  if (offset == 4 && bits == 2) return set_denormals(w, i, (value & 3) | 12);
  if (offset == 0 && bits == 4) return value & 15 ? fault(w, i, "only rounding to nearest even is implemented") : NEXT;
  return fault(w, i, "bits %u to %u of the mode register are not implemented", offset, offset + bits - 1);
}
static int run_setreg(wave *w, const instruction *i) { return set_register(w, i, w->s[i->result]); }
static int run_setreg_literal(wave *w, const instruction *i) { return set_register(w, i, i->literal); }

#define ENTRY(number, name_, R, A, B, meaning) \
  [number] = {.name = #name_, .types = #R #A #B, .run = run_##name_, .class = CLASS_scalar},
#define SPECIAL(number, name_, class_, run_) [number] = {.name = #name_, .types = "", .run = run_, .class = CLASS_##class_},
opcode sop2_table[128] = {SOP2_OPS(ENTRY)};
opcode sopc_table[128] = {SOPC_OPS(ENTRY)};
opcode sop1_table[256] = {SOP1_OPS(ENTRY)  //
  SPECIAL(0x47, s_getpc_b64, scalar, run_getpc)
  SPECIAL(0x48, s_setpc_b64, branch, run_setpc)
  SPECIAL(0x49, s_swappc_b64, branch, run_swappc)};
opcode sopk_table[32] = {SOPK_OPS(ENTRY)  //
  SPECIAL(0x12, s_setreg_b32, scalar, run_setreg)
  SPECIAL(0x13, s_setreg_imm32_b32, scalar, run_setreg_literal)
  SPECIAL(0x14, s_call_b64, branch, run_call)
  SPECIAL(0x18, s_waitcnt_vscnt, wait, run_nothing)
  SPECIAL(0x19, s_waitcnt_vmcnt, wait, run_nothing)
  SPECIAL(0x1a, s_waitcnt_expcnt, wait, run_nothing)
  SPECIAL(0x1b, s_waitcnt_lgkmcnt, wait, run_nothing)};
opcode sopp_table[128] = {
  SPECIAL(0x00, s_nop, wait, run_nothing)
  SPECIAL(0x03, s_sleep, wait, run_nothing)
  SPECIAL(0x04, s_set_inst_prefetch_distance, wait, run_nothing)
  SPECIAL(0x05, s_clause, wait, run_nothing)
  SPECIAL(0x07, s_delay_alu, wait, run_nothing)
  SPECIAL(0x08, s_waitcnt_depctr, wait, run_nothing)
  SPECIAL(0x09, s_waitcnt, wait, run_nothing)
  SPECIAL(0x11, s_round_mode, scalar, run_round_mode)
  SPECIAL(0x12, s_denorm_mode, scalar, run_denorm_mode)
  SPECIAL(0x20, s_branch, branch, run_branch)
  SPECIAL(0x21, s_cbranch_scc0, branch, run_branch_scc0)
  SPECIAL(0x22, s_cbranch_scc1, branch, run_branch_scc1)
  SPECIAL(0x23, s_cbranch_vccz, branch, run_branch_vccz)
  SPECIAL(0x24, s_cbranch_vccnz, branch, run_branch_vccnz)
  SPECIAL(0x25, s_cbranch_execz, branch, run_branch_execz)
  SPECIAL(0x26, s_cbranch_execnz, branch, run_branch_execnz)
  SPECIAL(0x30, s_endpgm, branch, run_end)
  SPECIAL(0x35, s_setprio, wait, run_nothing)
  SPECIAL(0x36, s_sendmsg, wait, run_nothing)
  SPECIAL(0x3d, s_barrier, barrier, run_barrier)};
