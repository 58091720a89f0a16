// Processes that execute the program again, are killed at any moment, or become another user.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include "elements.h"
#include "regions.h"

// A small run of this program in place of the process; its handler's signal is ignored until then.
static void become_again(uint64_t seed) {
  char number[24];
  snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
  // No element that starts processes: the runs would not end.
  char* argv[] = {"soak", number, "1", "6", "150", has(SIGNALS) ? "signals,stacks" : "stacks", 0};
  if (!has(STACKS)) argv[5] = has(SIGNALS) ? "signals" : 0;
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0 || dup2(nowhere, 1) < 0) _exit(3);
  execv("/proc/self/exe", argv);
  _exit(4);
}

static void execute(struct thread* t) {
  const uint64_t seed = 1 + below(t, 100000);
  const int touches = (int)below(t, 3);
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    check_some(t, touches);
    become_again(seed);
  }
  fill_some(t, 1);
  ends_well(child, "an execution of this program");
}

// Ends the process if its child, which works as it does, ended by anything but a kill; 1 if it was killed.
static int was_killed(pid_t child) {
  int status;
  if (waitpid(child, &status, WNOHANG) != child) return 0;
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) abort();
  return 1;
}

// The process ends with its parent, also where that has ended by now.
static void end_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
}

// Works until it is killed, with a child that does the same, and another where that is killed.
static void work_for_ever(struct thread* t, uint64_t random) {
  const pid_t self = getpid();
  t->random = mix(random) | 1;
  int has_children = 1;
  pid_t child = 0;
  for (uint64_t i = 1;; i++) {
    if (has_children && (child == 0 || was_killed(child))) child = fork();
    if (has_children && child == 0) {
      end_with(self);
      t->random = mix(random + i) | 1;
      has_children = 0;
    }
    step_of_victim(t);
  }
}

// Kills a child of a process, if it has one.
static void kill_below(pid_t process) {
  char path[64], text[64] = "";
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", process, process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  const int child = bytes > 0 ? atoi(text) : 0;
  if (child > 0) kill(child, SIGKILL);
}

static void kills(struct thread* t) {
  const uint64_t random = draw(t), first = below(t, 20000), second = below(t, 20000);
  const pid_t self = getpid(), victim = fork();
  must(victim >= 0, "fork");
  if (victim == 0) {
    end_with(self);
    work_for_ever(t, random);
  }
  fill_some(t, 1);
  usleep((unsigned)first);
  kill_below(victim);
  usleep((unsigned)second);
  must(kill(victim, SIGKILL) == 0, "kill");
  int status;
  while (waitpid(victim, &status, 0) < 0) must(errno == EINTR, "waitpid");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
  fprintf(stderr, "soak: a process that was to be killed ended with status %x\n", (unsigned)status);
  abort();
}

static volatile int users_done;

static void* beside(void* argument) {
  (void)argument;
  char* memory = malloc(64 * PAGE);
  for (int i = 0; memory && !users_done; i++) memory[i % 64 * PAGE] = (char)i;
  free(memory);
  return 0;
}

enum { NOBODY = 65534 };

// A worker of root's becomes nobody, with all of its threads, and goes on with its memory.
static void users(struct thread* t) {
  if (geteuid() != 0) return;
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    pthread_t other;
    must(pthread_create(&other, 0, beside, 0) == 0, "pthread_create");
    check_some(t, 1);
    must(setgroups(0, 0) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "becoming nobody");
    must(setuid(0) != 0, "staying nobody");
    fill_some(t, 2);
    check_some(t, 4);
    users_done = 1;
    must(pthread_join(other, 0) == 0, "pthread_join");
    _exit(0);
  }
  fill_some(t, 1);
  ends_well(child, "a worker that became nobody");
}
