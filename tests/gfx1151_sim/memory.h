// Device memory: host memory in live allocations, each access checked against them and counted.
#pragma once
#include "machine.h"

enum { LOAD = 0, STORE = 1, ATOMIC = 2 };
enum { LINE = 64 };

// One allocation. The tables are made when first needed; pages of them that are never touched cost nothing.
typedef struct {
  u8 *base;
  u64 bytes;
  int owned;         // ours to free; else registered host memory
  int host_visible;  // the host may write it without our seeing that: all of it counts as initialized
  u8 *written;       // a bit for each byte: written since the allocation
  u32 *lines[2];     // for each 64-byte line, the last launch that loaded or stored it
  u64 *owners;       // for each 4-byte word, who stored it last (see owner_of)
} allocation;

// A new allocation filled with poison; NULL when there is no memory. Freeing and registering say 0 for a wrong address.
u8 *memory_allocate(u64 bytes, int host_visible);
int memory_register(u8 *base, u64 bytes);
int memory_release(u8 *base, int owned);
// The allocation that holds [address, address + bytes); NULL when there is none.
allocation *memory_find(const u8 *address, u64 bytes);
void memory_mark_written(u8 *address, u64 bytes);
void memory_use(u64 *live, u64 *peak);
void memory_lock(void);
void memory_unlock(void);

// Internal memory of a launch (kernel arguments and the like), readable and not counted.
void memory_set_internal(const u8 *base, u64 bytes, int slot);

// Checks and counts one access of a wave: for each lane of the mask, `bytes` at address[lane]. FAULT outside
// allocations, when misaligned, and for a race. stored: the words that a store writes; they are written here, lane by
// lane, since a store is a race only when it changes what another wave stored.
int memory_access(wave *w, const instruction *i, const u64 *address, u32 mask, u32 bytes, int kind,
                  const u32 (*stored)[LANES]);
// One access that is the same for the whole wave.
int memory_access_scalar(wave *w, const instruction *i, u64 address, u32 bytes);
