// Memory calls on small stacks: of threads, and alternate ones of signal handlers. Below each lies a pattern
// that nobody may change.
#pragma once
#include <signal.h>
#include "elements.h"
#include "regions.h"

enum { GUARD = 16 * PAGE };

static unsigned char guard_byte(size_t at) { return (unsigned char)(0x80 | (at * 7 & 0x7f)); }

// A stack with the pattern below it; what it can be used for starts at GUARD.
static char* open_stack(size_t bytes) {
  char* base = mmap(0, GUARD + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(base != MAP_FAILED, "mmap of a stack");
  for (size_t i = 0; i < GUARD; i++) base[i] = (char)guard_byte(i);
  return base;
}

static void close_stack(char* base, size_t bytes, const char* what) {
  for (size_t i = 0; i < GUARD; i++) {
    if ((unsigned char)base[i] == guard_byte(i)) continue;
    fprintf(stderr, "soak: %zu bytes below %s of %zu bytes were overwritten\n", GUARD - i, what, bytes);
    abort();
  }
  must(munmap(base, GUARD + bytes) == 0, "munmap of a stack");
}

// Calls that are allowed in a handler too, with little stack.
static void memory_calls(void) {
  const size_t bytes = 24 * PAGE;
  char* memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  for (size_t i = 0; i < bytes; i += PAGE) memory[i] = (char)(i / PAGE + 1);
  if (madvise(memory + bytes / 2, PAGE, MADV_DONTNEED) != 0) abort();
  if (mprotect(memory, PAGE, PROT_READ) != 0) abort();
  if (mprotect(memory, PAGE, PROT_READ | PROT_WRITE) != 0) abort();
  memory = mremap(memory, bytes, bytes + PAGE, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) abort();
  for (size_t i = 0; i < bytes; i += PAGE)
    if (memory[i] != (i == bytes / 2 ? 0 : (char)(i / PAGE + 1))) abort();
  if (munmap(memory, bytes + PAGE) != 0) abort();
}

static void* on_small_stack(void* argument) {
  (void)argument;
  memory_calls();
  char* block = malloc(200000);
  if (!block) abort();
  memset(block, 1, 200000);
  free(block);
  memory_calls();
  return 0;
}

static void small_thread(struct thread* t) {
  const size_t bytes = (size_t)sysconf(_SC_THREAD_STACK_MIN) + below(t, 8) * PAGE;
  char* base = open_stack(bytes);
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, old;
  // Handlers would take of the little stack.
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old);
  must(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
  must(pthread_attr_setstack(&attributes, base + GUARD, bytes) == 0, "pthread_attr_setstack");
  must(pthread_create(&thread, &attributes, on_small_stack, 0) == 0, "a thread on a small stack");
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &old, 0);
  fill_some(t, 1);
  must(pthread_join(thread, 0) == 0, "pthread_join");
  close_stack(base, bytes, "a thread's stack");
}

static void on_alternate_stack(int number) {
  (void)number;
  const int saved = errno;
  memory_calls();
  errno = saved;
}

static void alternate(struct thread* t) {
  const size_t bytes = (size_t)sysconf(_SC_SIGSTKSZ) + below(t, 4) * 2048;
  char* base = open_stack(bytes);
  const stack_t own = {.ss_sp = base + GUARD, .ss_size = bytes}, none = {.ss_flags = SS_DISABLE};
  struct sigaction action = {.sa_handler = on_alternate_stack, .sa_flags = SA_ONSTACK};
  sigfillset(&action.sa_mask);
  must(sigaction(SIGUSR2, &action, 0) == 0, "sigaction");
  must(sigaltstack(&own, 0) == 0, "sigaltstack");
  fill_some(t, 1);
  must(pthread_kill(pthread_self(), SIGUSR2) == 0, "pthread_kill");
  must(sigaltstack(&none, 0) == 0, "sigaltstack");
  close_stack(base, bytes, "an alternate stack");
}

static void stacks(struct thread* t) {
  if (below(t, 2)) small_thread(t);
  else alternate(t);
}
