// Scalar loads, and global, flat, scratch and buffer accesses.
#include "memory_ops.h"
#include "arithmetic.h"
#include "memory.h"
#include "vector.h"

#define SHAPE(number, name, bytes, stores, sign, half) [number] = {bytes, stores, sign, half, 1, 0},
static const transfer transfers[128] = {TRANSFERS(SHAPE)};

void gather_stored(const wave *w, u32 from, const transfer *t, u32 words[4][LANES]) {
  for (int k = 0; k < (t->bytes + 3) / 4; k++)
    for (int l = 0; l < LANES; l++) words[k][l] = t->half == 2 ? w->v[from + k][l] >> 16 : w->v[from + k][l];
}
void place_loaded(wave *w, u32 to, const transfer *t, u32 mask, u32 words[4][LANES]) {
  if (t->bytes >= 4) {
    for (int k = 0; k < t->bytes / 4; k++) blend(w->v[to + k], words[k], mask);
    return;
  }
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u32 x = words[0][l], *r = &w->v[to][l];
    if (t->bytes == 1) x = t->sign ? (u32)(i32)(i8)x : x & 255;
    else x = t->sign ? (u32)(i32)(i16)x : x & 0xffff;
    if (t->half) *r = t->half == 2 ? (*r & 0xffff) | x << 16 : (*r & 0xffff0000) | (x & 0xffff);
    else *r = x;
  }
}
static void load_words(const u64 *address, u32 mask, u32 bytes, u32 words[4][LANES]) {
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    const u8 *at = (const u8 *)(uintptr_t)address[l];
    if (bytes == 16) {
      u32 four[4];
      memcpy(four, at, 16);
      for (int k = 0; k < 4; k++) words[k][l] = four[k];
    } else if (bytes == 4) memcpy(&words[0][l], at, 4);
    else for (u32 k = 0; k < bytes; k += 4) {
      words[k / 4][l] = 0;
      memcpy(&words[k / 4][l], at + k, bytes - k < 4 ? bytes - k : 4);
    }
  }
}

// ---------------------------------------------------------------- global and flat
static u32 global_addresses(const wave *w, const instruction *i, u64 *address) {
  const u32 *low = w->v[i->source[0]], *high = w->v[i->source[0] + 1];
  u64 base = i->source[2] == NULL_REG ? 0 : scalar_pair(w, i->source[2]);
  for (int l = 0; l < LANES; l++)
    address[l] = (i->source[2] == NULL_REG ? low[l] | (u64)high[l] << 32 : base + low[l]) + (i64)i->offset;
  return w->s[EXEC];
}
static int run_global(wave *w, const instruction *i) {
  const transfer *t = transfers + (i->words[0] >> 18 & 127);
  u64 address[LANES];
  u32 words[4][LANES], mask = global_addresses(w, i, address);
  if (t->stores) gather_stored(w, i->source[1], t, words);
  if (memory_access(w, i, address, mask, t->bytes, t->stores, t->stores ? (const u32(*)[LANES])words : NULL)) return FAULT;
  if (t->stores) return NEXT;
  load_words(address, mask, t->bytes, words);
  place_loaded(w, i->result, t, mask, words);
  return NEXT;
}

#define MEANING(number, name, bytes, meaning) case number: return (meaning);
static u64 atomic_result(u32 number, u64 m, u64 x, u64 y) {
  switch (number) { ATOMICS(MEANING) }
  return m;
}
#undef MEANING
#define WIDTH(number, name, bytes, meaning) [number] = bytes,
static const u8 atomic_bytes[128] = {ATOMICS(WIDTH)};
static u64 register_value(const wave *w, u32 r, int l, u32 bytes) {
  return bytes == 8 ? w->v[r][l] | (u64)w->v[r + 1][l] << 32 : w->v[r][l];
}
static int atomic(wave *w, const instruction *i, const u64 *address, u32 mask, u32 data, u32 result) {
  u32 number = i->words[0] >> 18 & 127, bytes = atomic_bytes[number], returns = i->words[0] >> 14 & 1;
  if (memory_access(w, i, address, mask, bytes, ATOMIC, NULL)) return FAULT;
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u64 old = 0, x = register_value(w, data, l, bytes), y = 0;
    int compares = number == 0x34 || number == 0x42;
    if (compares) y = register_value(w, data + bytes / 4, l, bytes);
    memcpy(&old, (void *)(uintptr_t)address[l], bytes);
    u64 new = atomic_result(number, old, x, y);
    memcpy((void *)(uintptr_t)address[l], &new, bytes);
    if (!returns) continue;
    w->v[result][l] = (u32)old;
    if (bytes == 8) w->v[result + 1][l] = old >> 32;
  }
  return NEXT;
}
static int run_global_atomic(wave *w, const instruction *i) {
  u64 address[LANES];
  u32 mask = global_addresses(w, i, address);
  return atomic(w, i, address, mask, i->source[1], i->result);
}

