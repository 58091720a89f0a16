// What the malloc family answers, edge cases included; the same under any allocator.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ballast.h"

static void show(const char* what, void* p, size_t align) {
  printf("%s: %s %s errno %d\n", what, p ? "block" : "null",
         p && align && (uintptr_t)p % align ? "MISALIGNED" : "aligned", p ? 0 : errno);
  errno = 0;
}

static int all(const unsigned char* p, size_t n, unsigned char v) {
  for (size_t i = 0; i < n; i++) if (p[i] != v) return 0;
  return 1;
}

int main(void) {
  volatile size_t huge = SIZE_MAX / 2 + 4096, big = SIZE_MAX;
  errno = 0;
  for (size_t n = 0; n <= 16; n++) {
    show("malloc", malloc(n), 16);
    show("calloc", calloc(1, n), 16);
    show("memalign 8", memalign(8, n), 16);
    show("realloc shorter", realloc(malloc(100), n + 1), 16);
    show("realloc longer", realloc(malloc(1), n + 1), 16);
  }
  show("malloc huge", malloc(huge), 0);
  show("malloc max", malloc(big), 0);
  show("calloc overflow", calloc(big / 2, 3), 0);
  show("calloc", calloc(1000, 1000), 16);
  show("realloc null", realloc(NULL, 100), 16);
  void* p = malloc(100);
  show("realloc to 0", realloc(p, 0), 0);
  p = malloc(100);
  memset(p, 7, 100);
  press(p, 100);
  show("realloc huge", realloc(p, huge), 0);
  printf("kept %d\n", all(p, 100, 7));
  errno = 0;
  show("reallocarray overflow", reallocarray(p, big / 2, 3), 0);
  show("reallocarray", reallocarray(p, 100, 100), 16);
  show("memalign 3", memalign(3, 10), 8);
  show("memalign 48", memalign(48, 10), 64);
  show("memalign 1 MiB", memalign(1 << 20, 10), 1 << 20);
  show("memalign max", memalign(big, 10), 0);
  show("aligned_alloc", aligned_alloc(256, 1000), 256);
  show("valloc", valloc(10), 4096);
  p = pvalloc(5000);
  show("pvalloc", p, 4096);
  printf("pvalloc usable %d\n", malloc_usable_size(p) >= 8192);
  for (size_t align = 1; align <= 1 << 24; align = align * 2 + (align == 8)) {
    void* q = (void*)1;
    errno = 0;
    int rc = posix_memalign(&q, align, 100);
    printf("posix_memalign %zu: %d errno %d %s\n", align, rc, errno,
           rc ? (q == (void*)1 ? "untouched" : "TOUCHED")
              : ((uintptr_t)q % align ? "MISALIGNED" : "aligned"));
    if (rc == 0) free(q);
  }
  printf("usable of null %zu\n", malloc_usable_size(NULL));
  int ok = 1;
  for (size_t n = 0; n < 300000; n = n * 5 / 4 + 1) {
    unsigned char* q = malloc(n);
    size_t usable = malloc_usable_size(q);
    ok &= usable >= n;
    memset(q, 0x5a, usable);
    if (n % 7 == 1) press(q, n);
    q = realloc(q, n * 2 + 1);
    ok &= all(q, n, 0x5a);
    free(q);
    q = calloc(1, n + 1);
    ok &= all(q, n + 1, 0);
    memset(q, 0x5a, n + 1);
    free(q);
  }
  printf("sweep %d\n", ok);
  p = malloc(64);
  errno = 77;
  free(p);
  p = malloc(64 << 20);
  memset(p, 1, 64 << 20);
  free(p);
  free(NULL);
  p = calloc(10, 10);
  printf("errno after free %d\n", errno);
  unsigned char* grown = NULL;
  size_t size = 1;
  for (; size < (200u << 20); size *= 3) {
    grown = realloc(grown, size);
    memset(grown + size / 3, (int)(size % 251), size - size / 3);
  }
  ok = 1;
  for (size_t s = 3; s < size / 3; s *= 3) ok &= all(grown + s / 3, s - s / 3, s % 251);
  printf("grown %d\n", ok);
  free(grown);
  // Across the sizes at which blocks get maps of their own, both ways.
  size_t steps[] = {100, 40u << 20, 100, 3u << 20, 200u << 20, 33u << 20, 900u << 10, 70u << 20, 5};
  unsigned char* b = NULL;
  size_t had = 0;
  ok = 1;
  for (int i = 0; i < 9; i++) {
    b = realloc(b, steps[i]);
    size_t kept = had < steps[i] ? had : steps[i];
    for (size_t at = 0; at < kept; at += 4093) ok &= b[at] == (unsigned char)(at / 4093);
    for (size_t at = 0; at < steps[i]; at += 4093) b[at] = (unsigned char)(at / 4093);
    ok &= malloc_usable_size(b) >= steps[i] && (uintptr_t)b % 16 == 0;
    had = steps[i];
    press(b, had);
  }
  free(b);
  b = calloc(1 << 10, 50 << 10);
  for (size_t at = 0; at < (50u << 20); at += 511) ok &= b[at] == 0;
  free(b);
  for (size_t align = 64; align <= 64u << 20; align *= 4) {
    ok &= posix_memalign((void**)&b, align, 40u << 20) == 0 && (uintptr_t)b % align == 0;
    b[(40u << 20) - 1] = 1;
    press(b + (39u << 20), 1 << 20);
    b = realloc(b, 80u << 20);
    ok &= b[(40u << 20) - 1] == 1;
    free(b);
  }
  printf("large %d\n", ok);
  printf("mallopt %d trim %d\n", mallopt(M_MMAP_THRESHOLD, 1 << 20), malloc_trim(0) >= 0);
  char* text = NULL;
  printf("asprintf %d ", asprintf(&text, "%0*d", 3000, 7));
  printf("%zu\n", strlen(strdup(text)));
  return 0;
}
