// Allocations, poison, and the bounds, races and bytes of every access.
#include "memory.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "options.h"

enum { GUARD = 4096 };  // bytes around each allocation that belong to none
static allocation *allocations;  // sorted by address
static u64 count, capacity, bytes_live, bytes_peak;
static struct { const u8 *base; u64 bytes; } internal[3];
static pthread_mutex_t lock;
static void __attribute__((constructor)) make_lock(void) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &attributes);
}
void memory_lock(void) { pthread_mutex_lock(&lock); }
void memory_unlock(void) { pthread_mutex_unlock(&lock); }

// ---------------------------------------------------------------- allocations
static u64 first_after(const u8 *address) {  // index of the first allocation whose base is above the address
  u64 low = 0, high = count;
  while (low < high) {
    u64 middle = (low + high) / 2;
    if (allocations[middle].base <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}
static void insert(allocation a) {
  if (count == capacity) allocations = realloc(allocations, (capacity = 2 * capacity + 64) * sizeof *allocations);
  u64 at = first_after(a.base);
  memmove(allocations + at + 1, allocations + at, (count - at) * sizeof *allocations);
  allocations[at] = a;
  count++;
}
static u64 pages(u64 bytes) { return (bytes + 4095) / 4096 * 4096; }

u8 *memory_allocate(u64 bytes, int host_visible) {
  u64 whole = pages(bytes) + 2 * GUARD;
  u8 *base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return NULL;
  base += GUARD;
  memset(base, (int)options.poison, bytes);
  memory_lock();
  insert((allocation){.base = base, .bytes = bytes, .owned = 1, .host_visible = host_visible});
  if ((bytes_live += bytes) > bytes_peak) bytes_peak = bytes_live;
  memory_unlock();
  return base;
}
int memory_register(u8 *base, u64 bytes) {
  memory_lock();
  u64 at = first_after(base);
  int free = (!at || allocations[at - 1].base + allocations[at - 1].bytes <= base) &&
             (at == count || base + bytes <= allocations[at].base);
  if (free) insert((allocation){.base = base, .bytes = bytes, .host_visible = 1});
  memory_unlock();
  return free;
}
static void drop_table(void *table, u64 bytes) {
  if (table) munmap(table, bytes);
}
static u64 written_bytes(const allocation *a) { return a->bytes / 8 + 1; }
static u64 lines_bytes(const allocation *a) { return (a->bytes / LINE + 2) * sizeof(u32); }
static u64 owners_bytes(const allocation *a) { return (a->bytes / 4 + 2) * sizeof(u64); }
int memory_release(u8 *base, int owned) {
  memory_lock();
  u64 at = first_after(base);
  int found = at && allocations[at - 1].base == base && allocations[at - 1].owned == owned;
  if (found) {
    allocation a = allocations[at - 1];
    memmove(allocations + at - 1, allocations + at, (--count - (at - 1)) * sizeof *allocations);
    drop_table(a.written, written_bytes(&a));
    for (int d = 0; d < 2; d++) drop_table(a.lines[d], lines_bytes(&a));
    drop_table(a.owners, owners_bytes(&a));
    if (owned) bytes_live -= a.bytes, munmap(a.base - GUARD, pages(a.bytes) + 2 * GUARD);
  }
  memory_unlock();
  return found;
}
allocation *memory_find(const u8 *address, u64 bytes) {
  u64 at = first_after(address);
  if (!at) return NULL;
  allocation *a = allocations + at - 1;
  return address + bytes <= a->base + a->bytes ? a : NULL;
}
void memory_use(u64 *live, u64 *peak) { *live = bytes_live, *peak = bytes_peak; }
void memory_set_internal(const u8 *base, u64 bytes, int slot) {
  internal[slot].base = base;
  internal[slot].bytes = bytes;
}

// ---------------------------------------------------------------- tables of an allocation
static void *table(void **where, u64 bytes) {
  if (!*where) *where = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *where;
}
static void mark(allocation *a, u64 offset, u64 bytes) {
  if (a->host_visible) return;
  u8 *bits = table((void **)&a->written, written_bytes(a));
  for (; bytes && offset & 7; offset++, bytes--) bits[offset >> 3] |= 1 << (offset & 7);
  memset(bits + (offset >> 3), 255, bytes >> 3);
  for (offset += bytes & ~7ull, bytes &= 7; bytes; offset++, bytes--) bits[offset >> 3] |= 1 << (offset & 7);
}
void memory_mark_written(u8 *address, u64 bytes) {
  memory_lock();
  allocation *a = memory_find(address, bytes);
  if (a) mark(a, address - a->base, bytes);
  memory_unlock();
}
static u32 unwritten(const allocation *a, u64 offset, u32 bytes) {  // how many of these bytes were never written
  if (a->host_visible) return 0;
  if (!a->written) return bytes;
  u32 n = 0;
  if (bytes >= 4 && !(offset & 3)) {
    for (u32 k = 0; k < bytes; k += 4)
      n += 4 - __builtin_popcount(a->written[(offset + k) >> 3] >> ((offset + k) & 7) & 15);
    return n;
  }
  for (u32 k = 0; k < bytes; k++) n += !(a->written[(offset + k) >> 3] >> ((offset + k) & 7) & 1);
  return n;
}
static void touch_lines(allocation *a, launch *r, u64 offset, u64 bytes, int direction) {
  u32 *lines = table((void **)&a->lines[direction], lines_bytes(a));
  u64 start = (u64)(uintptr_t)a->base / LINE, at = (u64)(uintptr_t)a->base + offset;
  for (u64 line = at / LINE - start; line <= (at + bytes - 1) / LINE - start; line++)
    if (lines[line] != r->epoch) {
      lines[line] = r->epoch;
      r->bytes_distinct[direction] += LINE;
    }
}
static int line_was_stored(const allocation *a, const launch *r, u64 offset) {
  u64 at = (u64)(uintptr_t)a->base + offset;
  return a->lines[STORE] && a->lines[STORE][at / LINE - (u64)(uintptr_t)a->base / LINE] == r->epoch;
}

// ---------------------------------------------------------------- races
// Who stored a word: launch (20 bits), barriers passed (12), workgroup (24), wave (6), atomic (1).
static u64 owner_of(const wave *w, int kind) {
  return (u64)(w->launch->epoch & 0xfffff) << 44 | (u64)(w->group->barriers & 0xfff) << 32 |
         (u64)(w->group->index & 0xffffff) << 8 | (u64)w->index << 1 | (kind == ATOMIC);
}
// Whether a wave may not rely on what `old` did: another wave, without a barrier between them.
static int unordered(u64 old, u64 new) {
  if (!options.races || old >> 44 != new >> 44 || (old & 1 && new & 1)) return 0;
  u64 old_group = old >> 8 & 0xffffff, new_group = new >> 8 & 0xffffff;
  if (old_group != new_group) return 1;
  return (old >> 1 & 0x7f) != (new >> 1 & 0x7f) && (old >> 32 & 0xfff) == (new >> 32 & 0xfff);
}
static int race(wave *w, const instruction *i, const allocation *a, u64 offset, u64 old, const char *what) {
  return fault(w, i, "race: it %s byte %llu of an allocation of %llu, which wave %u of workgroup %u stored in the same launch "
               "with no barrier between them", what, (unsigned long long)offset, (unsigned long long)a->bytes,
               (u32)(old >> 1 & 0x7f), (u32)(old >> 8 & 0xffffff));
}
static int check_store(wave *w, const instruction *i, allocation *a, u64 offset, u32 bytes, int kind, const u32 *words) {
  u64 *owners = table((void **)&a->owners, owners_bytes(a)), me = owner_of(w, kind);
  for (u32 k = 0; k < bytes; k += 4) {
    u64 *owner = owners + (offset + k) / 4;
    u32 n = bytes - k < 4 ? bytes - k : 4;
    // Bytes of one word may belong to several waves: only 4-byte stores are compared.
    int differs = kind == ATOMIC || !words || memcmp(a->base + offset + k, words + k / 4, n);
    if (n == 4 && differs && unordered(*owner, me)) return race(w, i, a, offset + k, *owner, "stores another value to");
    *owner = me;
  }
  return NEXT;
}
static int check_load(wave *w, const instruction *i, const allocation *a, u64 offset, u32 bytes) {
  if (!line_was_stored(a, w->launch, offset) && !line_was_stored(a, w->launch, offset + bytes - 1)) return NEXT;
  u64 me = owner_of(w, LOAD);
  if (bytes < 4) return NEXT;
  for (u32 k = 0; k < bytes; k += 4) {
    u64 owner = a->owners[(offset + k) / 4];
    if (unordered(owner, me)) return race(w, i, a, offset + k, owner, "loads");
  }
  return NEXT;
}

// ---------------------------------------------------------------- accesses
static int is_internal(u64 address, u64 bytes) {
  for (int k = 0; k < 3; k++)
    if (address >= (u64)(uintptr_t)internal[k].base && address + bytes <= (u64)(uintptr_t)internal[k].base + internal[k].bytes)
      return 1;
  return 0;
}
static int outside(wave *w, const instruction *i, u64 address, u32 bytes, int kind) {
  const allocation *near = NULL;
  u64 distance = ~0ull;
  for (u64 k = 0; k < count; k++) {
    u64 base = (u64)(uintptr_t)allocations[k].base, end = base + allocations[k].bytes;
    u64 d = address < base ? base - address : address >= end ? address - end : 0;
    if (d < distance) distance = d, near = allocations + k;
  }
  const char *what = kind == LOAD ? "loads" : "stores";
  if (!near) return fault(w, i, "%s %u bytes at %#llx: there is no allocation", what, bytes, (unsigned long long)address);
  return fault(w, i, "%s %u bytes at %#llx, outside every allocation; the nearest has %llu bytes, the access is at byte %lld of it",
               what, bytes, (unsigned long long)address, (unsigned long long)near->bytes,
               (long long)(address - (u64)(uintptr_t)near->base));
}
static void note_uninitialized(wave *w, const instruction *i, const allocation *a, u64 offset, u32 bytes) {
  if (!w->launch->uninitialized_bytes)
    snprintf(w->launch->uninitialized, sizeof w->launch->uninitialized,
             "%s, code offset %#tx, workgroup %u, wave %u: byte %llu of an allocation of %llu", i->op->name,
             (i - w->launch->table) * 4, w->group->index, w->index, (unsigned long long)offset, (unsigned long long)a->bytes);
  w->launch->uninitialized_bytes += bytes;
}
// A range of an allocation, for bytes that are read or written once each.
static int access_range(wave *w, const instruction *i, allocation *a, u64 offset, u32 bytes, int kind, const u32 *words) {
  launch *r = w->launch;
  if (kind != STORE) {
    if (kind == LOAD && check_load(w, i, a, offset, bytes)) return FAULT;
    u32 missing = unwritten(a, offset, bytes);
    if (missing) note_uninitialized(w, i, a, offset, missing);
    touch_lines(a, r, offset, bytes, LOAD);
    r->bytes_requested[LOAD] += bytes;
  }
  if (kind != LOAD) {
    if (check_store(w, i, a, offset, bytes, kind, words)) return FAULT;
    touch_lines(a, r, offset, bytes, STORE);
    mark(a, offset, bytes);
    r->bytes_requested[STORE] += bytes;
  }
  return NEXT;
}
// Lanes that load consecutive places, as most do, are one range. Returns 1 when that was so.
static int access_consecutive(wave *w, const instruction *i, const u64 *address, u32 mask, u32 bytes) {
  u32 first = (u32)__builtin_ctz(mask), lanes = (u32)__builtin_popcount(mask);
  if (mask >> first != (lanes == 32 ? ~0u : (1u << lanes) - 1)) return 0;
  for (u32 l = first; l < first + lanes; l++)
    if (address[l] != address[first] + (l - first) * bytes) return 0;
  allocation *a = memory_find((u8 *)(uintptr_t)address[first], lanes * bytes);
  if (!a) return 0;
  return access_range(w, i, a, address[first] - (u64)(uintptr_t)a->base, lanes * bytes, LOAD, NULL) ? -1 : 1;
}
int memory_access(wave *w, const instruction *i, const u64 *address, u32 mask, u32 bytes, int kind,
                  const u32 (*stored)[LANES]) {
  if (!mask) return NEXT;
  u32 unit = bytes >= 4 ? 4 : bytes;
  if (kind == ATOMIC) unit = bytes;
  allocation *a = NULL;
  for (int l = 0; l < LANES; l++)
    if (mask >> l & 1 && address[l] % unit)
      return fault(w, i, "misaligned: %u bytes at %#llx in lane %d", bytes, (unsigned long long)address[l], l);
  if (kind == LOAD && unit == 4) {
    int done = access_consecutive(w, i, address, mask, bytes);
    if (done) return done < 0 ? FAULT : NEXT;
  }
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u8 *at = (u8 *)(uintptr_t)address[l];
    u32 words[4] = {0};
    if (!a || at < a->base || at + bytes > a->base + a->bytes) a = memory_find(at, bytes);
    if (!a && kind == LOAD && is_internal(address[l], bytes)) continue;
    if (!a) return outside(w, i, address[l], bytes, kind);
    for (u32 k = 0; stored && k < (bytes + 3) / 4; k++) words[k] = stored[k][l];
    if (access_range(w, i, a, at - a->base, bytes, kind, stored ? words : NULL)) return FAULT;
    // Later lanes of this store must see what this lane writes, for their comparison.
    if (stored && kind == STORE) memcpy(at, words, bytes);
  }
  return NEXT;
}
int memory_access_scalar(wave *w, const instruction *i, u64 address, u32 bytes) {
  if (is_internal(address, bytes)) return NEXT;
  allocation *a = memory_find((u8 *)(uintptr_t)address, bytes);
  if (!a) return outside(w, i, address, bytes, LOAD);
  return access_range(w, i, a, address - (u64)(uintptr_t)a->base, bytes, LOAD, NULL);
}
