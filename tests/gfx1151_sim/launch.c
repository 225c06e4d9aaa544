// A launch: workgroups one after the other, the waves of each in turns, and the account of what they did.
#include "launch.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "memory.h"
#include "options.h"
#include "record.h"

simulator_options options = {.poison = 0xff, .most = 1ll << 32, .races = 1};
static lds_shadow shadow[65536 / 4];
static u32 barriers;  // passed in all launches, so that every stretch between two has its own number

static u32 next_stretch(void) {
  if (!(++barriers & 0xfffff)) memset(shadow, 0, sizeof shadow);  // it keeps 20 bits of the number
  return barriers;
}

int fault(wave *w, const instruction *i, const char *format, ...) {
  const u32 *n = w->group->number;
  launch *r = w->launch;
  // An instruction outside the table is a copy: the program counter is behind it then.
  u32 at = i >= r->table && i < r->table + r->code_words ? (u32)(i - r->table) : w->pc;
  int used = snprintf(r->fault, sizeof r->fault, "kernel %s, %s at code offset %#x, workgroup (%u, %u, %u), wave %u: ",
                      r->kernel, i->op->name, at * 4, n[0], n[1], n[2], w->index);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(r->fault + used, sizeof r->fault - used, format, arguments);
  va_end(arguments);
  return FAULT;
}

// ---------------------------------------------------------------- waves
static void fill_constants(wave *w) {
  static const float floats[9] = {0.5f, -0.5f, 1, -1, 2, -2, 4, -4, 0.15915494f};
  for (u32 k = 0; k <= 64; k++) w->s[128 + k] = k;
  for (u32 k = 1; k <= 16; k++) w->s[192 + k] = -k;
  for (u32 k = 0; k < 9; k++) w->s[240 + k] = float_bits(floats[k]);
  w->s[NULL_REG] = 0;
}
// SGPRs in the order of the AMDGPU ABI, the packed index of the thread in v0, poison elsewhere.
static void start_wave(wave *w, const kernel *k, const u32 block[3], const u8 *arguments, const u8 *packet) {
  u32 threads = block[0] * block[1] * block[2], first = w->index * LANES, n = 0;
  memset(w->s, (int)options.poison, sizeof w->s);
  memset(w->v, (int)options.poison, sizeof w->v);
  if (w->launch->scratch_bytes) memset(w->scratch, (int)options.poison, (u64)w->launch->scratch_bytes * LANES);
  fill_constants(w);
  const u64 pointers[6] = {0, (u64)(uintptr_t)packet, 0, (u64)(uintptr_t)arguments, 0, 0};
  if (k->properties & 1) n += 4;
  for (u32 p = 1; p < 6; p++)
    if (k->properties >> p & 1) w->s[n] = (u32)pointers[p], w->s[n + 1] = pointers[p] >> 32, n += 2;
  if (k->properties >> 6 & 1) w->s[n++] = k->scratch_bytes;
  memcpy(w->s + n, arguments + 4 * (k->preload >> 7), 4 * (k->preload & 127));
  n = k->rsrc2 >> 1 & 31;
  for (u32 d = 0; d < 3; d++)
    if (k->rsrc2 >> (7 + d) & 1) w->s[n++] = w->group->number[d];
  w->s[EXEC] = threads - first >= LANES ? ~0u : (1u << (threads - first)) - 1;
  for (u32 l = 0; l < LANES; l++) {
    u32 t = first + l;
    w->v[0][l] = t % block[0] | t / block[0] % block[1] << 10 | t / block[0] / block[1] << 20;
  }
  w->scc = 0, w->pc = k->entry, w->ended = w->waiting = 0;
  w->flush = (k->rsrc1 >> 16 & 3) == 0;
}
static int run_wave(wave *w, u64 turn) {
  launch *r = w->launch;
  for (u64 k = 0; k < turn; k++) {
    u32 pc = w->pc;
    if (pc >= r->code_words) {
      snprintf(r->fault, sizeof r->fault, "kernel %s: the program counter is outside the code: %#x", r->kernel, pc * 4);
      return FAULT;
    }
    const instruction *i = r->table + pc;
    if (!i->run && decode(w, pc)) return FAULT;
    w->pc = pc + i->words_used;
    r->classes[i->class]++;
    i->op->executed++;
    int stop = i->run(w, i);
    if (stop) return stop;
  }
  return OUT_OF_TURN;
}
// One turn of every wave that can run; *running says whether one still can.
static int run_turns(wave *waves, u32 count, u64 *executed, int *running) {
  u64 turn = options.turn ? (u64)options.turn : (u64)options.most;
  *running = 0;
  for (u32 k = 0; k < count; k++) {
    u32 at = options.wave_order ? count - 1 - k : k;
    wave *w = waves + at;
    if (w->ended || w->waiting) continue;
    int stop = run_wave(w, turn);
    if (stop == FAULT) return FAULT;
    if (stop != OUT_OF_TURN) continue;
    *running = 1;
    if ((executed[at] += turn) < (u64)options.most) continue;
    snprintf(w->launch->fault, sizeof w->launch->fault, "kernel %s: a wave ran %lld instructions without an end or barrier",
             w->launch->kernel, (long long)options.most);
    return FAULT;
  }
  return NEXT;
}
static int run_workgroup(wave *waves, u32 count) {
  u64 executed[32] = {0};
  for (;;) {
    int running, ended = 1;
    if (run_turns(waves, count, executed, &running)) return FAULT;
    if (running) continue;
    for (u32 k = 0; k < count; k++) ended &= waves[k].ended != 0, waves[k].waiting = 0;
    waves[0].group->barriers = next_stretch();
    memset(executed, 0, sizeof executed);
    if (ended) return NEXT;
  }
}

