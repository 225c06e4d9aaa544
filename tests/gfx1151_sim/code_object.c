// Loads AMDGPU code objects.
#include "code_object.h"
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "message_pack.h"

enum { ELF_AMDGPU = 224, MACH_GFX1151 = 0x4a, MACH_GFX11_GENERIC = 0x54, NOTE_METADATA = 32, RELOCATION_RELATIVE64 = 13 };

static const Elf64_Shdr *section(const Elf64_Ehdr *h, int k) {
  return (const Elf64_Shdr *)((const u8 *)h + h->e_shoff + (u64)k * h->e_shentsize);
}
static const Elf64_Phdr *segment(const Elf64_Ehdr *h, int k) {
  return (const Elf64_Phdr *)((const u8 *)h + h->e_phoff + (u64)k * h->e_phentsize);
}
// A symbol's address and size; 0 when there is none.
static int find_symbol(const code_object *object, const void *image, const char *name, u64 *address, u64 *bytes) {
  const Elf64_Ehdr *h = image;
  const u8 *file = image;
  for (int k = 0; k < h->e_shnum; k++) {
    const Elf64_Shdr *s = section(h, k);
    if (s->sh_type != SHT_DYNSYM && s->sh_type != SHT_SYMTAB) continue;
    const char *names = (const char *)file + section(h, (int)s->sh_link)->sh_offset;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(file + s->sh_offset);
    for (u64 n = 0; n < s->sh_size / sizeof *symbols; n++)
      if (!strcmp(names + symbols[n].st_name, name)) {
        *address = (u64)(uintptr_t)object->code + symbols[n].st_value, *bytes = symbols[n].st_size;
        return 1;
      }
  }
  return 0;
}
static int place_segments(code_object *object, const Elf64_Ehdr *h) {
  for (int k = 0; k < h->e_phnum; k++) {
    const Elf64_Phdr *p = segment(h, k);
    if (p->p_type == PT_LOAD && p->p_vaddr + p->p_memsz > object->code_bytes) object->code_bytes = p->p_vaddr + p->p_memsz;
  }
  object->code_bytes = (object->code_bytes + 4095) & ~4095ull;
  object->code_words = (u32)(object->code_bytes / 4);
  object->code = aligned_alloc(4096, object->code_bytes);
  u64 table_bytes = object->code_words * sizeof *object->table;
  object->table = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!object->code || object->table == MAP_FAILED) return 0;
  memset(object->code, 0, object->code_bytes);
  for (int k = 0; k < h->e_phnum; k++) {
    const Elf64_Phdr *p = segment(h, k);
    if (p->p_type == PT_LOAD) memcpy(object->code + p->p_vaddr, (const u8 *)h + p->p_offset, p->p_filesz);
  }
  return 1;
}
static int relocate(code_object *object, const Elf64_Ehdr *h) {
  for (int k = 0; k < h->e_shnum; k++) {
    const Elf64_Shdr *s = section(h, k);
    if (s->sh_type != SHT_RELA) continue;
    const Elf64_Rela *r = (const Elf64_Rela *)((const u8 *)h + s->sh_offset);
    for (u64 n = 0; n < s->sh_size / sizeof *r; n++) {
      if (ELF64_R_TYPE(r[n].r_info) != RELOCATION_RELATIVE64) {
        snprintf(object->error, sizeof object->error, "relocation type %u", (u32)ELF64_R_TYPE(r[n].r_info));
        return 0;
      }
      u64 value = (u64)(uintptr_t)object->code + (u64)r[n].r_addend;
      memcpy(object->code + r[n].r_offset, &value, 8);
    }
  }
  return 1;
}
static void read_arguments(kernel *k, const u8 *list) {
  if (!list) return;
  message_shape s = message_shape_of(list);
  const u8 *p = list + s.header;
  for (u64 n = 0; n < s.values; n++, p = message_skip(p)) {
    if (k->num_arguments == MAX_ARGUMENTS) return;
    kernel_argument *a = k->arguments + k->num_arguments++;
    const u8 *kind = message_get(p, ".value_kind");
    message_shape text = message_shape_of(kind);
    a->offset = (u32)message_integer(message_get(p, ".offset"));
    a->bytes = (u32)message_integer(message_get(p, ".size"));
    snprintf(a->kind, sizeof a->kind, "%.*s", (int)text.content, (const char *)kind + text.header);
  }
}
// The 64-byte descriptor of a kernel.
static void read_descriptor(kernel *k, const u8 *d) {
  i64 entry;
  u16 properties, preload;
  memcpy(&k->lds_bytes, d, 4);
  memcpy(&k->scratch_bytes, d + 4, 4);
  memcpy(&k->argument_bytes, d + 8, 4);
  memcpy(&entry, d + 16, 8);
  memcpy(&k->rsrc1, d + 48, 4);
  memcpy(&k->rsrc2, d + 52, 4);
  memcpy(&properties, d + 56, 2);
  memcpy(&preload, d + 58, 2);
  k->properties = properties, k->preload = preload;
  k->entry = (u32)((d - k->object->code + entry) / 4);
}
static int read_kernels(code_object *object, const Elf64_Ehdr *h, const u8 *metadata) {
  const u8 *list = message_get(metadata, "amdhsa.kernels");
  if (!list) return 1;
  message_shape s = message_shape_of(list);
  const u8 *p = list + s.header;
  for (u64 n = 0; n < s.values; n++, p = message_skip(p)) {
    kernel *k = calloc(1, sizeof *k);
    k->next = object->kernels, object->kernels = k, k->object = object;
    const u8 *name = message_get(p, ".name");
    message_shape text = message_shape_of(name);
    k->name = strndup((const char *)name + text.header, text.content);
    char symbol[512];
    u64 address, bytes;
    snprintf(symbol, sizeof symbol, "%s.kd", k->name);
    if (!find_symbol(object, h, symbol, &address, &bytes)) {
      snprintf(object->error, sizeof object->error, "no symbol %.200s", symbol);
      return 0;
    }
    read_descriptor(k, (const u8 *)(uintptr_t)address);
    read_arguments(k, message_get(p, ".args"));
  }
  return 1;
}
static int read_notes(code_object *object, const Elf64_Ehdr *h) {
  for (int k = 0; k < h->e_shnum; k++) {
    const Elf64_Shdr *s = section(h, k);
    if (s->sh_type != SHT_NOTE) continue;
    const u8 *p = (const u8 *)h + s->sh_offset, *end = p + s->sh_size;
    while (p < end) {
      const Elf64_Nhdr *note = (const Elf64_Nhdr *)p;
      const u8 *content = p + sizeof *note + ((note->n_namesz + 3) & ~3u);
      if (note->n_type == NOTE_METADATA && !read_kernels(object, h, content)) return 0;
      p = content + ((note->n_descsz + 3) & ~3u);
    }
  }
  return 1;
}
code_object *code_object_load(const void *image) {
  code_object *object = calloc(1, sizeof *object);
  const Elf64_Ehdr *h = image;
  if (memcmp(image, ELFMAG, SELFMAG) || h->e_machine != ELF_AMDGPU) {
    snprintf(object->error, sizeof object->error, "it is no AMDGPU ELF file");
    return object;
  }
  u32 mach = h->e_flags & 0xff;
  if (mach != MACH_GFX1151 && mach != MACH_GFX11_GENERIC) {
    snprintf(object->error, sizeof object->error, "it is for EF_AMDGPU_MACH %#x; this device is gfx1151 (0x4a)", mach);
    return object;
  }
  if (!place_segments(object, h)) snprintf(object->error, sizeof object->error, "there is no memory for it");
  else if (relocate(object, h) && read_notes(object, h)) return object;
  free(object->code);
  object->code = NULL;
  return object;
}
void code_object_unload(code_object *object) {
  for (kernel *k = object->kernels, *next; k; k = next) {
    next = k->next;
    free(k->name);
    free(k);
  }
  if (object->table) munmap(object->table, object->code_words * sizeof *object->table);
  free(object->code);
  free(object);
}
const kernel *code_object_kernel(const code_object *object, const char *name) {
  for (const kernel *k = object->kernels; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return NULL;
}
