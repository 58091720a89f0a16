// Does everything to memory that programs do, in an order drawn from a seed, and checks all that it reads.
//
//     soak SEED THREADS MIB STEPS [ELEMENT,ELEMENT...]
//
// Each thread has regions of its own, up to MIB / THREADS in all, and takes STEPS steps:
//
// - fill pages (zeros, one value, text-like words, noise) and check them;
// - map, unmap whole and in part, move, grow, drop, make read-only for a moment or for long;
// - grow and shrink blocks of malloc, pass pages through pipes and files, start programs;
// - fork children that check and change their inherited memory.
//
// The content of a page follows from region, page and version. Any other content is found where it is read: a
// message, and SIGABRT. Prints a sum that depends on the arguments alone.
//
// ELEMENTS (elements.h) add signals at any time, executions of itself, and transfers by O_DIRECT and io_uring.
// Others are kills, small stacks, workers that change user, and memory calls by instruction.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "elements.h"
#include "raw.h"
#include "regions.h"
#include "signals.h"
#include "stacks.h"
#include "transfers.h"

static void step_of_victim(struct thread* t);

#include "processes.h"

extern char** environ;

static long steps;

// Through a pipe or a file and back, by system calls on swapped memory.
static void pass(struct thread* t, struct region* r) {
  size_t first, pages;
  part(t, r, &first, &pages);
  if (pages > 8) pages = 8;
  char* from = r->base + first * PAGE;
  char* to = malloc(pages * PAGE);
  must(to != 0, "malloc");
  int ends[2];
  if (below(t, 2)) {
    must(pipe(ends) == 0, "pipe");
    must(write(ends[1], from, pages * PAGE) == (ssize_t)(pages * PAGE), "write to a pipe");
    for (size_t done = 0; done < pages * PAGE;) {
      const ssize_t n = read(ends[0], to + done, pages * PAGE - done);
      must(n > 0, "read from a pipe");
      done += (size_t)n;
    }
    close(ends[1]);
  } else {
    ends[0] = memfd_create("soak", MFD_CLOEXEC);
    must(ends[0] >= 0, "memfd_create");
    must(pwrite(ends[0], from, pages * PAGE, 0) == (ssize_t)(pages * PAGE), "pwrite");
    must(pread(ends[0], to, pages * PAGE, 0) == (ssize_t)(pages * PAGE), "pread");
  }
  close(ends[0]);
  for (size_t i = 0; i < pages; i++) check_at(r, first + i, to + i * PAGE);
  free(to);
}

// The child has the regions as they are at the fork, and changes its own copies alone.
static void divide(struct thread* t) {
  const int rounds = 1 + (int)below(t, 3), meanwhile = (int)below(t, 6);
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    t->random = mix(t->random) | 1;
    for (int i = 0; i < rounds; i++) {
      check_some(t, 2);
      fill_some(t, 2);
      if (below(t, 2)) sched_yield();
    }
    check_some(t, 4);
    _exit(0);
  }
  fill_some(t, meanwhile);
  check_some(t, meanwhile);
  ends_well(child, "a child");
}

static void start_program(void) {
  pid_t child;
  char* argv[] = {"true", 0};
  const int error = posix_spawnp(&child, "true", 0, 0, argv, environ);
  must(error == 0, "posix_spawn");
  ends_well(child, "true");
}

static void step_of_victim(struct thread* t) {
  if (below(t, 3)) fill_some(t, 1);
  else check_some(t, 1);
}

// One of the elements that are steps.
static void extra(struct thread* t) {
  switch (below(t, ELEMENTS)) {
    case EXEC: if (has(EXEC)) execute(t); break;
    case DIRECT: if (has(DIRECT)) direct(t); break;
    case URING: if (has(URING)) uring(t); break;
    case KILLS: if (has(KILLS)) kills(t); break;
    case STACKS: if (has(STACKS)) stacks(t); break;
    case USERS: if (has(USERS)) users(t); break;
    case RAW: if (has(RAW)) raw(t); break;
    default: break;
  }
}

static void step(struct thread* t) {
  if (chosen && below(t, 25) == 0) return extra(t);
  const uint64_t what = below(t, 1000);
  struct region* r = some(t);
  if (what < 100 || !r) make(t);
  else if (what < 450) fill_some(t, 1);
  else if (what < 750) check_some(t, 1);
  else if (what < 770) end(t, r);
  else if (what < 790) cut(t, r);
  else if (what < 830) resize(t, r);
  else if (what < 870) drop(t, r);
  else if (what < 910) protect(t, r);
  else if (what < 980) pass(t, r);
  else if (what < 988) divide(t);
  else if (what < 990) start_program();
  else if (what < 992) usleep(1000);
  else sched_yield();
}

static void* run(void* argument) {
  struct thread* t = argument;
  begin_beat();
  for (long i = 0; i < steps; i++) step(t);
  for (int i = 0; i < REGIONS; i++) {
    struct region* r = &t->regions[i];
    for (size_t p = 0; r->base && p < r->pages; p++) {
      check(r, p);
      t->sum = mix(t->sum ^ key_of(r, p));
    }
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 5 || argc > 6 || !choose(argc == 6 ? argv[5] : "")) {
    fprintf(stderr, "usage: soak SEED THREADS MIB STEPS [ELEMENT,ELEMENT...]\n");
    return 2;
  }
  const uint64_t seed = strtoull(argv[1], 0, 0);
  const int threads = atoi(argv[2]);
  const size_t limit = strtoull(argv[3], 0, 0) * 256 / (size_t)threads;
  steps = atol(argv[4]);
  // Nobody is left behind when the program is ended from outside.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  begin_signals();
  struct thread* all = calloc((size_t)threads, sizeof *all);
  must(all != 0, "calloc");
  for (int i = 0; i < threads; i++) {
    all[i].number = (uint64_t)i + 1;
    all[i].random = mix(seed * 1000 + (uint64_t)i) | 1;
    all[i].limit = limit;
    must(pthread_create(&all[i].handle, 0, run, &all[i]) == 0, "pthread_create");
  }
  uint64_t sum = 0;
  for (int i = 0; i < threads; i++) {
    pthread_join(all[i].handle, 0);
    sum = mix(sum ^ all[i].sum);
  }
  end_signals();
  printf("%016llx\n", (unsigned long long)sum);
  return 0;
}
