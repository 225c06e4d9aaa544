// LDS and the instructions of its unit that move values between lanes.
#include "arithmetic.h"
#include "memory_ops.h"
#include "options.h"

#define SHAPE(number, name, bytes, stores, sign, half, places, stride) [number] = {bytes, stores, sign, half, places, stride},
static const transfer transfers[256] = {LDS_TRANSFERS(SHAPE)};

static u32 number_of(const instruction *i) { return i->words[0] >> 18 & 255; }

// ---------------------------------------------------------------- checks
enum { READ, WRITE, UPDATE };
static int race(wave *w, const instruction *i, u32 at, const char *what, u32 other) {
  return fault(w, i, "race: it %s LDS byte %u, which wave %u %s with no barrier between them", what, at, other,
               what[0] == 'l' ? "stored" : "used");
}
// A word of LDS: two waves may both read it, or both update it atomically, between two barriers; nothing else.
static int check_word(wave *w, const instruction *i, lds_shadow *s, u32 at, u32 bytes, int kind) {
  u64 now = (u64)(w->group->barriers & 0xfffff), word = *s >> SHADOW_BARRIER == now ? *s : now << SHADOW_BARRIER;
  u32 mine = ((1u << bytes) - 1) << (at & 3), writer = word >> SHADOW_WRITER & 63, written = word >> SHADOW_BYTES & 15;
  int atomic = word >> SHADOW_ATOMIC & 1, foreign = writer && writer != w->index + 1;
  if (foreign && written & mine && !(kind == UPDATE && atomic))
    return race(w, i, at, kind == READ ? "loads" : "stores", writer - 1);
  u32 others = (u32)word & ~(1u << w->index);
  if (kind == READ) {
    *s = word | 1u << w->index;
    return NEXT;
  }
  if (others) return race(w, i, at, "stores", (u32)__builtin_ctz(others));
  if (foreign) written = 0;
  *s = now << SHADOW_BARRIER | (u64)(kind == UPDATE) << SHADOW_ATOMIC | (u64)(written | mine) << SHADOW_BYTES |
       (u64)(w->index + 1) << SHADOW_WRITER | (u32)word;
  return NEXT;
}
static int check_races(wave *w, const instruction *i, u32 at, u32 bytes, int kind) {
  lds_shadow *s = w->group->shadow + at / 4;
  if (kind == READ) {  // most words are read again and again by the same wave
    u64 bit = 1u << w->index, known = (u64)(w->group->barriers & 0xfffff) << SHADOW_BARRIER | bit;
    u64 compared = ~0ull << SHADOW_BARRIER | 63ull << SHADOW_WRITER | bit, different = 0;
    for (u32 k = 0; k < bytes; k += 4) different |= (s[k / 4] ^ known) & compared;
    if (!different) return NEXT;
  }
  for (u32 k = 0; k < bytes; k += 4)
    if (check_word(w, i, s + k / 4, at + k, bytes - k < 4 ? bytes - k : 4, kind)) return FAULT;
  return NEXT;
}
static int check(wave *w, const instruction *i, const u32 *address, u32 offset, u32 mask, u32 bytes, int kind) {
  u64 last = ~0ull;  // no address
  for (u32 l = 0; l < LANES; l++) {
    u32 at = address[l] + offset;
    if (!(mask >> l & 1) || (kind == READ && at == last)) continue;
    if ((u64)at + bytes > w->group->lds_bytes)
      return fault(w, i, "LDS overrun: byte %u of %u in lane %u", at, w->group->lds_bytes, l);
    if (at % (bytes >= 4 ? 4 : bytes)) return fault(w, i, "misaligned: %u bytes at LDS byte %u in lane %u", bytes, at, l);
    if (options.races && check_races(w, i, at, bytes, kind)) return FAULT;
    last = at;
  }
  w->launch->lds_bytes_moved += bytes * (u32)__builtin_popcount(mask);
  return NEXT;
}

