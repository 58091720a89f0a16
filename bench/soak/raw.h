// Memory calls by the instruction itself, which no library sees: memory of its own, and memory that libc mapped,
// dropped, unmapped and mapped again.
#pragma once
#include <sys/syscall.h>
#include "transfers.h"

static long raw_call(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  register long r10 __asm__("r10") = (long)d;
  register long r8 __asm__("r8") = -1;
  register long r9 __asm__("r9") = 0;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result < 0 && result > -4096) {
    errno = (int)-result;
    return -1;
  }
  return result;
}

static char* raw_map(void* at, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0);
  return (char*)raw_call(SYS_mmap, (uint64_t)at, bytes, PROT_READ | PROT_WRITE, (uint64_t)flags);
}

static void raw_unmap(const struct region* r) {
  must(raw_call(SYS_munmap, (uint64_t)r->base, r->pages * PAGE, 0, 0) == 0, "munmap by instruction");
}

static void raw(struct thread* t) {
  struct region r;
  open_region(t, &r, 16 + below(t, 256));
  const size_t bytes = r.pages * PAGE, kept = below(t, r.pages);
  fill_all(&r);
  fill_some(t, 3);
  // Dropped pages are zeros, the others stay.
  must(raw_call(SYS_madvise, (uint64_t)r.base + kept * PAGE, bytes - kept * PAGE, MADV_DONTNEED, 0) == 0,
       "madvise by instruction");
  memset(r.version + kept, 0, (r.pages - kept) * sizeof *r.version);
  fill_some(t, 2);
  check_all(&r);
  // Other memory in the same place.
  raw_unmap(&r);
  fill_some(t, 1);
  char* again = raw_map(r.base, bytes);
  if (again != r.base) {
    // Another thread's came first.
    again = raw_map(0, bytes);
    must(again != (char*)-1, "mmap by instruction");
    r.base = again;
  }
  memset(r.version, 0, r.pages * sizeof *r.version);
  for (size_t i = 0; i < r.pages; i += 2) fill(&r, i);
  fill_some(t, 3);
  check_all(&r);
  fill_all(&r);
  fill_some(t, 2);
  check_all(&r);
  raw_unmap(&r);
  free(r.version);
}
