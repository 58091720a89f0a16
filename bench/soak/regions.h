// Regions of memory whose content follows from region, page and version, and the steps that change them.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, REGIONS = 12 };

struct region {
  char* base;         // 0: there is none
  size_t pages;
  uint64_t id;        // differs for each that ever was
  uint32_t* version;  // of each page; 0: never written, so zeros
  int heap;           // from malloc, else from mmap
  int sealed;         // may only be read
};

struct thread {
  pthread_t handle;
  uint64_t number, random, ids, sum;
  size_t pages, limit;  // in its regions now, and at most
  struct region regions[REGIONS];
};

static uint64_t mix(uint64_t x) {
  x ^= x >> 33; x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

static uint64_t draw(struct thread* t) {
  t->random ^= t->random << 13; t->random ^= t->random >> 7; t->random ^= t->random << 17;
  return t->random * 0x2545f4914f6cdd1dULL >> 11;
}

static uint64_t below(struct thread* t, uint64_t n) { return draw(t) % n; }

static void must(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "soak: %s: %s\n", what, strerror(errno));
  abort();
}

// The value of word `i` of a page.
static uint64_t word(uint64_t key, uint32_t version, int i) {
  if (version == 0) return 0;
  switch (key & 7) {
    case 0: return 0;
    case 1: return key | 1;
    case 2: case 3: case 4: return mix(key + (uint64_t)(i & 31)) & 0x00ff00ff00ff00ffULL;
    case 5: return i % 4 ? key : mix(key + (uint64_t)i);
    default: return mix(key + (uint64_t)i * 0x9e3779b97f4a7c15ULL);
  }
}

static uint64_t key_of(const struct region* r, size_t page) {
  return mix(r->id * 0x10001 + page * 0x9e3779b9ULL + ((uint64_t)r->version[page] << 40));
}

static void check_at(const struct region* r, size_t page, const char* at) {
  const uint64_t key = key_of(r, page);
  const uint64_t* words = (const uint64_t*)at;
  for (int i = 0; i < WORDS; i++) {
    const uint64_t wanted = word(key, r->version[page], i);
    if (words[i] == wanted) continue;
    fprintf(stderr, "soak: wrong data at %p: page %zu of %zu of %s region %llx, version %u, word %d is %llx, not %llx\n",
            (void*)&words[i], page, r->pages, r->heap ? "malloc" : "mmap", (unsigned long long)r->id,
            r->version[page], i, (unsigned long long)words[i], (unsigned long long)wanted);
    abort();
  }
}

static void check(struct region* r, size_t page) { check_at(r, page, r->base + page * PAGE); }

static void seal(struct region* r, int protection) {
  must(mprotect(r->base, r->pages * PAGE, protection) == 0, "mprotect of a region");
  r->sealed = protection == PROT_READ;
}

static void fill(struct region* r, size_t page) {
  if (r->sealed) seal(r, PROT_READ | PROT_WRITE);
  r->version[page]++;
  const uint64_t key = key_of(r, page);
  uint64_t* words = (uint64_t*)(r->base + page * PAGE);
  for (int i = 0; i < WORDS; i++) words[i] = word(key, r->version[page], i);
}

// A part of a region: all of it now and then, else a few pages.
static void part(struct thread* t, const struct region* r, size_t* first, size_t* pages) {
  *first = below(t, r->pages);
  *pages = 1 + below(t, below(t, 4) ? 16 : r->pages);
  if (*pages > r->pages - *first) *pages = r->pages - *first;
}

static struct region* some(struct thread* t) {
  for (int tries = 0; tries < 8; tries++) {
    struct region* r = &t->regions[below(t, REGIONS)];
    if (r->base) return r;
  }
  return 0;
}

static void make(struct thread* t) {
  struct region* r = &t->regions[below(t, REGIONS)];
  if (r->base || t->pages >= t->limit) return;
  size_t pages = 1 + below(t, below(t, 3) ? 200 : t->limit / 2);
  if (pages > t->limit - t->pages) pages = t->limit - t->pages;
  r->heap = below(t, 3) == 0;
  r->pages = pages;
  r->id = t->number << 32 | ++t->ids;
  r->sealed = 0;
  r->version = calloc(pages, sizeof *r->version);
  must(r->version != 0, "calloc");
  if (r->heap) {
    must(posix_memalign((void**)&r->base, PAGE, pages * PAGE) == 0, "posix_memalign");
    memset(r->base, 0, pages * PAGE);
  } else {
    r->base = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(r->base != MAP_FAILED, "mmap");
  }
  t->pages += pages;
}

