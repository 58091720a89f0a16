// Signals at any time. Each thread has a timer of its own, of its processor time. A process that does nothing else
// signals the whole group, so also a child that fork has just made and a program that is being replaced.
//
// A handler may take longer than the pause between two signals where the machine is busy. Handlers would then run
// alone, for ever. So the next signal waits until somebody has worked on a page since the last one, but not for long:
// somebody may wait for a signal.
//
// The handler checks and changes memory that nobody else touches. The signal is SIGWINCH, which a program
// that has no handler yet ignores.
#pragma once
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include "elements.h"
#include "regions.h"

enum { BEAT_PAGES = 192, BEAT_WORDS = 8, WORKED = 4 };

// Memory of a thread's handler: pages, of each the words at equal distances.
struct beat {
  uint64_t* memory;
  uint64_t count;
  uint32_t version[BEAT_PAGES];
};

static __thread struct beat* beat;
static pid_t pinger;

static uint64_t beat_word(uint64_t page, uint32_t version, int i) {
  return version ? mix(page << 40 | (uint64_t)version << 8 | (uint64_t)i) : 0;
}

static void on_signal(int number) {
  (void)number;
  struct beat* b = beat;
  if (!b) return;
  const int saved = errno;
  const uint64_t page = mix(++b->count) % BEAT_PAGES;
  uint64_t* words = b->memory + page * WORDS;
  const uint32_t version = b->version[page]++;
  for (int i = 0; i < BEAT_WORDS; i++) {
    uint64_t* at = words + i * (WORDS / BEAT_WORDS);
    if (*at != beat_word(page, version, i)) {
      // Nothing that prints may be called here.
      static const char text[] = "soak: a signal handler found wrong data\n";
      if (write(2, text, sizeof text - 1) > 0) abort();
      abort();
    }
    *at = beat_word(page, version + 1, i);
  }
  errno = saved;
}

// The rest of its life this process signals its group.
static void ping(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  for (uint64_t n = 0;; n++) {
    const struct timespec pause = {0, 100000 + (long)(mix(n) % 2000000)};
    const uint64_t before = __atomic_load_n(work, __ATOMIC_RELAXED);
    for (int tries = 0; tries < 50; tries++) {
      nanosleep(&pause, 0);
      if (__atomic_load_n(work, __ATOMIC_RELAXED) - before >= WORKED) break;
    }
    kill(0, SIGWINCH);
  }
}

// For the program: its handler, its group and who signals it. Before there is much memory.
static void begin_signals(void) {
  if (!has(SIGNALS)) return;
  const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  must(sigaction(SIGWINCH, &action, 0) == 0, "sigaction");
  must(setpgid(0, 0) == 0 || errno == EPERM, "setpgid");
  work = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(work != MAP_FAILED, "mmap");
  const pid_t self = getpid();
  pinger = fork();
  must(pinger >= 0, "fork");
  if (pinger == 0) ping(self);
}

static void end_signals(void) {
  if (pinger <= 0) return;
  kill(pinger, SIGKILL);
  while (waitpid(pinger, 0, 0) < 0) must(errno == EINTR, "waitpid");
  pinger = 0;
}

// For a thread: memory for its handler, and a timer.
static void begin_beat(void) {
  if (!has(SIGNALS)) return;
  struct beat* b = calloc(1, sizeof *b);
  must(b != 0, "calloc");
  b->memory = mmap(0, BEAT_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(b->memory != MAP_FAILED, "mmap");
  beat = b;
  timer_t timer;
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGWINCH};
  event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
  must(timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0, "timer_create");
  const struct itimerspec often = {{0, 3000000}, {0, 3000000}};
  must(timer_settime(timer, 0, &often, 0) == 0, "timer_settime");
}
