// The account of launches, copies and fills as JSON.
#pragma once
#include "machine.h"
void record_launch(const launch *r, const u32 grid[3], const u32 block[3], u32 lds_bytes);
void record_transfer(const char *kind, u64 bytes);
