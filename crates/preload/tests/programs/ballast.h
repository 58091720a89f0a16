// Memory that pushes all other out. With BALLAST_MIB in the environment `press` touches so much of it, in no order,
// and counts how many pages of the memory it is told of are out then. It says the sum on standard error at the end.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { BALLAST_PAGE = 4096 };

static unsigned char* ballast;
static size_t ballast_pages;
static unsigned long ballast_out;

static void ballast_say(void) { fprintf(stderr, "out %lu\n", ballast_out); }

// Pages of `[at, at + len)` that are not in memory; none of what is not mapped.
static void ballast_count(const void* at, size_t len) {
  static unsigned char in[1 << 16];
  uintptr_t start = (uintptr_t)at / BALLAST_PAGE * BALLAST_PAGE;
  size_t pages = ((uintptr_t)at + len + BALLAST_PAGE - 1 - start) / BALLAST_PAGE;
  if (pages > sizeof in) pages = sizeof in;
  if (mincore((void*)start, pages * BALLAST_PAGE, in)) return;
  for (size_t i = 0; i < pages; i++) ballast_out += !(in[i] & 1);
}

static void press(const void* at, size_t len) {
  if (!ballast) {
    const char* wanted = getenv("BALLAST_MIB");
    if (!wanted) return;
    ballast_pages = strtoul(wanted, NULL, 10) * 256;
    ballast = (unsigned char*)mmap(NULL, ballast_pages * BALLAST_PAGE, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ballast == MAP_FAILED) abort();
    atexit(ballast_say);
  }
  // Half of each page does not compress.
  static uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < ballast_pages; i++) {
    uint64_t* page = (uint64_t*)(ballast + i * 40503 % ballast_pages * BALLAST_PAGE);
    for (int word = 0; !page[0] && word < 256; word++) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      page[word] = state | 1;
    }
    page[300]++;
  }
  if (at) ballast_count(at, len);
}
