// Running a kernel over a grid.
#pragma once
#include "code_object.h"

// All workgroups, one after the other. 0, or FAULT with the reason in *reason.
int run_launch(const kernel *k, const u32 grid[3], const u32 block[3], u32 dynamic_lds, const u8 *arguments,
               const char **reason);
