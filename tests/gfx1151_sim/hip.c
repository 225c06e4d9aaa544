// A libamdhip64.so of one simulated gfx1151: the HIP functions that IREE's HIP driver resolves. Host memory serves as
// device memory, streams run at once and in order, and events are always complete.
#define _GNU_SOURCE
#include "hip_abi.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "launch.h"
#include "memory.h"
#include "record.h"
#define API __attribute__((visibility("default")))

// ---------------------------------------------------------------- errors
static __thread char error_text[2048];  // of the last failure; replaces the generic text
static __thread hipError_t last_error;

static hipError_t fail(hipError_t e, const char *format, ...) {
  va_list a;
  va_start(a, format);
  vsnprintf(error_text, sizeof error_text, format, a);
  va_end(a);
  fprintf(stderr, "gfx1151 simulator: %s\n", error_text);
  return last_error = e;
}
API const char *hipGetErrorName(hipError_t e) {
  switch (e) {
#define X(name, value) \
  case hip##name: return "hip" #name;
    HIP_RESULTS(X)
#undef X
    default: return "hipErrorUnknown";
  }
}
API const char *hipGetErrorString(hipError_t e) {
  return e && e == last_error && error_text[0] ? error_text : hipGetErrorName(e);
}
API hipError_t hipGetLastError(void) {
  hipError_t e = last_error;
  last_error = hipSuccess;
  return e;
}
API hipError_t hipPeekAtLastError(void) { return last_error; }
// Functions that need to do nothing here, and functions that IREE resolves but does not need.
#define ACCEPT(name, ...) \
  API hipError_t name(__VA_ARGS__) { return hipSuccess; }
#define REFUSE(name, ...) \
  API hipError_t name(__VA_ARGS__) { return fail(hipErrorNotSupported, #name " is not simulated"); }

// ---------------------------------------------------------------- memory
static const size_t DEVICE_MEMORY = 96ull << 30;
static hipError_t allocate(void **p, size_t n, int host_visible) {
  *p = NULL;
  if (!n) return hipSuccess;
  if (n > DEVICE_MEMORY || !(*p = memory_allocate(n, host_visible)))
    return fail(hipErrorOutOfMemory, "cannot allocate %zu bytes", n);
  return hipSuccess;
}
static hipError_t release(void *p) {
  if (!p || memory_release(p, 1)) return hipSuccess;
  return fail(hipErrorInvalidValue, "%p is not a live allocation", p);
}
API hipError_t hipMalloc(void **p, size_t n) { return allocate(p, n, 0); }
API hipError_t hipMallocManaged(void **p, size_t n, unsigned flags) { return allocate(p, n, 1); }
API hipError_t hipMallocAsync(void **p, size_t n, hipStream_t s) { return allocate(p, n, 0); }
API hipError_t hipMallocFromPoolAsync(void **p, size_t n, hipMemPool_t pool, hipStream_t s) { return allocate(p, n, 0); }
API hipError_t hipHostMalloc(void **p, size_t n, unsigned flags) { return allocate(p, n, 1); }
API hipError_t hipFree(void *p) { return release(p); }
API hipError_t hipFreeAsync(void *p, hipStream_t s) { return release(p); }
API hipError_t hipHostFree(void *p) { return release(p); }
API hipError_t hipHostRegister(void *p, size_t n, unsigned flags) {
  return memory_register(p, n) ? hipSuccess : fail(hipErrorInvalidValue, "%p is registered already", p);
}
API hipError_t hipHostUnregister(void *p) {
  return memory_release(p, 0) ? hipSuccess : fail(hipErrorInvalidValue, "%p is not registered", p);
}
API hipError_t hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
  *device = host;
  return hipSuccess;
}
API hipError_t hipMemGetInfo(size_t *available, size_t *total) {
  u64 live, peak;
  memory_use(&live, &peak);
  *total = DEVICE_MEMORY, *available = *total - live;
  return hipSuccess;
}
API void simulator_memory_use(u64 *live, u64 *peak) { memory_use(live, peak); }
ACCEPT(hipMemPrefetchAsync, const void *p, size_t n, int device, hipStream_t s)
API hipError_t hipMemPoolCreate(hipMemPool_t *p, const void *properties) {
  *p = (hipMemPool_t)1;
  return hipSuccess;
}
ACCEPT(hipMemPoolDestroy, hipMemPool_t p)
ACCEPT(hipMemPoolTrimTo, hipMemPool_t p, size_t n)
ACCEPT(hipMemPoolSetAttribute, hipMemPool_t p, int attribute, void *value)
API hipError_t hipMemPoolGetAttribute(hipMemPool_t p, int attribute, void *value) {
  u64 live, peak;
  memory_use(&live, &peak);
  *(u64 *)value = attribute == HIP_POOL_USED_HIGH ? peak : 0;
  return hipSuccess;
}
static hipError_t copy(void *to, const void *from, size_t n) {
  memmove(to, from, n);
  memory_mark_written(to, n);
  record_transfer("copy", n);
  return hipSuccess;
}
API hipError_t hipMemcpy(void *d, const void *s, size_t n, int kind) { return copy(d, s, n); }
API hipError_t hipMemcpyAsync(void *d, const void *s, size_t n, int kind, hipStream_t q) { return copy(d, s, n); }
API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t d, void *s, size_t n, hipStream_t q) { return copy(d, s, n); }
static hipError_t fill(void *to, unsigned value, size_t n, int width) {  // n elements of width bytes
  for (size_t i = 0; i < n; i++) memcpy((char *)to + i * width, &value, width);
  memory_mark_written(to, n * width);
  record_transfer("fill", n * width);
  return hipSuccess;
}
API hipError_t hipMemset(void *d, int v, size_t n) { return fill(d, v, n, 1); }
#define FILL(name, type, width) \
  API hipError_t name(void *d, type v, size_t n, hipStream_t s) { return fill(d, v, n, width); }