// ---------------------------------------------------------------- loads and stores
static void copy_lanes(u8 *lds, const u32 *address, u32 offset, u32 mask, const transfer *t, u32 words[4][LANES]) {
  for (u32 l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u8 *at = lds + (u32)(address[l] + offset);  // the sum wraps
    for (u32 k = 0; k < t->bytes; k += 4) {
      u32 n = t->bytes - k, *word = &words[k / 4][l];
      if (n >= 4) { if (t->stores) memcpy(at + k, word, 4); else memcpy(word, at + k, 4); }
      else if (t->stores) memcpy(at + k, word, n);
      else *word = 0, memcpy(word, at + k, n);
    }
  }
}
static int move_place(wave *w, const instruction *i, const transfer *t, const u32 *address, u32 offset, u32 data, u32 result) {
  u32 words[4][LANES], mask = w->s[EXEC];
  if (check(w, i, address, offset, mask, t->bytes, t->stores ? WRITE : READ)) return FAULT;
  if (t->stores) gather_stored(w, data, t, words);
  copy_lanes(w->group->lds, address, offset, mask, t, words);
  if (!t->stores) place_loaded(w, result, t, mask, words);
  return NEXT;
}
int run_lds(wave *w, const instruction *i) {
  const transfer *t = transfers + number_of(i);
  u32 address[LANES];  // a copy: the first result may overwrite it
  memcpy(address, w->v[i->source[0]], sizeof address);
  if (t->places == 1) return move_place(w, i, t, address, i->words[0] & 0xffff, i->source[1], i->result);
  u32 first = (i->words[0] & 255) * t->stride, second = (i->words[0] >> 8 & 255) * t->stride;
  if (move_place(w, i, t, address, first, i->source[1], i->result)) return FAULT;
  return move_place(w, i, t, address, second, i->source[2], i->result + t->bytes / 4u);
}
#define MEANING(number, name, returns, meaning) case number: return (u32)(meaning);
static u32 updated(u32 number, u32 m, u32 x) {
  switch (number) { LDS_ATOMICS(MEANING) }
  return m;
}
int run_lds_atomic(wave *w, const instruction *i) {
  u32 number = number_of(i), returns = number >= 0x20 && number != 0x79 ? 1 : number == 0x79, mask = w->s[EXEC];
  if (check(w, i, w->v[i->source[0]], i->words[0] & 0xffff, mask, 4, UPDATE)) return FAULT;
  for (u32 l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u32 at = w->v[i->source[0]][l] + (i->words[0] & 0xffff), old, x = w->v[i->source[1]][l];
    memcpy(&old, w->group->lds + at, 4);
    u32 new = updated(number, old, x);
    memcpy(w->group->lds + at, &new, 4);
    if (returns) w->v[i->result][l] = old;
  }
  return NEXT;
}

// ---------------------------------------------------------------- between lanes
// Addresses are in bytes, four a lane. Lanes that are not active give 0.
int run_bpermute(wave *w, const instruction *i) {
  u32 old[LANES], address[LANES], mask = w->s[EXEC], *to = w->v[i->result], offset = i->words[0] & 0xffff;
  memcpy(old, w->v[i->source[1]], sizeof old);
  memcpy(address, w->v[i->source[0]], sizeof address);
  for (u32 l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u32 from = (address[l] + offset) / 4 % LANES;
    to[l] = mask >> from & 1 ? old[from] : 0;
  }
  return NEXT;
}
int run_permute(wave *w, const instruction *i) {
  u32 new[LANES] = {0}, mask = w->s[EXEC], offset = i->words[0] & 0xffff;
  for (u32 l = 0; l < LANES; l++)
    if (mask >> l & 1) new[(w->v[i->source[0]][l] + offset) / 4 % LANES] = w->v[i->source[1]][l];
  for (u32 l = 0; l < LANES; l++)
    if (mask >> l & 1) w->v[i->result][l] = new[l];
  return NEXT;
}
static u32 swizzled(u32 pattern, u32 l) {
  if (pattern >= 0xc000) {  // rotate
    u32 keep = pattern & 31, by = pattern >> 5 & 31;
    return (l & keep) | ((pattern >> 10 & 1 ? l - by : l + by) & ~keep & 31);
  }
  if (pattern & 0x8000) return (l & ~3u) | (pattern >> 2 * (l & 3) & 3);
  return ((l & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
}
int run_swizzle(wave *w, const instruction *i) {
  u32 pattern = i->words[0] & 0xffff, old[LANES], mask = w->s[EXEC];
  if (pattern >= 0xe000) return fault(w, i, "the FFT patterns are not implemented");
  memcpy(old, w->v[i->source[0]], sizeof old);
  for (u32 l = 0; l < LANES; l++) {
    u32 from = swizzled(pattern, l);
    if (mask >> l & 1) w->v[i->result][l] = mask >> from & 1 ? old[from] : 0;
  }
  return NEXT;
}

#define TRANSFER(number, name_, bytes, stores, sign, half, places, stride) \
  [number] = {.name = #name_, .types = "", .run = run_lds, .class = CLASS_lds},
#define ATOMIC(number, name_, returns, meaning) [number] = {.name = #name_, .types = "", .run = run_lds_atomic, .class = CLASS_lds},
opcode lds_table[256] = {LDS_TRANSFERS(TRANSFER) LDS_ATOMICS(ATOMIC)  //
  [0x35] = {.name = "ds_swizzle_b32", .types = "", .run = run_swizzle, .class = CLASS_lds},
  [0xb2] = {.name = "ds_permute_b32", .types = "", .run = run_permute, .class = CLASS_lds},
  [0xb3] = {.name = "ds_bpermute_b32", .types = "", .run = run_bpermute, .class = CLASS_lds}};
