// Stripes of 16 weight rows, those of a workgroup, and its local memory: see stripes.h.
#pragma once

#include "device.h"
#include "launch_local.h"
#include "weights.h"

inline constexpr u32 STRIPE = 16, PIECE = 128, BLOCK = 32, BLOCKS = PIECE / BLOCK;
// Bytes of local memory of a workgroup: what every NVIDIA GPU has for two of them, and of a deep one, what an H100 has.
inline constexpr u32 STRIPE_LOCAL = 98 * 1024, DEEP_STRIPE_LOCAL = 226 * 1024;

// The rows of a stripe: [low_first, low_end) of `low` in its rows 0 to 7, of `high` in its rows 8 to 15, as far as
// there.
template <class W>
struct StripeRows {
  W low, high;
  u32 low_first, low_end, high_first, high_end;
  // Row `row` of the stripe, in its tensor; where there is none, one that is there.
  MEMBER u32 in_tensor(u32 row) const {
    return row < 8 ? smaller(low_first + row, low_end - 1) : smaller(high_first + row - 8, high_end - 1);
  }
};

// The share of one of `workgroups`, of this one if nothing is said, of `count` neighbouring things: those of the first,
// which run on different multiprocessors, may be one more.
struct StripeShare {
  u32 begin, end;

  MEMBER StripeShare(u32 count, u32 workgroups, u32 id = workgroup_id()) {
    const u32 each = count / workgroups, more = count % workgroups;
    begin = id * each + smaller(id, more);
    end = begin + each + (id < more);
  }
};
