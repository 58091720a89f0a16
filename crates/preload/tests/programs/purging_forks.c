// Forks while another thread gives freed memory back. That thread stands in a signal handler meanwhile, so that it is
// in the midst of it. The children then free memory, which must not stay with them.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FORKS = 20, BLOCKS = 40 };

#define MIB ((size_t)1 << 20)

static volatile int standing, go_on, over;

static void pause_ms(int ms) {
  const struct timespec time = {0, ms * 1000000L};
  nanosleep(&time, NULL);
}

// The fork waits for this thread where it holds a lock of the allocator's: so it goes on by itself after a while.
static void stand(int signal) {
  standing = 1;
  for (int i = 0; i < 200 && !go_on; i++) pause_ms(1);
  standing = 0;
}

static void* gives_back(void* unused) {
  while (!over) {
    void* blocks[8];
    for (int i = 0; i < 8; i++) {
      blocks[i] = malloc(3 * MIB);
      *(char*)blocks[i] = 1;
    }
    for (int i = 0; i < 8; i++) free(blocks[i]);
    for (int i = 0; i < 8; i++) malloc_trim(0);
  }
  return unused;
}

static long held(void) {
  char line[200];
  long kib = -1;
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  while (fgets(line, sizeof line, file)) sscanf(line, "Anonymous: %ld", &kib);
  fclose(file);
  return kib / 1024;
}

// The status of a child: whether it holds what it freed.
static int keeps(void) {
  char* blocks[BLOCKS];
  const long before = held();
  for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(3 * MIB), 1, 3 * MIB);
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
  return held() - before > 40;
}

int main(void) {
  pthread_t thread;
  int kept = 0;
  signal(SIGUSR1, stand);
  pthread_create(&thread, NULL, gives_back, NULL);
  for (int i = 0; i < FORKS; i++) {
    pause_ms(1 + i % 7);
    go_on = 0;
    pthread_kill(thread, SIGUSR1);
    while (!standing) pause_ms(1);
    const pid_t child = fork();
    if (child == 0) {
      // A child that hangs does not outlive the test.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(30);
      _exit(keeps());
    }
    go_on = 1;
    while (standing) pause_ms(1);
    int status;
    if (waitpid(child, &status, 0) != child || status) kept++;
  }
  over = 1;
  pthread_join(thread, NULL);
  printf("%d children keep freed memory\n", kept);
  return 0;
}
