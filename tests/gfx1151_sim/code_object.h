// AMDGPU code objects: ELF files whose note describes the kernels in MessagePack.
#pragma once
#include "machine.h"

enum { MAX_ARGUMENTS = 128 };
typedef struct code_object {
  u8 *code;  // all segments, at the distances that the file says
  u64 code_bytes;
  u32 code_words;
  instruction *table;  // one for each word of the code, filled when first executed
  struct kernel *kernels;
  char error[256];
} code_object;

typedef struct {
  u32 offset, bytes;
  char kind[32];  // ".value_kind" of the metadata
} kernel_argument;

typedef struct kernel {
  struct kernel *next;
  code_object *object;
  char *name;
  u32 entry;  // in words from the code's start
  u32 lds_bytes, scratch_bytes, argument_bytes, rsrc1, rsrc2, properties, preload, num_arguments;
  kernel_argument arguments[MAX_ARGUMENTS];
} kernel;

// Loads an image. On failure ->error says why and ->code is NULL.
code_object *code_object_load(const void *image);
void code_object_unload(code_object *object);
const kernel *code_object_kernel(const code_object *object, const char *name);
