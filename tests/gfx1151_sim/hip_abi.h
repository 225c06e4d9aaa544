// The part of the HIP runtime's binary interface that hip.c implements, as IREE uses it on x86-64 Linux.
// Numeric values, sizes and offsets are facts of that interface; names follow it where they are part of it.
#pragma once
#include <stddef.h>

// Result codes: name without its prefix "hip", value.
#define HIP_RESULTS(X)                                                                                        \
  X(Success, 0) X(ErrorInvalidValue, 1) X(ErrorOutOfMemory, 2) X(ErrorInvalidConfiguration, 9)                \
  X(ErrorInvalidDevice, 101) X(ErrorInvalidImage, 200) X(ErrorNoBinaryForGpu, 209) X(ErrorInvalidHandle, 400) \
  X(ErrorNotFound, 500) X(ErrorIllegalAddress, 700) X(ErrorLaunchFailure, 719) X(ErrorNotSupported, 801)      \
  X(ErrorUnknown, 999)
// Device attributes without their prefix "hipDeviceAttribute", number, and the value of this device.
#define HIP_ATTRIBUTES(X)                                                                                          \
  X(ConcurrentManagedAccess, 9, 1) X(Integrated, 16, 1) X(ManagedMemory, 24, 1) X(MaxBlockDimX, 26, 1024)          \
  X(MaxBlockDimY, 27, 1024) X(MaxBlockDimZ, 28, 1024) X(MaxThreadsPerBlock, 56, 1024) X(MultiprocessorCount, 63, 20) \
  X(MaxSharedMemoryPerBlock, 74, 65536) X(WarpSize, 87, 32) X(MemoryPoolsSupported, 88, 1)
// Fields of the device properties (the layout of the unversioned hipGetDeviceProperties): name, offset, bytes, and the
// value of this device. The two strings have 256 bytes: the device's name at 0, the architecture's at 396.
#define HIP_PROPERTIES(X)                                                                                           \
  X(totalGlobalMem, 256, 8, 96ull<<30) X(sharedMemPerBlock, 264, 8, 65536) X(regsPerBlock, 272, 4, 196608)          \
  X(warpSize, 276, 4, 32) X(maxThreadsPerBlock, 280, 4, 1024)                                                       \
  X(maxThreadsDim[0], 284, 4, 1024) X(maxThreadsDim[1], 288, 4, 1024) X(maxThreadsDim[2], 292, 4, 1024)             \
  X(maxGridSize[0], 296, 4, 0x7fffffff) X(maxGridSize[1], 300, 4, 65535) X(maxGridSize[2], 304, 4, 65535)           \
  X(clockRate, 308, 4, 2900000) X(memoryClockRate, 312, 4, 1000000) X(memoryBusWidth, 316, 4, 256)                  \
  X(totalConstMem, 320, 8, 0x7fffffff) X(major, 328, 4, 11) X(minor, 332, 4, 5)                                     \
  X(multiProcessorCount, 336, 4, 20) X(l2CacheSize, 340, 4, 2<<20) X(maxThreadsPerMultiProcessor, 344, 4, 2048)     \
  X(canMapHostMemory, 388, 4, 1) X(gcnArch, 392, 4, 1151)                                                           \
  X(integrated, 652, 4, 1) X(managedMemory, 772, 4, 1) X(concurrentManagedAccess, 780, 4, 1)
enum { HIP_PROPERTIES_BYTES = 792, HIP_NAME_OFFSET = 0, HIP_ARCH_OFFSET = 396, HIP_STRING_BYTES = 256 };
// Other numbers.
enum {
  HIP_FUNCTION_MAX_THREADS = 0, HIP_FUNCTION_LDS_BYTES = 1, HIP_FUNCTION_SCRATCH_BYTES = 3,   // function attributes
  HIP_POOL_USED_HIGH = 8  // of memory pools
};
#define HIP_EXTRA_BUFFER ((void*)1)          // launch arguments as a list: 1, buffer, 2, pointer to its size, 3
#define HIP_EXTRA_SIZE ((void*)2)

#define X(name, value) hip##name = value,
typedef enum { HIP_RESULTS(X) } hipError_t;
#undef X
typedef int hipDevice_t;
typedef void* hipDeviceptr_t;
typedef struct hip_context* hipCtx_t;
typedef struct hip_stream* hipStream_t;
typedef struct hip_event* hipEvent_t;
typedef struct hip_pool* hipMemPool_t;
typedef struct hip_module* hipModule_t;
typedef struct hip_function* hipFunction_t;
typedef struct hip_graph* hipGraph_t;
typedef struct hip_graph_exec* hipGraphExec_t;
typedef struct hip_node* hipGraphNode_t;
typedef void (*host_function)(void*);

typedef struct { unsigned x, y, z; } dim3;
typedef struct { char bytes[16]; } device_uuid;
typedef struct { _Alignas(8) char bytes[HIP_PROPERTIES_BYTES]; } device_properties;