FILL(hipMemsetAsync, int, 1)
FILL(hipMemsetD8Async, unsigned char, 1)
FILL(hipMemsetD16Async, unsigned short, 2)
FILL(hipMemsetD32Async, int, 4)

// ---------------------------------------------------------------- device, contexts, streams, events
#define DEVICE_NAME "simulated gfx1151"
static char handle;  // there is one integrated device; this address serves as context, stream and event
ACCEPT(hipInit, unsigned flags)
API hipError_t hipGetDeviceCount(int *n) {
  *n = 1;
  return hipSuccess;
}
API hipError_t hipDeviceGet(hipDevice_t *d, int i) {
  *d = 0;
  return i ? fail(hipErrorInvalidDevice, "device %d: there is one, 0", i) : hipSuccess;
}
ACCEPT(hipSetDevice, int d)
API hipError_t hipDeviceGetName(char *s, int n, hipDevice_t d) {
  snprintf(s, n, DEVICE_NAME);
  return hipSuccess;
}
API hipError_t hipDeviceGetUuid(device_uuid *u, hipDevice_t d) {
  memcpy(u->bytes, "gfx1151-simulat\0", 16);
  return hipSuccess;
}
API hipError_t hipDeviceCanAccessPeer(int *can, int a, int b) {
  *can = 0;
  return hipSuccess;
}
REFUSE(hipDeviceEnablePeerAccess, int peer, unsigned flags)
API hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *c, hipDevice_t d) {
  *c = (hipCtx_t)&handle;
  return hipSuccess;
}
ACCEPT(hipDevicePrimaryCtxRelease, hipDevice_t d)
ACCEPT(hipCtxSetCurrent, hipCtx_t c)
ACCEPT(hipCtxPushCurrent, hipCtx_t c)
API hipError_t hipCtxPopCurrent(hipCtx_t *c) {
  if (c) *c = (hipCtx_t)&handle;
  return hipSuccess;
}
API hipError_t hipCtxGetCurrent(hipCtx_t *c) {
  *c = (hipCtx_t)&handle;
  return hipSuccess;
}
API hipError_t hipGetDeviceProperties(device_properties *p, int d) {
  memset(p, 0, sizeof *p);
  snprintf(p->bytes + HIP_NAME_OFFSET, HIP_STRING_BYTES, DEVICE_NAME);
  snprintf(p->bytes + HIP_ARCH_OFFSET, HIP_STRING_BYTES, "gfx1151");
#define X(name, offset, size, value) { u64 v = value; memcpy(p->bytes + offset, &v, size); }
  HIP_PROPERTIES(X)
#undef X
  return hipSuccess;
}
API hipError_t hipDeviceGetAttribute(int *v, int attribute, int d) {
  switch (attribute) {
#define X(name, number, value) \
  case number: *v = value; return hipSuccess;
    HIP_ATTRIBUTES(X)
#undef X
    default: *v = 0; return fail(hipErrorInvalidValue, "device attribute %d has no value here", attribute);
  }
}
API hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned flags) {
  *s = (hipStream_t)&handle;
  return hipSuccess;
}
ACCEPT(hipStreamDestroy, hipStream_t s)
ACCEPT(hipStreamSynchronize, hipStream_t s)
ACCEPT(hipDeviceSynchronize, void)
ACCEPT(hipStreamWaitEvent, hipStream_t s, hipEvent_t e, unsigned flags)
API hipError_t hipLaunchHostFunc(hipStream_t s, host_function f, void *data) {
  f(data);
  return hipSuccess;
}
API hipError_t hipEventCreateWithFlags(hipEvent_t *e, unsigned flags) {
  *e = (hipEvent_t)&handle;
  return hipSuccess;
}
API hipError_t hipEventCreate(hipEvent_t *e) { return hipEventCreateWithFlags(e, 0); }
ACCEPT(hipEventDestroy, hipEvent_t e)
ACCEPT(hipEventQuery, hipEvent_t e)
ACCEPT(hipEventRecord, hipEvent_t e, hipStream_t s)
ACCEPT(hipEventSynchronize, hipEvent_t e)
API hipError_t hipEventElapsedTime(float *ms, hipEvent_t a, hipEvent_t b) {
  *ms = 0;
  return hipSuccess;
}