// ---------------------------------------------------------------- grids
static u32 ordered(u32 k, u32 count) {
  if (options.group_order == 1) return count - 1 - k;
  if (options.group_order != 2) return k;
  // A permutation: multiply by a number that shares no factor with the count.
  u32 step = 2654435761u % count;
  for (;; step++) {
    u32 a = step, b = count;
    while (b) { u32 t = a % b; a = b; b = t; }
    if (a == 1) return (u32)(((u64)k * step + count / 3) % count);
  }
}
static int run_grid(launch *r, const kernel *k, const u32 grid[3], const u32 block[3], const u8 *arguments,
                    const u8 *packet, u32 lds_bytes) {
  static wave waves[32];
  static u8 lds[65536];
  static u8 *scratch;
  u32 count = (block[0] * block[1] * block[2] + LANES - 1) / LANES, total = grid[0] * grid[1] * grid[2];
  workgroup group = {.lds = lds, .shadow = shadow, .lds_bytes = lds_bytes};
  if (r->scratch_bytes) scratch = realloc(scratch, (u64)r->scratch_bytes * LANES * count);
  for (u32 n = 0; n < total; n++) {
    group.index = ordered(n, total);
    group.number[0] = group.index % grid[0];
    group.number[1] = group.index / grid[0] % grid[1];
    group.number[2] = group.index / grid[0] / grid[1];
    group.barriers = next_stretch();
    memset(lds, (int)options.poison, lds_bytes);
    for (u32 i = 0; i < count; i++) {
      waves[i].launch = r, waves[i].group = &group, waves[i].index = i;
      waves[i].scratch = scratch + (u64)r->scratch_bytes * LANES * i;
      start_wave(waves + i, k, block, arguments, packet);
    }
    if (run_workgroup(waves, count)) return FAULT;
  }
  return NEXT;
}
static const char *check_kernel(const kernel *k) {
  if (!(k->properties >> 10 & 1)) return "it is a wave64 kernel; only wave32 is simulated";
  if (k->rsrc1 >> 12 & 15) return "only rounding to nearest even is simulated";
  if ((k->rsrc1 >> 18 & 3) != 3) return "flushing float16 and float64 denormals is not simulated";
  u32 denormals = k->rsrc1 >> 16 & 3;
  return denormals == 0 || denormals == 3 ? NULL : "flushing denormals on one side only is not simulated";
}
int run_launch(const kernel *k, const u32 grid[3], const u32 block[3], u32 dynamic_lds, const u8 *arguments,
               const char **reason) {
  static u32 epoch;
  static launch r;
  static u8 packet[64];
  memory_lock();
  r = (launch){.kernel = k->name, .code = k->object->code, .table = k->object->table, .code_words = k->object->code_words,
               .scratch_bytes = k->scratch_bytes, .epoch = ++epoch};
  u16 header[6] = {0, 3, (u16)block[0], (u16)block[1], (u16)block[2], 0};
  u32 sizes[5] = {grid[0] * block[0], grid[1] * block[1], grid[2] * block[2], k->scratch_bytes, k->lds_bytes + dynamic_lds};
  memcpy(packet, header, 12);
  memcpy(packet + 12, sizes, 20);
  memory_set_internal(k->object->code, 4ull * k->object->code_words, 0);
  memory_set_internal(arguments, (k->argument_bytes + 127) & ~63ull, 1);  // scalar loads of the last ones may be wider
  memory_set_internal(packet, sizeof packet, 2);
  const char *refused = check_kernel(k);
  if (refused) snprintf(r.fault, sizeof r.fault, "kernel %s: %s", k->name, refused);
  int stop = refused ? FAULT : run_grid(&r, k, grid, block, arguments, packet, k->lds_bytes + dynamic_lds);
  if (!stop && options.uninitialized && r.uninitialized_bytes) {
    snprintf(r.fault, sizeof r.fault, "kernel %s reads %llu bytes of uninitialized memory, first: %s", k->name,
             (unsigned long long)r.uninitialized_bytes, r.uninitialized);
    stop = FAULT;
  }
  record_launch(&r, grid, block, k->lds_bytes + dynamic_lds);
  memory_unlock();
  *reason = r.fault;
  return stop;
}
