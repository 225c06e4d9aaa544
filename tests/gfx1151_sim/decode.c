// Words to instructions: which encoding, opcode, operands and modifiers.
#include <stdio.h>
#include <stdlib.h>
#include "memory_ops.h"
#include "packed.h"
#include "scalar.h"
#include "vector.h"

enum { DPP8 = 0xe9, DPP8_FETCH_INACTIVE = 0xea, DPP16 = 0xfa };

static int is_16_bit(char type) { return type == 'H' || type == 'G' || type == 'W' || type == 'S'; }
static u32 field(u32 word, int low, int bits) { return word >> low & ((1u << bits) - 1); }
static void take_literal(instruction *x) {  // once, after everything else
  for (int k = 0; k < 4; k++)
    if (x->source[k] == LITERAL) {
      x->literal = x->words[x->words_used++];
      return;
    }
}

// ---------------------------------------------------------------- scalar
static opcode *decode_scalar(instruction *x) {
  u32 w = x->words[0], top = w >> 23;
  x->words_used = 1;
  x->source[0] = w & 255;
  if (top == 0x17f) {
    x->source[0] = 0;
    x->offset = (i32)(i16)w;
    return sopp_table + field(w, 16, 7);
  }
  if (top == 0x17d) {
    x->result = field(w, 16, 7);
    take_literal(x);
    return sop1_table + field(w, 8, 8);
  }
  if (top == 0x17e) {
    x->source[1] = field(w, 8, 8);
    take_literal(x);
    return sopc_table + field(w, 16, 7);
  }
  x->result = field(w, 16, 7);
  if (w >> 28 == 0xb) {
    x->source[0] = x->result, x->source[1] = LITERAL;
    if (field(w, 23, 5) == 0x13) take_literal(x);
    else x->literal = (u32)(i32)(i16)w;
    return sopk_table + field(w, 23, 5);
  }
  x->source[1] = field(w, 8, 8);
  u32 number = field(w, 23, 7);
  if (number == 0x45 || number == 0x46) x->literal = x->words[x->words_used++];
  else take_literal(x);
  return sop2_table + number;
}
static opcode *decode_scalar_memory(instruction *x) {
  u32 w = x->words[0], v = x->words[1];
  x->words_used = 2;
  x->source[0] = 2 * field(w, 0, 6);
  x->source[3] = field(v, 25, 7);
  x->result = field(w, 6, 7);
  x->offset = (i32)(v << 11) >> 11;
  return smem_table + field(w, 18, 8);
}

