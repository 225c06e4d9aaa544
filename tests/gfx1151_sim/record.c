// The account of launches, copies and fills as JSON, for Python to fetch.
#include "record.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "memory_ops.h"
#include "options.h"
#include "packed.h"
#include "scalar.h"
#include "vector.h"
#define API __attribute__((visibility("default")))

static char *text;
static size_t used, capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void append(const char *format, ...) {
  va_list arguments;
  if (capacity - used < 4096) text = realloc(text, capacity = 2 * capacity + 65536);
  va_start(arguments, format);
  used += (size_t)vsnprintf(text + used, capacity - used, format, arguments);
  va_end(arguments);
}
static void append_quoted(const char *s) {
  append("\"");
  for (; *s; s++) append(*s == '"' || *s == '\\' ? "\\%c" : (u8)*s < 32 ? " " : "%c", *s);
  append("\"");
}
void record_launch(const launch *r, const u32 grid[3], const u32 block[3], u32 lds_bytes) {
  typedef unsigned long long n;
  pthread_mutex_lock(&lock);
  append("%s{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"lds_bytes\": %u", used ? ",\n" : "",
         r->kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], lds_bytes);
  append(", \"load_requested\": %llu, \"store_requested\": %llu, \"load_distinct\": %llu, \"store_distinct\": %llu",
         (n)r->bytes_requested[0], (n)r->bytes_requested[1], (n)r->bytes_distinct[0], (n)r->bytes_distinct[1]);
  append(", \"lds_moved\": %llu, \"uninitialized_bytes\": %llu, \"uninitialized\": ", (n)r->lds_bytes_moved,
         (n)r->uninitialized_bytes);
  append_quoted(r->uninitialized);
  append(", \"fault\": ");
  append_quoted(r->fault);
  append(", \"instructions\": {");
#define X(name) append("%s\"" #name "\": %llu", CLASS_##name ? ", " : "", (n)r->classes[CLASS_##name]);
  CLASSES(X)
#undef X
  append("}}");
  pthread_mutex_unlock(&lock);
}
void record_transfer(const char *kind, u64 bytes) {
  pthread_mutex_lock(&lock);
  append("%s{\"%s\": %llu}", used ? ",\n" : "", kind, (unsigned long long)bytes);
  pthread_mutex_unlock(&lock);
}

// Everything since the last reset, comma separated; the caller adds brackets.
API const char *simulator_records(void) { return used ? text : ""; }
API void simulator_reset(void) {
  pthread_mutex_lock(&lock);
  used = 0;
  pthread_mutex_unlock(&lock);
}
// 0 for an option that is not known.
API int simulator_option(const char *name, i64 value) {
#define OPTION(field) if (!strcmp(name, #field)) { options.field = value; return 1; }
  OPTION(poison) OPTION(wave_order) OPTION(group_order) OPTION(turn) OPTION(most) OPTION(races) OPTION(uninitialized)
  return 0;
}

// Opcode k of all tables: its name and how often it was executed. NULL name: not implemented; returns 0 at the end.
API int simulator_opcode(u32 k, const char **encoding, u32 *number, const char **name, u64 *executed) {
  static const struct { const char *name; opcode *table; u32 size; } tables[] = {
    {"SOP1", sop1_table, 256}, {"SOP2", sop2_table, 128}, {"SOPC", sopc_table, 128}, {"SOPK", sopk_table, 32},
    {"SOPP", sopp_table, 128}, {"VOP1", vop1_table, 256}, {"VOP2", vop2_table, 64}, {"VOP3", vop3_table, 1024},
    {"VOPC", vopc_table, 128}, {"VOP3P", vop3p_table, 128}, {"SMEM", smem_table, 256}, {"DS", lds_table, 256},
    {"GLOBAL", global_table, 128}, {"FLAT", flat_table, 128}, {"SCRATCH", scratch_table, 128}, {"MUBUF", buffer_table, 256}};
  for (u32 t = 0; t < sizeof tables / sizeof *tables; k -= tables[t++].size)
    if (k < tables[t].size) {
      const opcode *op = tables[t].table + k;
      *encoding = tables[t].name, *number = k, *name = op->name, *executed = op->executed;
      return 1;
    }
  return 0;
}
