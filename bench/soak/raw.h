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
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  return (char*)raw_call(SYS_mmap, (uint64_t)at, bytes, PROT_READ | PROT_WRITE, (uint64_t)flags);
}

// A region of a caller, mapped without libc.
static void map_raw(struct thread* t, struct region* r, size_t pages) {
  begin_region(t, r, pages);
  r->base = raw_map(0, pages * PAGE);
  must(r->base != (char*)-1, "mmap by instruction");
}

// What is dropped is zeros, what is not stays. (Of memory that libc mapped, pages that are out come back: that is a
// limit.)
static void drop_raw(struct thread* t, struct region* r) {
  const size_t kept = below(t, r->pages), bytes = (r->pages - kept) * PAGE;
  must(raw_call(SYS_madvise, (uint64_t)r->base + kept * PAGE, bytes, MADV_DONTNEED, 0) == 0,
       "madvise by instruction");
  memset(r->version + kept, 0, (r->pages - kept) * sizeof *r->version);
}

// Other memory in the place of what libc mapped, without a moment in which there is none: what the system would put
// there meanwhile is taken for the old, which is a limit.
static void replace_raw(struct region* r) {
  must(raw_map(r->base, r->pages * PAGE) == r->base, "mmap by instruction");
  memset(r->version, 0, r->pages * sizeof *r->version);
}

static void raw(struct thread* t) {
  struct region r;
  const size_t pages = 16 + below(t, 256);
  const int replaces = (int)below(t, 2);
  if (replaces) open_region(t, &r, pages);
  else map_raw(t, &r, pages);
  fill_all(&r);
  fill_some(t, 3);
  if (replaces) replace_raw(&r);
  else drop_raw(t, &r);
  fill_some(t, 2);
  check_all(&r);
  for (size_t i = 0; i < r.pages; i += 2) fill(&r, i);
  fill_some(t, 3);
  check_all(&r);
  fill_all(&r);
  fill_some(t, 2);
  check_all(&r);
  if (replaces) return close_region(&r);
  must(raw_call(SYS_munmap, (uint64_t)r.base, r.pages * PAGE, 0, 0) == 0, "munmap by instruction");
  free(r.version);
}
