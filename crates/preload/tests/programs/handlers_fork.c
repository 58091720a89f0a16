// A timer's handler forks in whatever the thread is at. That starts and ends threads, each of which allocates, and has
// malloc get new memory from the system: malloc holds locks of its own then. The children end at once.
// (glibc's own fork would wait for a lock of its thread's there; _Fork is fit for handlers.)
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 2, BLOCKS = 3000, BLOCK = 1 << 20 };

static volatile sig_atomic_t forks, failed, over;

// Once more, a moment later, or the thread would come to nothing between two.
static void again(void) {
  static unsigned random = 1;
  random = random * 1103515245 + 12345;
  struct itimerval once = {{0, 0}, {0, 100 + random / 65536 % 500}};
  if (!over) setitimer(ITIMER_REAL, &once, NULL);
}

static void forking(int signal) {
  int error = errno;
  pid_t child = _Fork();
  if (child == 0) _exit(7);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 7) failed = 1;
  forks++;
  again();
  errno = error;
}

static void* allocates(void* unused) {
  for (int i = 0; i < 20; i++) free(malloc(100 << i % 10));
  return unused;
}

// In a process of its own, whose malloc has no memory yet.
static int works(void) {
  // A handler that waits for ever does not outlive the test.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  static void* blocks[BLOCKS];
  signal(SIGALRM, forking);
  again();
  for (int i = 0; i < BLOCKS; i++) {
    blocks[i] = malloc(BLOCK);
    if (!blocks[i]) return 1;
    if (i % 20 == 0) {
      pthread_t thread;
      if (pthread_create(&thread, NULL, allocates, NULL)) return 1;
      pthread_join(thread, NULL);
    }
  }
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
  over = 1;
  return failed || !forks;
}

int main(void) {
  int wrong = 0;
  for (int round = 0; round < ROUNDS; round++) {
    pid_t child = fork();
    if (child == 0) _exit(works());
    int status;
    if (waitpid(child, &status, 0) != child || status) wrong++;
  }
  printf("%d wrong\n", wrong);
  return 0;
}
