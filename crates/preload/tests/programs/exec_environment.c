// Starts itself through every function of the exec family with an environment that has
// lost everything of the parent's, and prints what arrives: variables named on the line
// "expect" of the caller, sorted, with values.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

static int by_text(const void* a, const void* b) {
  return strcmp(*(char* const*)a, *(char* const*)b);
}

static int child(const char* how) {
  size_t n = 0, extra = 0;
  while (environ[n]) n++;
  qsort(environ, n, sizeof *environ, by_text);
  printf("%s:", how);
  for (size_t i = 0; i < n; i++) {
    if (strncmp(environ[i], "FILL", 4) == 0) extra++;
    else printf(" %s", environ[i]);
  }
  printf(" +%zu\n", extra);
  return 0;
}

static void wait_for(pid_t pid) {
  fflush(stdout);
  int status;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status) printf("FAILED %x\n", status);
}

typedef int spawn_function(int*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                           char* const*, char* const*);

// Functions that glibc has since 2.39.
static void by_pidfd(char* how, char* self, char** environment) {
  fflush(stdout);
  spawn_function* spawn = (spawn_function*)dlsym(RTLD_DEFAULT, how);
  char* argv[] = {self, "child", how, NULL};
  int pidfd = -1;
  int error = spawn ? spawn(&pidfd, self, NULL, NULL, argv, environment) : -1;
  if (error == ENOSYS && strverscmp(gnu_get_libc_version(), "2.39") < 0) printf("%s: not in libc\n", how);
  else if (error) printf("%s: FAILED %d\n", how, error);
  siginfo_t info;
  if (error == 0 && (waitid(3, pidfd, &info, WEXITED) || info.si_status)) printf("FAILED\n");
}

#define TRY(how, call)                     \
  do {                                     \
    fflush(stdout);                        \
    char* argv[] = {self, "child", how, NULL}; \
    (void)argv;                            \
    pid_t pid = vfork();                   \
    if (pid == 0) { call; _exit(9); }      \
    wait_for(pid);                         \
  } while (0)

int main(int argc, char** argv_of_main) {
  if (argc == 3 && strcmp(argv_of_main[1], "child") == 0) return child(argv_of_main[2]);
  char* self = argv_of_main[1];
  char* own[] = {"MINE=1", "PATH=/bin", NULL};
  char* nothing[] = {NULL};
  char* other[] = {"A=1", "LD_PRELOAD=libc.so.6", "EBB_CONTROL=inner", NULL};
  int fill_count = 3000;
  char** many = calloc(fill_count + 2, sizeof *many);
  for (int i = 0; i < fill_count; i++) asprintf(&many[i], "FILL%d=%d", i, i);
  many[fill_count] = "LAST=1";

  TRY("execve", execve(self, argv, own));
  TRY("execve-empty", execve(self, argv, nothing));
  TRY("execve-null", execve(self, argv, NULL));
  TRY("execve-other", execve(self, argv, other));
  TRY("execve-many", execve(self, argv, many));
  TRY("execle", execle(self, self, "child", "execle", NULL, own));
  TRY("execle-many-args", execle(self, self, "child", "execle-many-args", NULL, many));
  TRY("execvpe", execvpe(self, argv, own));
  TRY("fexecve", fexecve(open(self, O_RDONLY | O_CLOEXEC), argv, own));
  TRY("execveat", execveat(AT_FDCWD, self, argv, own, 0));
  pid_t pid;
  char* a1[] = {self, "child", "posix_spawn", NULL};
  if (posix_spawn(&pid, self, NULL, NULL, a1, own)) printf("FAILED\n");
  wait_for(pid);
  char* a2[] = {self, "child", "posix_spawnp-many", NULL};
  if (posix_spawnp(&pid, self, NULL, NULL, a2, many)) printf("FAILED\n");
  wait_for(pid);
  by_pidfd("pidfd_spawn", self, own);
  by_pidfd("pidfd_spawnp", self, many);
  printf("errors: %d", posix_spawn(&pid, "/nonexistent", NULL, NULL, a1, own));
  printf(" %d\n", execve("/nonexistent", a1, many));
  environ = own;
  TRY("execv", execv(self, argv));
  TRY("execvp", execvp(self, argv));
  TRY("execl", execl(self, self, "child", "execl", NULL));
  TRY("execlp", execlp(self, self, "child", "execlp", NULL));
  environ = nothing;
  TRY("execv-cleared", execv(self, argv));
  return 0;
}
