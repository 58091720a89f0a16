// A program whose malloc family passes on to the allocator's, and keeps a word of its own before each block. A call
// that went from the allocator back to the program would find no such word.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void __libc_free(void*);

#define WORD 0x5eed5eed5eed5eedu
#define BEFORE 16

static unsigned long given, taken;

static void* marked(unsigned char* block) {
  if (block == NULL) return NULL;
  *(uint64_t*)block = WORD;
  return block + BEFORE;
}

static unsigned char* unmarked(void* at) {
  unsigned char* block = (unsigned char*)at - BEFORE;
  if (*(uint64_t*)block != WORD) abort();
  *(uint64_t*)block = 0;
  return block;
}

void* malloc(size_t size) {
  given++;
  return marked(__libc_malloc(size + BEFORE));
}

void* calloc(size_t count, size_t size) {
  given++;
  return marked(__libc_calloc(count * size + BEFORE, 1));
}

void free(void* at) {
  if (at == NULL) return;
  taken++;
  __libc_free(unmarked(at));
}

void* realloc(void* at, size_t size) {
  if (at == NULL) return malloc(size);
  return marked(__libc_realloc(unmarked(at), size + BEFORE));
}

int main(void) {
  // Across all sizes at which blocks move from one kind of memory to another.
  const size_t sizes[] = {1, 100, 10 << 10, 3 << 20, 40 << 20, 2 << 20, 500 << 10, 20};
  const unsigned long before = given - taken;
  unsigned char* block = calloc(3, 3);
  int right = block[8] == 0;
  block[0] = 7;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    block = realloc(block, sizes[i]);
    block[sizes[i] - 1] = 7;
    right &= block[0] == 7;
  }
  free(block);
  printf("right %d, left %lu\n", right, given - taken - before);
  return 0;
}
