// What only C can say: variadic functions, a frame that a forced unwind may pass
// (pthread_exit, cancellation), and the bounds of this library's own code.

#define _GNU_SOURCE
#include <alloca.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern char** environ;

// Of src/exec.rs.
int ebb_exec_path(const char* path, char* const argv[], char* const envp[]);
int ebb_exec_search(const char* file, char* const argv[], char* const envp[]);

// Of src/thread.rs.
void ebb_thread_enter(void);
void mi_free(void* block);

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

// What pthread_create's wrapper hands to the new thread; from mi_malloc.
struct boot {
  union {
    void* (*pthread)(void*);
    int (*c11)(void*);
  } start;
  void* arg;
};

void* ebb_thread_boot(void* raw) {
  struct boot boot = *(struct boot*)raw;
  mi_free(raw);
  ebb_thread_enter();
  return boot.start.pthread(boot.arg);
}

int ebb_c11_thread_boot(void* raw) {
  struct boot boot = *(struct boot*)raw;
  mi_free(raw);
  ebb_thread_enter();
  return boot.start.c11(boot.arg);
}

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _etext[] __attribute__((visibility("hidden")));

int ebb_is_own_code(const void* at) {
  return (uintptr_t)at >= (uintptr_t)__ehdr_start && (uintptr_t)at < (uintptr_t)_etext;
}