// ---------------------------------------------------------------- scratch: each lane has its own bytes
static int run_scratch(wave *w, const instruction *i) {
  const transfer *t = transfers + (i->words[0] >> 18 & 127);
  u32 words[4][LANES], mask = w->s[EXEC], uses_vgpr = i->words[1] >> 23 & 1, size = w->launch->scratch_bytes;
  u32 base = (i->source[2] == NULL_REG ? 0 : w->s[i->source[2]]) + (u32)i->offset;
  if (t->stores) gather_stored(w, i->source[1], t, words);
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u32 at = base + (uses_vgpr ? w->v[i->source[0]][l] : 0);
    if ((u64)at + t->bytes > size) return fault(w, i, "scratch byte %u of %u in lane %d", at, size, l);
    u8 *p = w->scratch + (u64)l * size + at;
    for (u32 k = 0; k < t->bytes; k += 4) {
      u32 n = t->bytes - k < 4 ? t->bytes - k : 4;
      if (t->stores) memcpy(p + k, &words[k / 4][l], n);
      else words[k / 4][l] = 0, memcpy(&words[k / 4][l], p + k, n);
    }
  }
  if (!t->stores) place_loaded(w, i->result, t, mask, words);
  return NEXT;
}

// ---------------------------------------------------------------- buffers: a descriptor of base, stride and size
// Addresses of the lanes inside the buffer; the mask of these. Lanes outside load 0 and store nothing.
static u32 buffer_addresses(wave *w, const instruction *i, u32 bytes, u64 *address) {
  const u32 *descriptor = w->s + i->source[2];
  u32 offen = i->words[1] >> 22 & 1, idxen = i->words[1] >> 23 & 1, inside = 0;
  u32 records = descriptor[2], stride = descriptor[1] >> 16 & 0x3fff;
  u64 base = descriptor[0] | (u64)(descriptor[1] & 0xffff) << 32;
  u32 constant = i->source[3] == NULL_REG ? 0 : w->s[i->source[3]];
  for (u32 l = 0; l < LANES; l++) {
    u64 index = idxen ? w->v[i->source[0]][l] : 0;
    // The sum wraps: LLVM folds constants out of offsets that start below zero.
    u64 offset = (u32)i->offset + (offen ? w->v[i->source[0] + idxen][l] : 0);
    int fits = idxen && stride ? index < records && offset + bytes <= stride : offset + constant + bytes <= records;
    address[l] = base + index * stride + offset + constant;
    inside |= (u32)fits << l;
  }
  return inside;
}
static int run_buffer(wave *w, const instruction *i) {
  const transfer *t = transfers + (i->words[0] >> 18 & 127);
  u64 address[LANES];
  u32 words[4][LANES], exec = w->s[EXEC], mask = exec & buffer_addresses(w, i, t->bytes, address);
  // The hardware checks each dword of a wide access; here one that straddles the buffer's end is dropped whole.
  if (!t->stores) memset(words, 0, sizeof words);
  else gather_stored(w, i->source[1], t, words);
  if (memory_access(w, i, address, mask, t->bytes, t->stores, t->stores ? (const u32(*)[LANES])words : NULL)) return FAULT;
  if (t->stores) return NEXT;
  load_words(address, mask, t->bytes, words);
  place_loaded(w, i->source[1], t, exec, words);
  return NEXT;
}
static int run_buffer_atomic(wave *w, const instruction *i) {
  u64 address[LANES];
  u32 mask = w->s[EXEC] & buffer_addresses(w, i, atomic_bytes[i->words[0] >> 18 & 127], address);
  return atomic(w, i, address, mask, i->source[1], i->source[1]);
}
static int run_cache(wave *w, const instruction *i) { (void)w, (void)i; return NEXT; }

