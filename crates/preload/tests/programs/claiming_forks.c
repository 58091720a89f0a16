// Forks while another thread takes over a page of the allocator's that an ended thread left. That thread stands at one
// of its stores meanwhile, as where memory is out: the memory may not be written, and the handler of the fault waits.
// Each round is a process, in which it is the next store. The child then frees the last block of the page.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 16, BLOCKS = 20, BLOCK = 700, PAGE = 4096 };

static void* left;
static uintptr_t from, to;
static volatile int faults, stands_at, begun, ready, standing, go_on, taken_over;
static volatile pid_t taker;

static void pause_ms(int ms) {
  const struct timespec time = {0, ms * 1000000L};
  nanosleep(&time, NULL);
}

static void handle_fault(int signal, siginfo_t* info, void* context) {
  const uintptr_t at = (uintptr_t)info->si_addr / PAGE * PAGE;
  if (at < from || at >= to) _exit(3);
  if (gettid() == taker && faults++ == stands_at) {
    standing = 1;
    // The fork may wait for this thread: so it goes on by itself after a while.
    for (int i = 0; i < 200 && !go_on; i++) pause_ms(1);
  }
  mprotect((void*)at, PAGE, PROT_READ | PROT_WRITE);
}

// A thread's stack may lie in the memory that may not be written.
static void own_signal_stack(void* stack) {
  const stack_t signals = {.ss_sp = stack, .ss_size = 64 << 10};
  sigaltstack(&signals, NULL);
}

static void* leaves(void* unused) {
  void* blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(BLOCK);
  for (int i = 1; i < BLOCKS; i++) free(blocks[i]);
  left = blocks[0];
  return unused;
}

static void* takes_over(void* unused) {
  static char stack[64 << 10];
  own_signal_stack(stack);
  // Of another size, and not freed before the end: else the next call would write beside the words of the page.
  void* other = malloc(40);
  taker = gettid();
  ready = 1;
  while (!begun) {}
  void* block = malloc(BLOCK);
  taken_over = 1;
  while (!go_on) pause_ms(1);
  free(block);
  free(other);
  return unused;
}

// The map that a block lies in, up to the block: the allocator's words about its pages are at its start.
static void find_map(void* block) {
  char line[300];
  FILE* maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps)) {
    unsigned long start, end;
    if (sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
    if ((uintptr_t)block >= start && (uintptr_t)block < end) {
      from = start;
      to = (uintptr_t)block / PAGE * PAGE + PAGE;
    }
  }
  fclose(maps);
}

static int frees_in_child(void) {
  alarm(5);
  mprotect((void*)from, to - from, PROT_READ | PROT_WRITE);
  free(left);
  return 0;
}

static int round_of(int store) {
  static char stack[64 << 10];
  pthread_t thread;
  struct sigaction action = {.sa_sigaction = handle_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(20);
  stands_at = store;
  own_signal_stack(stack);
  pthread_create(&thread, NULL, leaves, NULL);
  pthread_join(thread, NULL);
  find_map(left);
  pthread_create(&thread, NULL, takes_over, NULL);
  while (!ready) pause_ms(1);
  sigaction(SIGSEGV, &action, NULL);
  mprotect((void*)from, to - from, PROT_READ);
  begun = 1;
  while (!standing && !taken_over) {}
  const pid_t child = fork();
  if (child == 0) _exit(frees_in_child());
  go_on = 1;
  pthread_join(thread, NULL);
  mprotect((void*)from, to - from, PROT_READ | PROT_WRITE);
  int status;
  return waitpid(child, &status, 0) != child || status;
}

int main(void) {
  int wrong = 0;
  for (int store = 0; store < ROUNDS; store++) {
    const pid_t child = fork();
    if (child == 0) _exit(round_of(store));
    int status = -1;
    if (waitpid(child, &status, 0) != child || status) {
      fprintf(stderr, "store %d: status %#x\n", store, status);
      wrong++;
    }
  }
  printf("%d wrong\n", wrong);
  return 0;
}
