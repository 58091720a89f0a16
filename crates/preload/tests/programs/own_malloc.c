// A program that replaces malloc by the four functions that glibc's manual asks for. What it leaves out must fit them.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AREA ((size_t)16 << 20)

// Blocks lie in a row, each behind its size, and are never used again.
static _Alignas(16) unsigned char area[AREA];
static size_t used;

static size_t* size_of(void* block) { return (size_t*)((unsigned char*)block - 16); }

static int is_own(const void* block) {
  return (uintptr_t)block - (uintptr_t)area < AREA;
}

void* malloc(size_t size) {
  const size_t room = (size + 31) & ~(size_t)15;
  if (size > AREA) { errno = ENOMEM; return NULL; }
  const size_t at = __atomic_fetch_add(&used, room, __ATOMIC_RELAXED);
  if (at + room > AREA) { errno = ENOMEM; return NULL; }
  void* block = area + at + 16;
  *size_of(block) = size;
  return block;
}

void free(void* block) {
  if (block != NULL && !is_own(block)) abort();
}

void* calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) { errno = ENOMEM; return NULL; }
  return malloc(bytes);
}

void* realloc(void* block, size_t size) {
  free(block);
  void* moved = malloc(size);
  if (moved != NULL && block != NULL) {
    memcpy(moved, block, size < *size_of(block) ? size : *size_of(block));
  }
  return moved;
}

int main(void) {
  // From one family into the other, both ways.
  char* block = reallocarray(NULL, 10, 10);
  printf("new: %d\n", is_own(block));
  strcpy(block, "kept");
  block = realloc(block, 200);
  printf("grown: %s\n", block);
  free(block);
  block = malloc(10);
  strcpy(block, "kept");
  block = reallocarray(block, 100, 100);
  printf("own: %d %s\n", is_own(block), block);
  free(block);
  errno = 0;
  volatile size_t big = SIZE_MAX;
  block = reallocarray(NULL, big / 2, 3);
  printf("overflow: %d %d\n", block == NULL, errno == ENOMEM);
  return 0;
}
