// How much memory a program holds that it has freed, and what growing a block costs; in
// whole numbers of a size at which small differences do not show.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static long held(void) {
  char line[200];
  long kib = -1;
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  while (fgets(line, sizeof line, file)) sscanf(line, "Anonymous: %ld", &kib);
  fclose(file);
  return kib / 1024;
}

static long peak(void) {
  char line[200];
  long kib = -1;
  FILE* file = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, file)) sscanf(line, "VmHWM: %ld", &kib);
  fclose(file);
  return kib / 1024;
}

static void say(const char* what, long mib, long most) {
  if (mib <= most) printf("%s: ok\n", what);
  else printf("%s: %ld MiB, at most %ld\n", what, mib, most);
}

int main(void) {
  say("at the start", held(), 1);
  char* grown = NULL;
  for (size_t size = MIB; size <= 128 * MIB; size += MIB) {
    grown = realloc(grown, size);
    memset(grown + size - MIB, 1, MIB);
  }
  say("peak of growing to 128", peak(), 128 + 16);
  free(grown);
  say("grown block freed", held(), 8);
  char* large = malloc(100 * MIB);
  memset(large, 1, 100 * MIB);
  free(large);
  say("large block freed", held(), 8);
  char* buffers[40];
  for (int i = 0; i < 40; i++) memset(buffers[i] = malloc(3 * MIB), 1, 3 * MIB);
  for (int i = 0; i < 40; i++) free(buffers[i]);
  say("buffers freed", held(), 24);
  enum { COUNT = 500000 };
  static char* small[COUNT];
  for (int i = 0; i < COUNT; i++) memset(small[i] = malloc(100 + i % 200), 1, 100);
  for (int i = 0; i < COUNT; i++) free(small[i]);
  say("small blocks freed", held(), 24 + COUNT * sizeof(char*) / MIB);
  return 0;
}
