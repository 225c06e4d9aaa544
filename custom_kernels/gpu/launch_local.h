// Local memory that a launch gives (Launch.local_memory), beside what a kernel names. AMD's kernels have none.
#pragma once

#include "device.h"

inline constexpr u32 LAUNCH_LOCAL = 98 * 1024;  // bytes: what a workgroup can have on every NVIDIA GPU

#if defined(__NVPTX__)
extern "C" LOCAL u32x4 strixhlo_local[];
DEVICE LOCAL u32x4* launch_local() { return strixhlo_local; }
#else
struct LaunchLocal {
  LOCAL_ARRAY static inline u32x4 of[LAUNCH_LOCAL / 16];
};
DEVICE LOCAL u32x4* launch_local() { return LaunchLocal::of; }
#endif
