// mimalloc as one translation unit, and a way to hold its locks across a fork.
//
// mimalloc has no fork handler. Its locks guard rare events (a new arena, a thread that
// starts or ends, growth of its page map), but a child forked while another thread holds
// one would wait for that thread for ever. All are taken before the fork, by trial so
// that no order among them matters, and released on both sides.

#include "static.c"
#include <sched.h>

#define LOCK_COUNT 9

static void fork_locks(mi_lock_t* locks[LOCK_COUNT]) {
  mi_subproc_t* subproc = _mi_subproc_main();
  mi_heap_t* heap = mi_heap_main();
  int i = 0;
  locks[i++] = &subprocs_lock;
  locks[i++] = &mi_thread_locals_lock;
  locks[i++] = &mi_page_map_lock;
  locks[i++] = &out_buf_lock;
  locks[i++] = &subproc->arena_reserve_lock;
  locks[i++] = &subproc->heaps_lock;
  locks[i++] = &heap->theaps_lock;
  locks[i++] = &heap->os_abandoned_pages_lock;
  locks[i++] = &heap->arena_pages_lock;
}

static int try_all(mi_lock_t* locks[LOCK_COUNT]) {
  for (int i = 0; i < LOCK_COUNT; i++) {
    if (!mi_lock_try_acquire(locks[i])) {
      while (i-- > 0) { mi_lock_release(locks[i]); }
      return 0;
    }
  }
  return 1;
}

void ebb_malloc_before_fork(void) {
  mi_lock_t* locks[LOCK_COUNT];
  fork_locks(locks);
  while (!try_all(locks)) { sched_yield(); }
}

// The thread that took the locks, or its copy in the child, releases them.
void ebb_malloc_after_fork(void) {
  mi_lock_t* locks[LOCK_COUNT];
  fork_locks(locks);
  for (int i = 0; i < LOCK_COUNT; i++) { mi_lock_release(locks[i]); }
}
