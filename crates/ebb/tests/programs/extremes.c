// Memory calls with lengths and addresses that end beyond all addresses, or cannot be rounded up to a page. Each
// must answer what libc's does, and leave memory as it is.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BYTES = 24 << 20 };

#define TRY(call)                                                          \
  do {                                                                     \
    errno = 0;                                                             \
    intptr_t got = (intptr_t)(call);                                       \
    printf("%s: %s %d\n", #call, got == 0 ? "0" : got == -1 ? "-1" : "+", \
           errno);                                                         \
  } while (0)

static const size_t lengths[] = {-1, -4095, -4096, -8192, (size_t)1 << 63, ((size_t)1 << 63) - 1};

static void calls(char* memory, size_t n) {
  int private = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
  char* last = (char*)(uintptr_t)-4096;
  struct iovec all = {memory, n};
  TRY(mmap(0, n, both, private, -1, 0));
  TRY(mmap(memory, n, both, private | MAP_FIXED, -1, 0));
  TRY(mmap(memory, n, both, private | MAP_FIXED_NOREPLACE, -1, 0));
  TRY(mmap(last, n, both, private | MAP_FIXED, -1, 0));
  TRY(munmap(memory, n));
  TRY(munmap(last, n));
  // A range that ends below the highest address holds all of the program's memory, its stack too.
  if (n > (size_t)-10000) {
    TRY(madvise(memory, n, MADV_DONTNEED));
    TRY(madvise(last, n, MADV_DONTNEED));
    TRY(syscall(SYS_madvise, memory, n, MADV_DONTNEED));
    TRY(munlock(memory, n));
    TRY(mlock(memory + 1, n));
    TRY(mlock2(memory, n, MLOCK_ONFAULT));
    TRY(mlock(last, n));
  }
  TRY(process_madvise(-1, &all, 1, MADV_COLD, 0));
  TRY(mprotect(last, n, PROT_READ));
  TRY(mremap(memory, BYTES, n, 0));
  TRY(mremap(memory, BYTES, n, MREMAP_MAYMOVE));
  TRY(mremap(memory, n, 4096, 0));
  TRY(mremap(memory, n, n, MREMAP_MAYMOVE));
  TRY(mremap(memory, 4096, n, MREMAP_MAYMOVE | MREMAP_FIXED, last));
  TRY(mremap(last, 4096, n, MREMAP_MAYMOVE));
  TRY(brk((void*)n));
  TRY(malloc(n));
  TRY(calloc(n, 2));
  TRY(realloc(NULL, n));
  TRY(reallocarray(NULL, n, n));
  TRY(aligned_alloc(4096, n));
  TRY(memalign((size_t)1 << 62, n));
  TRY(valloc(n));
  TRY(pvalloc(n));
}

int main(void) {
  char* memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint64_t x = 88172645463325252;
  for (size_t i = 0; i < BYTES / 8; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    ((uint64_t*)memory)[i] = x;
  }
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) calls(memory, lengths[i]);
  // Nothing to the kernel. What would be locked could not leave.
  TRY(mlock(memory, -1));
  x = 88172645463325252;
  for (size_t i = 0; i < BYTES / 8; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    if (((uint64_t*)memory)[i] != x) return printf("word %zu is not what it was\n", i), 1;
  }
  puts("intact");
}