static void end(struct thread* t, struct region* r) {
  if (r->heap) free(r->base);
  else must(munmap(r->base, r->pages * PAGE) == 0, "munmap");
  free(r->version);
  t->pages -= r->pages;
  r->base = 0;
}

// Cuts pages off at one end.
static void cut(struct thread* t, struct region* r) {
  if (r->heap || r->pages < 2) return end(t, r);
  const size_t pages = 1 + below(t, r->pages - 1), left = r->pages - pages;
  const int front = below(t, 2);
  must(munmap(front ? r->base : r->base + left * PAGE, pages * PAGE) == 0, "munmap of a part");
  t->pages -= pages;
  r->pages = left;
  if (!front) return;
  // Its pages are named by their number: those that stay get the content of their new ones.
  r->base += pages * PAGE;
  memmove(r->version, r->version + pages, left * sizeof *r->version);
  for (size_t i = 0; i < left; i++)
    if (r->version[i]) fill(r, i);
}

// Moves the pages of a mapping, and leaves the mapping: it holds zeros then.
static void move_pages_away(struct thread* t, struct region* r) {
  size_t bytes = r->pages * PAGE;
  char* new = mremap(r->base, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, (void*)0);
  must(new != MAP_FAILED, "mremap that leaves the mapping");
  must(r->base[below(t, r->pages) * PAGE] == 0, "a page that was moved away reads as zero");
  must(munmap(r->base, bytes) == 0, "munmap");
  r->base = new;
}

static void resize(struct thread* t, struct region* r) {
  size_t pages = 1 + below(t, r->pages * 2);
  if (pages > r->pages && pages - r->pages > t->limit - t->pages) return;
  if (r->heap) {
    // Not aligned by realloc: pages of a block are where they are.
    char* new = realloc(r->base, pages * PAGE);
    must(new != 0, "realloc");
    r->base = new;
    if (pages > r->pages) memset(new + r->pages * PAGE, 0, (pages - r->pages) * PAGE);
  } else {
    if (below(t, 4) == 0) move_pages_away(t, r);
    void* new = mremap(r->base, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    must(new != MAP_FAILED, "mremap");
    r->base = new;
  }
  r->version = realloc(r->version, pages * sizeof *r->version);
  must(r->version != 0, "realloc");
  for (size_t i = r->pages; i < pages; i++) r->version[i] = 0;
  t->pages += pages - r->pages;
  r->pages = pages;
}

static void drop(struct thread* t, struct region* r) {
  if (r->heap) return;
  size_t first, pages;
  part(t, r, &first, &pages);
  must(madvise(r->base + first * PAGE, pages * PAGE, MADV_DONTNEED) == 0, "madvise");
  memset(r->version + first, 0, pages * sizeof *r->version);
}

static void protect(struct thread* t, struct region* r) {
  if (r->heap) return;
  if (below(t, 2)) {
    // Until a page of it is to be written; out of reach for a moment.
    seal(r, PROT_NONE);
    if (below(t, 4) == 0) usleep(1000);
    return seal(r, PROT_READ);
  }
  if (r->sealed) seal(r, PROT_READ | PROT_WRITE);
  size_t first, pages;
  part(t, r, &first, &pages);
  char* at = r->base + first * PAGE;
  must(mprotect(at, pages * PAGE, PROT_READ) == 0, "mprotect");
  for (size_t i = 0; i < pages; i++) check(r, first + i);
  must(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back");
}

static void ends_well(pid_t child, const char* what) {
  int status;
  while (waitpid(child, &status, 0) < 0) must(errno == EINTR, "waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  fprintf(stderr, "soak: %s ended with status %x\n", what, (unsigned)status);
  abort();
}

// Pages that all processes have worked on.
static uint64_t* work;  // Shared by them; null where nobody asks.

static void worked(void) {
  if (work) __atomic_fetch_add(work, 1, __ATOMIC_RELAXED);
}

// Does it to parts of regions.
static void often(struct thread* t, int times, void (*act)(struct region*, size_t)) {
  while (times-- > 0) {
    struct region* r = some(t);
    size_t first, pages;
    if (!r) continue;
    part(t, r, &first, &pages);
    for (size_t i = 0; i < pages; i++, worked()) act(r, first + i);
  }
}

static void check_some(struct thread* t, int times) { often(t, times, check); }

static void fill_some(struct thread* t, int times) { often(t, times, fill); }