// ---------------------------------------------------------------- scalar loads
static int run_scalar_load(wave *w, const instruction *i) {
  u32 words = 1u << (i->words[0] >> 18 & 7);
  u64 address = scalar_pair(w, i->source[0]) + (i64)i->offset;
  if (i->source[3] != NULL_REG) address += w->s[i->source[3]];
  address &= ~3ull;
  if (memory_access_scalar(w, i, address, 4 * words)) return FAULT;
  memcpy(w->s + i->result, (void *)(uintptr_t)address, 4 * words);
  return NEXT;
}
static int run_scalar_buffer_load(wave *w, const instruction *i) {
  u32 words = 1u << (i->words[0] >> 18 & 7);
  const u32 *descriptor = w->s + i->source[0];
  u32 stride = descriptor[1] >> 16 & 0x3fff, loaded[16] = {0};
  u64 base = descriptor[0] | (u64)(descriptor[1] & 0xffff) << 32, size = (u64)descriptor[2] * (stride ? stride : 1);
  u64 offset = ((u64)i->offset + (i->source[3] == NULL_REG ? 0 : w->s[i->source[3]])) & ~3ull;
  for (u32 k = 0; k < words; k++, offset += 4) {
    if (offset + 4 > size) continue;
    if (memory_access_scalar(w, i, base + offset, 4)) return FAULT;
    memcpy(loaded + k, (void *)(uintptr_t)(base + offset), 4);
  }
  memcpy(w->s + i->result, loaded, 4 * words);
  return NEXT;
}

// ---------------------------------------------------------------- tables
#define LOAD_STORE(prefix, function, number, name_, class_load, class_store, stores) \
  [number] = {.name = prefix #name_, .types = "", .run = function, .class = stores ? class_store : class_load},
#define GLOBAL(number, name, bytes, stores, sign, half) \
  LOAD_STORE("global_", run_global, number, name, CLASS_global_load, CLASS_global_store, stores)
#define FLAT(number, name, bytes, stores, sign, half) \
  LOAD_STORE("flat_", run_global, number, name, CLASS_global_load, CLASS_global_store, stores)
#define BUFFER(number, name, bytes, stores, sign, half) \
  LOAD_STORE("buffer_", run_buffer, number, name, CLASS_global_load, CLASS_global_store, stores)
#define SCRATCH(number, name, bytes, stores, sign, half) \
  LOAD_STORE("scratch_", run_scratch, number, name, CLASS_scratch, CLASS_scratch, stores)
#define GLOBAL_ATOMIC(number, name, bytes, meaning) \
  LOAD_STORE("global_", run_global_atomic, number, name, CLASS_global_atomic, CLASS_global_atomic, 0)
#define FLAT_ATOMIC(number, name, bytes, meaning) \
  LOAD_STORE("flat_", run_global_atomic, number, name, CLASS_global_atomic, CLASS_global_atomic, 0)
#define BUFFER_ATOMIC(number, name, bytes, meaning) \
  LOAD_STORE("buffer_", run_buffer_atomic, number, name, CLASS_global_atomic, CLASS_global_atomic, 0)
opcode global_table[128] = {TRANSFERS(GLOBAL) ATOMICS(GLOBAL_ATOMIC)};
opcode flat_table[128] = {TRANSFERS(FLAT) ATOMICS(FLAT_ATOMIC)};
opcode scratch_table[128] = {TRANSFERS(SCRATCH)};
opcode buffer_table[256] = {TRANSFERS(BUFFER) ATOMICS(BUFFER_ATOMIC)  //
  [0x2b] = {.name = "buffer_gl0_inv", .types = "", .run = run_cache, .class = CLASS_wait},
  [0x2c] = {.name = "buffer_gl1_inv", .types = "", .run = run_cache, .class = CLASS_wait}};
#define SCALAR(number, name_, run_) [number] = {.name = name_, .types = "", .run = run_, .class = CLASS_scalar_load},
opcode smem_table[256] = {
  SCALAR(0x00, "s_load_b32", run_scalar_load) SCALAR(0x01, "s_load_b64", run_scalar_load)
  SCALAR(0x02, "s_load_b128", run_scalar_load) SCALAR(0x03, "s_load_b256", run_scalar_load)
  SCALAR(0x04, "s_load_b512", run_scalar_load) SCALAR(0x08, "s_buffer_load_b32", run_scalar_buffer_load)
  SCALAR(0x09, "s_buffer_load_b64", run_scalar_buffer_load) SCALAR(0x0a, "s_buffer_load_b128", run_scalar_buffer_load)
  SCALAR(0x0b, "s_buffer_load_b256", run_scalar_buffer_load) SCALAR(0x0c, "s_buffer_load_b512", run_scalar_buffer_load)
  SCALAR(0x20, "s_gl1_inv", run_cache) SCALAR(0x21, "s_dcache_inv", run_cache)};