// ---------------------------------------------------------------- vector
// Registers of 16-bit operands in the short encodings: bit 7 chooses the high half.
static void choose_half(instruction *x, const char *types) {
  for (int k = 0; k < 3; k++)
    if (is_16_bit(types[k + 1]) && x->source[k] >= VGPR + 128) x->source[k] -= 128, x->select |= 1 << k;
  if (is_16_bit(types[0]) && x->result >= 128) x->result -= 128, x->select |= 8;
}
// DPP, a literal, or nothing after a short encoding.
static void take_extra_word(instruction *x) {
  u32 source = x->source[0];
  if (source != DPP8 && source != DPP8_FETCH_INACTIVE && source != DPP16) { take_literal(x); return; }
  x->dpp = x->words[x->words_used++];
  x->dpp_kind = source == DPP16 ? 16 : source == DPP8 ? 8 : 9;
  x->source[0] = VGPR + (x->dpp & 255);
  if (source == DPP16 && x->words_used == 2) {  // the long encodings have their own
    x->negate = field(x->dpp, 20, 1) | field(x->dpp, 22, 1) << 1;
    x->absolute = field(x->dpp, 21, 1) | field(x->dpp, 23, 1) << 1;
  }
}
// Implied third sources and masks of VOP2 opcodes.
static void add_implied(instruction *x, u32 number) {
  x->mask_result = VCC;
  if (number == 0x01 || (number >= 0x20 && number <= 0x22)) x->source[2] = VCC;
  if (number == 0x02 || number == 0x2b || number == 0x36) x->source[2] = VGPR + x->result;
  if (number == 0x2c || number == 0x37) x->source[2] = x->source[1], x->source[1] = LITERAL;
  if (number == 0x2d || number == 0x38) x->source[2] = LITERAL;
}
static opcode *decode_short_vector(instruction *x) {
  u32 w = x->words[0], number = field(w, 25, 6);
  opcode *op;
  x->words_used = 1;
  x->source[0] = w & 511;
  x->result = field(w, 17, 8);
  x->mask_result = VCC;
  if (number == 0x3f) op = vop1_table + field(w, 9, 8);
  else if (number == 0x3e) {
    u32 compare = field(w, 17, 8);
    x->source[1] = VGPR + field(w, 9, 8);
    x->result = 0;
    x->mask_result = compare & 128 ? EXEC : VCC;
    op = vopc_table + (compare & 127);
  } else {
    x->source[1] = VGPR + field(w, 9, 8);
    add_implied(x, number);
    op = vop2_table + number;
  }
  take_extra_word(x);
  if (op->name && op->types[0]) choose_half(x, op->types);
  return op;
}
static int has_mask_result(u32 number) {  // VOP3SD
  return (number >= 0x120 && number <= 0x122) || (number >= 0x2fc && number <= 0x302);
}
static opcode *decode_vop3(instruction *x) {
  u32 w = x->words[0], v = x->words[1], number = field(w, 16, 10);
  opcode *op = number < 0x100   ? vopc_table + (number & 127)
               : number < 0x140 ? vop2_table + (number - 0x100)
               : number < 0x180 ? vop3_table + number
               : number < 0x200 ? vop1_table + (number - 0x180)
                                : vop3_table + number;
  x->words_used = 2;
  x->result = w & 255;
  x->mask_result = number < 0x100 ? (number & 128 ? EXEC : w & 127) : field(w, 8, 7);
  for (int k = 0; k < 3; k++) x->source[k] = field(v, 9 * k, 9);
  if (!has_mask_result(number)) x->absolute = field(w, 8, 3), x->select = field(w, 11, 4);
  x->clamp = field(w, 15, 1);
  x->scale = field(v, 27, 2);
  x->negate = v >> 29;
  if (number >= 0x300 && number <= 0x302) x->source[2] = NULL_REG;
  if (number == 0x102 || number == 0x12b || number == 0x136) {  // fmac: the old result
    x->source[2] = VGPR + x->result;
    x->select |= x->select >> 1 & 4;
  }
  // Unused source fields are 0, which is no literal.
  take_extra_word(x);
  return op;
}
static opcode *decode_vop3p(instruction *x) {
  u32 w = x->words[0], v = x->words[1];
  x->words_used = 2;
  x->result = w & 255;
  for (int k = 0; k < 3; k++) x->source[k] = field(v, 9 * k, 9);
  x->negate_high = field(w, 8, 3);
  x->select = field(w, 11, 3);
  x->select_high = field(v, 27, 2) | field(w, 14, 1) << 2;
  x->clamp = field(w, 15, 1);
  x->negate = v >> 29;
  take_literal(x);
  return vop3p_table + field(w, 16, 7);
}
// One half of a VOPD pair; literal: the pair's, used where an operand says so.
static opcode *decode_half_pair(instruction *x, u32 number, u32 source, u32 other, u32 result) {
  static const u8 vop2_numbers[19] = {0x2b, 0x2d, 0x2c, 0x08, 0x03, 0x04, 0x05, 0x07, 0, 0x01, 0x10, 0x0f, 0x02, 0, 0, 0,
                                      0x25, 0x18, 0x1b};
  x->source[0] = (u16)source, x->source[1] = (u16)(VGPR + other), x->result = (u16)result;
  if (number == 8) { x->source[1] = 0; return vop1_table + 1; }
  if (number >= 19 || !vop2_numbers[number]) return NULL;
  add_implied(x, vop2_numbers[number]);
  return vop2_table + vop2_numbers[number];
}
static opcode *decode_pair(instruction *x) {
  u32 w = x->words[0], v = x->words[1], x_number = field(w, 22, 4), y_number = field(w, 17, 5);
  u32 result = field(v, 24, 8);
  instruction *y = calloc(1, sizeof *y);
  *y = *x;
  opcode *op = decode_half_pair(x, x_number, w & 511, field(w, 9, 8), result);
  y->op = decode_half_pair(y, y_number, v & 511, field(v, 9, 8), field(v, 17, 7) << 1 | !(result & 1));
  x->second = y;
  x->words_used = 2;
  int literal = 0;
  for (int k = 0; k < 3; k++) literal |= x->source[k] == LITERAL || y->source[k] == LITERAL;
  if (literal) x->literal = y->literal = x->words[x->words_used++];
  return y->op ? op : NULL;
}

