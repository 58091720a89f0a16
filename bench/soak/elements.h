// Elements that a run may have beside its steps on memory, each by its name in the last argument.
#pragma once
#include <string.h>

enum element { SIGNALS, EXEC, DIRECT, URING, KILLS, STACKS, USERS, RAW, ELEMENTS };

static const char* const element_names[ELEMENTS] = {
  "signals", "exec", "direct", "uring", "kills", "stacks", "users", "raw",
};

static unsigned chosen;  // a bit for each

static int has(enum element e) { return chosen >> e & 1; }

// Reads "signals,exec"; 0 if there is a name that nobody knows.
static int choose(const char* names) {
  while (*names) {
    const size_t length = strcspn(names, ",");
    int e = 0;
    while (e < ELEMENTS &&
           (strlen(element_names[e]) != length || strncmp(element_names[e], names, length) != 0))
      e++;
    if (e == ELEMENTS) return 0;
    chosen |= 1u << e;
    names += length + (names[length] == ',');
  }
  return 1;
}