// ---------------------------------------------------------------- code objects and launches
enum { MAX_THREADS = 1024, MAX_LDS = 65536 };
API hipError_t hipModuleLoadData(hipModule_t *out, const void *image) {
  *out = NULL;
  code_object *object = code_object_load(image);
  if (object->code) {
    *out = (hipModule_t)object;
    return hipSuccess;
  }
  hipError_t e = fail(hipErrorInvalidImage, "cannot load a code object: %s", object->error);
  code_object_unload(object);
  return e;
}
API hipError_t hipModuleLoadDataEx(hipModule_t *out, const void *image, unsigned n, void *options, void **values) {
  return hipModuleLoadData(out, image);
}
API hipError_t hipModuleUnload(hipModule_t m) {
  code_object_unload((code_object *)m);
  return hipSuccess;
}
API hipError_t hipModuleGetFunction(hipFunction_t *out, hipModule_t m, const char *name) {
  *out = (hipFunction_t)code_object_kernel((code_object *)m, name);
  return *out ? hipSuccess : fail(hipErrorNotFound, "the code object has no kernel %s", name);
}
REFUSE(hipModuleGetGlobal, hipDeviceptr_t *p, size_t *n, hipModule_t m, const char *name)
API hipError_t hipFuncGetAttribute(int *v, int attribute, hipFunction_t f) {
  const kernel *k = (const kernel *)f;
  switch (attribute) {
    case HIP_FUNCTION_LDS_BYTES: *v = k->lds_bytes; return hipSuccess;
    case HIP_FUNCTION_SCRATCH_BYTES: *v = k->scratch_bytes; return hipSuccess;
    case HIP_FUNCTION_MAX_THREADS: *v = MAX_THREADS; return hipSuccess;
    default: *v = 0; return fail(hipErrorInvalidValue, "function attribute %d has no value here", attribute);
  }
}
ACCEPT(hipFuncSetAttribute, const void *f, int attribute, int value)

