// WMMA: D = A B + C of 16 x 16 matrices. Products and sums are in double and rounded once; the hardware's own rounding
// is not known. A: row = lane % 16; B: column = lane % 16; C, D: row 2 v + lane / 16 of register v, column lane % 16.
#include "half.h"
#include "packed.h"

enum { F32_F16 = 0x40, F32_BF16, F16_F16, BF16_BF16, I32_IU8, I32_IU4 };
typedef struct { double value[2][16][16]; } factors;  // A by rows, B by columns

static int is_bfloat(u32 number) { return number == F32_BF16 || number == BF16_BF16; }

// Element k of row or column r of factor m.
static double element(const wave *w, const instruction *i, u32 number, int m, int r, int k) {
  u32 base = i->source[m] - VGPR;
  if (number == I32_IU8 || number == I32_IU4) {
    int bits = number == I32_IU8 ? 8 : 4, in_word = 32 / bits;
    u32 top = w->v[base + k / in_word][r] << (32 - bits - bits * (k % in_word));
    return i->negate >> m & 1 ? (double)((i32)top >> (32 - bits)) : (double)(top >> (32 - bits));
  }
  u32 x = w->v[base + k / 2][r] >> (k % 2 ? 16 : 0) & 0xffff;
  double value = is_bfloat(number) ? bfloat_to_float(x) : half_to_float(x);
  return (k % 2 ? i->negate_high : i->negate) >> m & 1 ? -value : value;
}
// Lanes 16 to 31 must hold what lanes 0 to 15 do.
static int is_replicated(const wave *w, u32 base, int registers) {
  for (int v = 0; v < registers; v++)
    if (memcmp(w->v[base + v], w->v[base + v] + 16, 64)) return 0;
  return 1;
}
static double accumulator(const wave *w, const instruction *i, u32 number, int v, int lane) {
  u32 source = i->source[2], word = source >= VGPR ? w->v[source - VGPR + v][lane] : w->s[source];
  if (number >= I32_IU8) return (i32)word;
  u32 half = word >> (i->select & 4 ? 16 : 0) & 0xffff;
  double x = number <= F32_BF16 || source < VGPR ? as_float(word) : number == F16_F16 ? half_to_float(half) : bfloat_to_float(half);
  if (i->negate_high & 4) x = fabs(x);
  return i->negate & 4 ? -x : x;
}
static u32 rounded(const instruction *i, u32 number, double sum, u32 old) {
  if (number == I32_IU8 || number == I32_IU4) {
    if (i->clamp) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
    return (u32)(i64)sum;
  }
  if (number <= F32_BF16) return float_bits((float)sum);
  u32 half = number == F16_F16 ? float_to_half((float)sum) : float_to_bfloat((float)sum);
  return i->select & 4 ? (old & 0xffff) | half << 16 : (old & 0xffff0000) | half;
}
int run_wmma(wave *w, const instruction *i) {
  u32 number = i->words[0] >> 16 & 127, result[8][LANES];
  int registers = number == I32_IU8 ? 4 : number == I32_IU4 ? 2 : 8;
  factors f;
  if (w->s[EXEC] != ~0u) return fault(w, i, "needs all lanes, but EXEC is %#x", w->s[EXEC]);
  for (int m = 0; m < 2; m++) {
    if (i->source[m] < VGPR) return fault(w, i, "a factor is no VGPR");
    if (!is_replicated(w, i->source[m] - VGPR, registers))
      return fault(w, i, "lanes 16 to 31 of factor %c do not repeat lanes 0 to 15", "AB"[m]);
    for (int r = 0; r < 16; r++)
      for (int k = 0; k < 16; k++) f.value[m][r][k] = element(w, i, number, m, r, k);
  }
  for (int v = 0; v < 8; v++)
    for (int lane = 0; lane < LANES; lane++) {
      double sum = accumulator(w, i, number, v, lane);
      for (int k = 0; k < 16; k++) sum += f.value[0][2 * v + (lane >> 4)][k] * f.value[1][lane & 15][k];
      result[v][lane] = rounded(i, number, sum, w->v[i->result + v][lane]);
    }
  memcpy(w->v[i->result], result, sizeof result);
  return NEXT;
}
