// Local memory that a launch gives (Launch.local_memory), beside what a kernel names. AMD's kernels have none.
#pragma once

#include "device.h"

#if defined(__NVPTX__)
extern "C" LOCAL u32x4 strixhlo_local[];
template <u32>
DEVICE LOCAL u32x4* launch_local() { return strixhlo_local; }
#else
template <u32 BYTES>
struct LaunchLocal {
  LOCAL_ARRAY static inline u32x4 of[BYTES / 16];
};
template <u32 BYTES>
DEVICE LOCAL u32x4* launch_local() { return LaunchLocal<BYTES>::of; }
#endif