// Implicit arguments, those that compilers use.
static void put_hidden(u8 *block, const kernel_argument *a, const unsigned grid[3], const unsigned threads[3], unsigned lds) {
  static const char *names[2][3] = {{"hidden_block_count_x", "hidden_block_count_y", "hidden_block_count_z"},
                                    {"hidden_group_size_x", "hidden_group_size_y", "hidden_group_size_z"}};
  for (int d = 0; d < 3; d++) {
    if (!strcmp(a->kind, names[0][d])) memcpy(block + a->offset, grid + d, a->bytes);
    if (!strcmp(a->kind, names[1][d])) memcpy(block + a->offset, threads + d, a->bytes);
  }
  u32 dimensions = grid[2] * threads[2] > 1 ? 3 : grid[1] * threads[1] > 1 ? 2 : 1;
  if (!strcmp(a->kind, "hidden_grid_dims")) memcpy(block + a->offset, &dimensions, a->bytes);
  if (!strcmp(a->kind, "hidden_dynamic_lds_size")) memcpy(block + a->offset, &lds, a->bytes);
}
// The kernel argument segment, from pointers to the arguments or from HIP's "extra" list.
static void pack(u8 *block, const kernel *k, void **params, void **extra) {
  if (params) {
    u32 n = 0;
    for (u32 i = 0; i < k->num_arguments; i++)
      if (strncmp(k->arguments[i].kind, "hidden", 6)) memcpy(block + k->arguments[i].offset, params[n++], k->arguments[i].bytes);
  } else if (extra && extra[0] == HIP_EXTRA_BUFFER && extra[2] == HIP_EXTRA_SIZE) {
    size_t n = *(size_t *)extra[3];
    memcpy(block, extra[1], n < k->argument_bytes ? n : k->argument_bytes);
  }
}
API hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                     unsigned bz, unsigned lds, hipStream_t s, void **params, void **extra) {
  const kernel *k = (const kernel *)f;
  u32 grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  u64 threads = (u64)bx * by * bz;
  if (!threads || threads > MAX_THREADS || !gx || !gy || !gz)
    return fail(hipErrorInvalidConfiguration, "%s: grid %ux%ux%u, block %ux%ux%u", k->name, gx, gy, gz, bx, by, bz);
  if (k->lds_bytes + lds > MAX_LDS)
    return fail(hipErrorInvalidConfiguration, "%s needs %u bytes of LDS; there are %d", k->name, k->lds_bytes + lds, MAX_LDS);
  u8 *arguments = aligned_alloc(64, ((k->argument_bytes + 63) & ~63ull) + 128);
  memset(arguments, 0, ((k->argument_bytes + 63) & ~63ull) + 128);
  pack(arguments, k, params, extra);
  for (u32 i = 0; i < k->num_arguments; i++) put_hidden(arguments, k->arguments + i, grid, block, lds);
  const char *reason;
  int failed = run_launch(k, grid, block, lds, arguments, &reason);
  free(arguments);
  return failed ? fail(hipErrorLaunchFailure, "%s", reason) : hipSuccess;
}
// Here the sizes of the grid are in threads.
API hipError_t hipExtModuleLaunchKernel(hipFunction_t f, unsigned tx, unsigned ty, unsigned tz, unsigned bx, unsigned by,
                                        unsigned bz, size_t lds, hipStream_t s, void **params, void **extra,
                                        hipEvent_t start, hipEvent_t stop, unsigned flags) {
  if (!bx || !by || !bz || tx % bx || ty % by || tz % bz)
    return fail(hipErrorInvalidConfiguration, "%s: partial workgroups", ((const kernel *)f)->name);
  return hipModuleLaunchKernel(f, tx / bx, ty / by, tz / bz, bx, by, bz, (unsigned)lds, s, params, extra);
}
REFUSE(hipLaunchKernel, const void *function, dim3 grid, dim3 block, void **args, size_t lds, hipStream_t s)

// ---------------------------------------------------------------- graphs: IREE uses streams unless told otherwise
typedef const hipGraphNode_t *node_list;
REFUSE(hipGraphCreate, hipGraph_t *g, unsigned flags)
REFUSE(hipGraphDestroy, hipGraph_t g)
REFUSE(hipGraphInstantiate, hipGraphExec_t *x, hipGraph_t g, hipGraphNode_t *bad, char *log, size_t n)
REFUSE(hipGraphExecDestroy, hipGraphExec_t x)
REFUSE(hipGraphAddEmptyNode, hipGraphNode_t *out, hipGraph_t g, node_list after, size_t n)
REFUSE(hipGraphAddEventRecordNode, hipGraphNode_t *out, hipGraph_t g, node_list after, size_t n, hipEvent_t e)
REFUSE(hipGraphAddKernelNode, hipGraphNode_t *out, hipGraph_t g, node_list after, size_t n, const void *p)
REFUSE(hipGraphAddMemsetNode, hipGraphNode_t *out, hipGraph_t g, node_list after, size_t n, const void *p)
REFUSE(hipDrvGraphAddMemcpyNode, hipGraphNode_t *out, hipGraph_t g, node_list after, size_t n, const void *p, hipCtx_t c)
REFUSE(hipGraphLaunch, hipGraphExec_t x, hipStream_t s)
