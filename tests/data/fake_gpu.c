// HIP and NVML as the doctor calls them, without a GPU. Environment variables make them misbehave:
// FAKE_DEVICES (a number), FAKE_CRASH, FAKE_CORRUPT (copies between GPUs lose a byte), FAKE_REFUSE (they fail).
#include <stdlib.h>
#include <string.h>

static int set(const char *name) { return getenv(name) != 0; }

int hipGetDeviceCount(int *count) {
  if (set("FAKE_CRASH")) abort();
  *count = set("FAKE_DEVICES") ? atoi(getenv("FAKE_DEVICES")) : 1;
  return *count ? 0 : 100;
}
int hipRuntimeGetVersion(int *version) { return *version = 70253211, 0; }
int hipDeviceGetName(char *name, int length, int device) {
  (void)device;
  return strncpy(name, "Radeon 8060S Graphics", length), 0;
}
int hipMemGetInfo(size_t *free_bytes, size_t *total) {
  *free_bytes = 128849018880; // 120 GiB free of 62.5
  return *total = 67077393285, 0;
}
int hipSetDevice(int device) { return (void)device, 0; }
int hipGetLastError(void) { return 0; }
int hipDeviceSynchronize(void) { return 0; }
int hipMalloc(void **address, size_t bytes) { return *address = malloc(bytes), *address ? 0 : 2; }
int hipMemcpy(void *target, const void *source, size_t bytes, int kind) {
  return (void)kind, memcpy(target, source, bytes), 0;
}
int hipDeviceCanAccessPeer(int *possible, int target, int source) { return (void)target, (void)source, *possible = 1, 0; }
int hipDeviceEnablePeerAccess(int peer, unsigned flags) { return (void)peer, (void)flags, 0; }
int hipMemcpyPeer(void *target, int to, const void *source, int from, size_t bytes) {
  (void)to, (void)from;
  if (set("FAKE_REFUSE")) return 1;
  memcpy(target, source, bytes);
  if (set("FAKE_CORRUPT")) ((char *)target)[bytes / 2] ^= 1;
  return 0;
}
#define STUB(name) int name(void) { return 0; }
#include "stubs.h"

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { return set("FAKE_CRASH") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return *handle = (void *)(size_t)(index + 1), 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
  return strncpy(name, handle == (void *)1 ? "NVIDIA A" : "NVIDIA B", length), 0;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
  return strncpy(uuid, handle == (void *)1 ? "GPU-aaaa1111-0000" : "GPU-aaaa2222-0000", length), 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  unsigned long long gib = 1ull << 30;
  return *memory = handle == (void *)1 ? (Memory){80 * gib, 50 * gib, 29 * gib} : (Memory){24 * gib, 24 * gib, 0}, 0;
}
