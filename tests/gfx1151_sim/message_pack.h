// Reading MessagePack in place: maps, arrays, strings, integers. A value is a pointer to its first byte.
#pragma once
#include "machine.h"

static inline u64 message_number(const u8 *p, int bytes) {
  u64 x = 0;
  for (int k = 0; k < bytes; k++) x = x << 8 | p[k];
  return x;
}
// Bytes of the header, of a string's content, and the number of values inside.
typedef struct { u32 header, content; u64 values; } message_shape;
static inline message_shape message_shape_of(const u8 *p) {
  u8 tag = *p;
  if (tag < 0x80 || tag >= 0xe0) return (message_shape){1, 0, 0};
  if (tag < 0x90) return (message_shape){1, 0, 2 * (u64)(tag & 15)};
  if (tag < 0xa0) return (message_shape){1, 0, tag & 15};
  if (tag < 0xc0) return (message_shape){1, tag & 31, 0};
  if (tag <= 0xc3) return (message_shape){1, 0, 0};
  if (tag >= 0xc4 && tag <= 0xc6) return (message_shape){1 + (1 << (tag - 0xc4)), (u32)message_number(p + 1, 1 << (tag - 0xc4)), 0};
  if (tag >= 0xca && tag <= 0xcb) return (message_shape){1, tag == 0xca ? 4 : 8, 0};
  if (tag >= 0xcc && tag <= 0xcf) return (message_shape){1, 1u << (tag - 0xcc), 0};
  if (tag >= 0xd0 && tag <= 0xd3) return (message_shape){1, 1u << (tag - 0xd0), 0};
  if (tag >= 0xd9 && tag <= 0xdb) return (message_shape){1 + (1 << (tag - 0xd9)), (u32)message_number(p + 1, 1 << (tag - 0xd9)), 0};
  if (tag == 0xdc || tag == 0xdd) return (message_shape){tag == 0xdc ? 3 : 5, 0, message_number(p + 1, tag == 0xdc ? 2 : 4)};
  if (tag == 0xde || tag == 0xdf) return (message_shape){tag == 0xde ? 3 : 5, 0, 2 * message_number(p + 1, tag == 0xde ? 2 : 4)};
  return (message_shape){1, 0, 0};
}
static inline const u8 *message_skip(const u8 *p) {
  message_shape s = message_shape_of(p);
  p += s.header + s.content;
  for (u64 k = 0; k < s.values; k++) p = message_skip(p);
  return p;
}
static inline int message_is(const u8 *p, const char *text) {
  message_shape s = message_shape_of(p);
  return strlen(text) == s.content && !memcmp(p + s.header, text, s.content);
}
// The value of a key in a map, NULL when it has none.
static inline const u8 *message_get(const u8 *map, const char *key) {
  message_shape s = message_shape_of(map);
  const u8 *p = map + s.header;
  for (u64 k = 0; k < s.values / 2; k++) {
    const u8 *value = message_skip(p);
    if (message_is(p, key)) return value;
    p = message_skip(value);
  }
  return NULL;
}
static inline u64 message_integer(const u8 *p) {
  if (!p) return 0;
  return *p < 0x80 ? *p : message_number(p + 1, (int)message_shape_of(p).content);
}
