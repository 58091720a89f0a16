// What only C can say: variadic functions; and an unwinder's functions, which never unwind.

#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The name of this library to libc, where the compiler's start would have it.
__attribute__((visibility("hidden"))) void* __dso_handle = &__dso_handle;

// Of src/process/exec.rs.
int ebb_exec_list(const char* path, char* const argv[]);
int ebb_exec_list_search(const char* file, char* const argv[]);
int ebb_exec_path(const char* path, char* const argv[], char* const envp[]);

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
  return ebb_exec_list(path, argv);
}

int ebb_execlp(const char* file, const char* first, ...) {
  GATHER(argv, list, first)
  va_end(list);
  return ebb_exec_list_search(file, argv);
}

int ebb_execle(const char* path, const char* first, ...) {
  GATHER(argv, list, first)
  char** envp = va_arg(list, char**);
  va_end(list);
  return ebb_exec_path(path, argv, envp);
}

// ---- No unwinder ----
//
// A panic of ours ends the process, so nothing of ours unwinds, and no trace is printed. Rust's standard library names
// these functions all the same, and would have every program load libgcc_s.so.1, which costs a small one a quarter of
// its start. They are hidden: whoever unwinds the program's own frames has the program's unwinder.

enum { END_OF_STACK = 5 };

int _Unwind_Backtrace(void* function, void* argument) {
  (void)function;
  (void)argument;
  return END_OF_STACK;
}

#define NEVER(name) \
  uintptr_t name(void) { abort(); }

NEVER(_Unwind_GetDataRelBase)
NEVER(_Unwind_GetIP)
NEVER(_Unwind_GetIPInfo)
NEVER(_Unwind_GetLanguageSpecificData)
NEVER(_Unwind_GetRegionStart)
NEVER(_Unwind_GetTextRelBase)
NEVER(_Unwind_GetCFA)
NEVER(_Unwind_FindEnclosingFunction)
NEVER(_Unwind_SetGR)
NEVER(_Unwind_SetIP)

// An exception or the end of a cancelled thread passes through a frame of the standard library's, which has cleaned up.
// Then there is an unwinder: that goes on.
void _Unwind_Resume(void* exception) {
  void* library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void (*resume)(void*) = library == NULL ? NULL : (void (*)(void*))dlsym(library, "_Unwind_Resume");
  if (resume != NULL) { resume(exception); }
  abort();
}
