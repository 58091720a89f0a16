// What only C can say: variadic functions.

#define _GNU_SOURCE
#include <alloca.h>
#include <stdarg.h>
#include <stddef.h>

extern char** environ;

// Of src/exec.rs.
int ebb_exec_path(const char* path, char* const argv[], char* const envp[]);
int ebb_exec_search(const char* file, char* const argv[], char* const envp[]);

// Gathers the arguments of an execl call into `argv` on the stack: the caller may be the
// child of a vfork. Leaves `list` behind their null, where execle has its environment.
#define GATHER(argv, list, first)                                             \
  va_list list;                                                               \
  size_t count = 0;                                                           \
  va_start(list, first);                                                      \
  for (const char* arg = first; arg != NULL; arg = va_arg(list, char*)) {     \
    count++;                                                                  \
  }                                                                           \
  va_end(list);                                                               \
  char** argv = alloca((count + 1) * sizeof(char*));                          \
  va_start(list, first);                                                      \
  const char* next = first;                                                   \
  for (size_t i = 0; i < count; i++, next = va_arg(list, char*)) {            \
    argv[i] = (char*)next;                                                    \
  }                                                                           \
  argv[count] = NULL;

int ebb_execl(const char* path, const char* first, ...) {
  GATHER(argv, list, first)
  va_end(list);
  return ebb_exec_path(path, argv, environ);
}

int ebb_execlp(const char* file, const char* first, ...) {
  GATHER(argv, list, first)
  va_end(list);
  return ebb_exec_search(file, argv, environ);
}

int ebb_execle(const char* path, const char* first, ...) {
  GATHER(argv, list, first)
  char** envp = va_arg(list, char**);
  va_end(list);
  return ebb_exec_path(path, argv, envp);
}