// ---------------------------------------------------------------- memory
static opcode *decode_lds(instruction *x) {
  u32 w = x->words[0], v = x->words[1];
  x->words_used = 2;
  x->source[0] = v & 255, x->source[1] = field(v, 8, 8), x->source[2] = field(v, 16, 8), x->result = v >> 24;
  return field(w, 17, 1) ? NULL : lds_table + field(w, 18, 8);
}
static opcode *decode_flat(instruction *x) {
  u32 w = x->words[0], v = x->words[1], segment = field(w, 16, 2);
  x->words_used = 2;
  x->source[0] = v & 255, x->source[1] = field(v, 8, 8), x->source[2] = field(v, 16, 7), x->result = v >> 24;
  x->offset = (i32)(w << 19) >> 19;
  if (segment == 0) x->source[2] = NULL_REG;
  return (segment == 0 ? flat_table : segment == 1 ? scratch_table : global_table) + field(w, 18, 7);
}
static opcode *decode_buffer(instruction *x) {
  u32 w = x->words[0], v = x->words[1];
  x->words_used = 2;
  x->source[0] = v & 255, x->source[1] = field(v, 8, 8), x->source[2] = 4 * field(v, 16, 5), x->source[3] = v >> 24;
  x->offset = w & 0xfff;
  return buffer_table + field(w, 18, 8);
}

static opcode *decode_words(instruction *x) {
  u32 w = x->words[0];
  if (w >> 31 == 0) return decode_short_vector(x);
  if (w >> 30 == 2) return decode_scalar(x);
  switch (w >> 26) {
    case 0x32: return decode_pair(x);
    case 0x33: return decode_vop3p(x);
    case 0x35: return decode_vop3(x);
    case 0x36: return decode_lds(x);
    case 0x37: return decode_flat(x);
    case 0x38: return decode_buffer(x);
    case 0x3d: return decode_scalar_memory(x);
    default: return NULL;
  }
}
// What LLVM calls the instruction, where there is an llvm-mc that knows the chip; else "".
static void disassemble(const u32 *words, char *text, size_t size) {
  char command[512];
  const u8 *b = (const u8 *)words;
  int n = snprintf(command, sizeof command, "for m in llvm-mc-22 llvm-mc-21 llvm-mc-20 llvm-mc-19 llvm-mc; do printf '");
  for (int k = 0; k < 12; k++) n += snprintf(command + n, sizeof command - n, "0x%02x ", b[k]);
  snprintf(command + n, sizeof command - n, "' | $m --disassemble -triple=amdgcn -mcpu=gfx1151 2>/dev/null && break; done"
           " | grep -v '^\\s*\\.' | head -1");
  FILE *pipe = popen(command, "r");
  text[0] = 0;
  if (!pipe) return;
  if (!fgets(text, (int)size, pipe)) text[0] = 0;
  pclose(pipe);
  text[strcspn(text, "\n")] = 0;
}
int decode(wave *w, u32 pc) {
  instruction *x = w->launch->table + pc;
  const u32 *code = (const u32 *)w->launch->code;
  static opcode unknown = {.name = "an unknown instruction", .types = ""};
  memset(x, 0, sizeof *x);
  for (u32 k = 0; k < 3; k++) x->words[k] = pc + k < w->launch->code_words ? code[pc + k] : 0;
  opcode *op = decode_words(x);
  int integer_clamp = op && op->name && x->clamp && strchr("UWQT", op->types[0]) && op->types[0];
  if (!op || !op->name || integer_clamp) {
    char text[128];
    disassemble(code + pc, text, sizeof text);
    instruction here = *x;
    here.op = &unknown;
    return fault(w, &here, "bytes %08x %08x %08x%s%s", x->words[0], x->words[1], x->words[2], text[0] ? ", that is" : "", text);
  }
  x->op = op;
  x->class = x->second ? CLASS_pair : op->class;  // a pair is one instruction and two operations
  x->run = x->second ? run_pair : op->run;
  return NEXT;
}
// The instruction at `code`: how many words it has (0: unknown), its name, and that of the other half of a pair.
__attribute__((visibility("default"))) u32 simulator_decode(const u32 *code, u32 words, const char **name,
                                                            const char **second) {
  static instruction table;
  static wave w;
  workgroup group = {0};
  launch r = {.kernel = "", .code = (u8 *)code, .table = &table, .code_words = words};
  w.launch = &r, w.group = &group;
  if (decode(&w, 0)) return 0;
  *name = table.op->name;
  *second = table.second ? table.second->op->name : "";
  free(table.second);
  return table.words_used;
}
