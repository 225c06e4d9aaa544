// A place for activations that have been prepared, for as many weights as take the same.
#pragma once
#include "vector.h"

// Whoever has it must not change the activations as long as it is there, or forget them.
struct RowStore {
  alignas(64) uint8_t rows[24 * 1024 + 64];  // most of the first cache
  const void* x = nullptr;
  int kind = 0;

  INLINE_MEMBER bool has(const void* of, int of_kind) const { return x == of && kind == of_kind; }
  INLINE_MEMBER void keep(const void* of, int of_kind) { x = of, kind = of_kind; }
  INLINE_MEMBER void forget() { x = nullptr; }
};
