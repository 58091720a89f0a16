// mimalloc as one translation unit, with what its interface lacks: a bound on the freed
// memory that it keeps, a free that tells whose a block is, and a way to hold its locks
// across a fork.

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if __has_include(<sys/platform/x86.h>)
#include <sys/platform/x86.h>
#endif

// ---- Growth ----

// What the program may fill is told to the pager. An arena of 128 MiB says nothing of it.
void* ebb_mi_reserve(void* addr, size_t size, int protection, int flags, int fd, off_t offset);
void ebb_mi_grows(size_t bytes);

// ---- Locks ----
//
// A signal handler may interrupt a thread that holds a lock of mimalloc's, and fork. The fork must know that the lock is
// its own thread's, from the very instruction that takes it. A mutex of libc names its owner a moment later. So each
// lock is a word in the place of that mutex: the owner, or 0.

#define _DEFAULT_SOURCE
#include "mimalloc.h"

#define mi_lock_try_acquire mutex_try_acquire
#define mi_lock_acquire mutex_acquire
#define mi_lock_release mutex_release
#include "mimalloc/types.h"
#undef mi_lock_try_acquire
#undef mi_lock_acquire
#undef mi_lock_release
static inline bool mi_lock_try_acquire(mi_lock_t* lock);
static inline void mi_lock_acquire(mi_lock_t* lock);
static inline void mi_lock_release(mi_lock_t* lock);

// ---- Start ----

// mimalloc starts with the first block, not with the library: most processes that live for a moment ask for none.
#define MI_PRIM_HAS_PROCESS_ATTACH

#include "mimalloc/internal.h"

// Called by mimalloc when all of it is ready.
static void started(void);
#undef mi_track_init
#define mi_track_init() started()

// In a virtual machine each CPUID instruction costs as much as two system calls. The loader has asked before, and
// says what it was told. So mimalloc's own function is never called: this macro renames the definition, and has the
// call be one of ours.
#define mi_detect_cpu_features(nothing) DETECT_##nothing
#define DETECT_void detect_by_instruction(void)
#define DETECT_ detect_by_loader()
static void detect_by_loader(void);
static void detect_by_instruction(void) __attribute__((unused));

// It looks for the nodes of the machine until one is not there, which is no error of who asks for the first block.
#define _mi_prim_numa_node_count(nothing) NODES_##nothing
#define NODES_void count_nodes(void)
#define NODES_ count_nodes_quietly()
static size_t count_nodes_quietly(void);

// Where mimalloc waits for another thread it calls `sleep`, libc's point of cancellation: `malloc` is none. Still a
// wait of the system's, so that a thread of lower priority gets the processor, too.
#define sleep(seconds) sleep_uncancelled()
static void sleep_uncancelled(void) {
  const int before = errno;
  const struct timespec none = {0, 0};
  syscall(SYS_nanosleep, &none, NULL);
  errno = before;
}

// The library calls its own `syscall`. Its `prctl` goes on to another library's, which may need a block for that.
#define prctl(option, a, b, c, d) prctl_of_ours(option, a, b, c, d)
static int prctl_of_ours(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
  return (int)syscall(SYS_prctl, option, a, b, c, d);
}

// One thread at a time gives freed memory back, and who it is must be known after a fork.
static bool begin_purge(void);
static void end_purge(void);
#undef mi_atomic_guard
#define mi_atomic_guard(guard) \
  for (bool purges = begin_purge(); purges; purges = (end_purge(), false))

// So it is with a page that no thread owns and one takes over: this macro, too, renames the definition, and has the
// call be one of ours.
#define mi_arenas_page_try_find_abandoned(theap, ...) FIND_##theap, __VA_ARGS__)
#define FIND_mi_theap_t find_abandoned_page(mi_theap_t
#define FIND_theap find_abandoned_alone(theap
static mi_page_t* find_abandoned_alone(mi_theap_t* theap, size_t slice_count, size_t block_size);

#define mmap ebb_mi_reserve
#include "static.c"
#undef mmap
#undef prctl
#undef sleep

static size_t count_nodes_quietly(void) {
  const int before = errno;
  const size_t nodes = count_nodes();
  errno = before;
  return nodes;
}

// What a futex is for: waits while the lower half of the word is `seen`.
void ebb_mi_wait(const uint32_t* word, uint32_t seen);
void ebb_mi_wake_one(const uint32_t* word);

typedef uintptr_t __attribute__((may_alias)) lock_word_t;
// Beside the owner: somebody waits.
#define WAITED ((uintptr_t)1)

static mi_decl_thread size_t freed_bytes;

// A thread, and its copy in a forked child.
static inline uintptr_t this_thread(void) { return (uintptr_t)&freed_bytes; }

static inline lock_word_t* word_of(mi_lock_t* lock) { return (lock_word_t*)lock; }

static inline bool take(lock_word_t* word, uintptr_t* seen, uintptr_t owner) {
  return __atomic_compare_exchange_n(word, seen, owner, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline bool mi_lock_try_acquire(mi_lock_t* lock) {
  uintptr_t nobody = 0;
  return take(word_of(lock), &nobody, this_thread());
}

static mi_decl_noinline void acquire_slowly(lock_word_t* word) {
  uintptr_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    if (seen == 0) {
      // Others may wait still.
      if (take(word, &seen, this_thread() | WAITED)) { return; }
    }
    else if ((seen & WAITED) != 0 || take(word, &seen, seen | WAITED)) {
      ebb_mi_wait((const uint32_t*)word, (uint32_t)(seen | WAITED));
      seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    }
  }
}

static inline void mi_lock_acquire(mi_lock_t* lock) {
  if mi_unlikely(!mi_lock_try_acquire(lock)) { acquire_slowly(word_of(lock)); }
}

static inline void mi_lock_release(mi_lock_t* lock) {
  if mi_unlikely((__atomic_exchange_n(word_of(lock), 0, __ATOMIC_RELEASE) & WAITED) != 0) {
    ebb_mi_wake_one((const uint32_t*)lock);
  }
}

static inline bool is_own(mi_lock_t* lock) {
  return (__atomic_load_n(word_of(lock), __ATOMIC_RELAXED) & ~WAITED) == this_thread();
}

// Beside mimalloc's options, whose page every process has: a page of zeros would be one more fault.
#define IN_DATA __attribute__((section(".data")))

// Held by the thread that gives freed memory back; nobody waits for it. A fork does not either: that thread makes many
// calls, and in the child another may begin.
static mi_lock_t purge_lock IN_DATA;

static bool begin_purge(void) { return mi_lock_try_acquire(&purge_lock); }

static void end_purge(void) { mi_lock_release(&purge_lock); }

// Held by the thread that looks for a page without an owner. On the way such a page is in no list, and nobody's. A
// child forked then would wait for that thread for ever, as it frees the page's last block. So forks wait for
// this lock. Other threads do not: they take new pages.
static mi_lock_t claim_lock IN_DATA;

static mi_page_t* find_abandoned_alone(mi_theap_t* theap, size_t slice_count, size_t block_size) {
  if (!mi_lock_try_acquire(&claim_lock)) { return NULL; }
  mi_page_t* const page = find_abandoned_page(theap, slice_count, block_size);
  mi_lock_release(&claim_lock);
  return page;
}

// The tests of mimalloc's own function.
static void detect_by_loader(void) {
#if __has_include(<sys/platform/x86.h>)
  const bool fsrm = CPU_FEATURE_PRESENT(FSRM);
  _mi_cpu_has_popcnt = CPU_FEATURE_PRESENT(POPCNT);
  if (fsrm) { _mi_cpu_movsb_max = 127; }
#else
  detect_by_instruction();
#endif
}

// ---- Freed memory that is kept ----

// mimalloc gives freed memory back after a delay, and looks for it only every some thousand
// slow allocations: a program that frees much and then computes would keep it all. So
// each thread takes a look itself whenever it has freed LOOK_AFTER bytes.
#define LOOK_AFTER ((size_t)8 << 20)

// Freed memory past this many bytes is given back at once: kept free it would count as
// memory that is not managed. The lower, the less dead memory is held against the budget; the higher, the more a program
// that frees and allocates buffers in turn finds its pages still there.
#define KEEP_FREED ((size_t)16 << 20)

static size_t purgeable_bytes(mi_subproc_t* subproc) {
  size_t slices = 0;
  const size_t arenas = mi_arenas_get_count(subproc);
  for (size_t i = 0; i < arenas; i++) {
    mi_arena_t* arena = mi_arena_from_index(subproc, i);
    if (arena != NULL) { slices += mi_bitmap_popcount(arena->slices_purge); }
  }
  return slices * MI_ARENA_SLICE_SIZE;
}

static mi_decl_noinline void look(void) {
  freed_bytes = 0;
  mi_subproc_t* const subproc = _mi_subproc_main();
  if (purgeable_bytes(subproc) >= KEEP_FREED) { mi_arenas_try_purge(true, true, subproc, 0); }
}

// Called by mimalloc once for each slow allocation of a thread: the delayed purge, on time. Between
// two of them a thread comes to a page or so of small blocks that were never used.
#define BEATS 32

static void heartbeat(bool force, unsigned long long beat, void* arg) {
  MI_UNUSED(force); MI_UNUSED(arg);
  if (beat % BEATS == 0) {
    ebb_mi_grows(BEATS * 4096);
    mi_arenas_try_purge(false, false, _mi_subproc_main(), 0);
  }
}

// The library's constructor has run. Before it, libc is not ready for all that a start takes.
bool ebb_mi_constructed IN_DATA;
// mimalloc was started before it: the constructor finishes that.
bool ebb_mi_early IN_DATA;

void ebb_mi_finish_start(void) {
  os_preloading = false;
  mi_process_setup_auto_thread_done();
  _mi_thread_locals_init();
  _mi_options_post_init();
  _mi_random_reinit_if_weak(&theap_main.random);
  mi_register_deferred_free(&heartbeat, NULL);
}

static void started(void) {
  ebb_mi_early = !ebb_mi_constructed;
  if (ebb_mi_constructed) { ebb_mi_finish_start(); }
}

// Starts mimalloc on this thread, if it has not been started: the first thread's part of it ends with the process.
void ebb_mi_start(void) {
  mi_process_init();
}

// ---- Blocks: whose they are ----

// Frees a block of mimalloc's; false, and nothing done, for null and for any other address.
bool ebb_mi_free(void* p) {
  if mi_unlikely(_mi_page_map == NULL) { return false; }
  mi_page_t* const page = _mi_checked_ptr_page(p);
  if mi_unlikely(page == NULL) { return false; }
  freed_bytes += mi_page_block_size(page);
  mi_free_ex(p, NULL, page);
  if mi_unlikely(freed_bytes >= LOOK_AFTER) {
    // Memory that is locked is not given back, which is no error of whoever frees.
    const int before = errno;
    look();
    errno = before;
  }
  return true;
}

bool ebb_mi_owns(const void* p) {
  return _mi_page_map != NULL && _mi_checked_ptr_page(p) != NULL;
}

// Whether an address is the first of a block, and not one inside it.
bool ebb_mi_begins(const void* p) {
  if (_mi_page_map == NULL) { return false; }
  mi_page_t* const page = _mi_checked_ptr_page(p);
  return page != NULL && ((const uint8_t*)p - mi_page_start(page)) % mi_page_block_size(page) == 0;
}

// ---- Forks ----
//
// mimalloc has no fork handler. Its locks guard rare events (a new arena, a thread that
// starts or ends, growth of its page map), but a child forked while another thread holds
// one would wait for that thread for ever. All are taken before the fork, by trial so
// that no order among them matters, and released on both sides.
//
// A lock that the forking thread holds already, below the handler that forks, stays as it is: in the parent and in the
// child the thread goes on with what it was at, and releases it.

#define LOCK_COUNT 10

static void fork_locks(mi_lock_t* locks[LOCK_COUNT]) {
  mi_subproc_t* subproc = _mi_subproc_main();
  mi_heap_t* heap = mi_heap_main();
  int i = 0;
  locks[i++] = &subprocs_lock;
  locks[i++] = &mi_thread_locals_lock;
  locks[i++] = &mi_page_map_lock;
  locks[i++] = &out_buf_lock;
  locks[i++] = &claim_lock;
  locks[i++] = &subproc->arena_reserve_lock;
  locks[i++] = &subproc->heaps_lock;
  locks[i++] = &heap->theaps_lock;
  locks[i++] = &heap->os_abandoned_pages_lock;
  locks[i++] = &heap->arena_pages_lock;
}

// The locks that this fork has taken, each a bit: of the thread whose turn it is to fork.
static unsigned taken IN_DATA;

static void release_taken(mi_lock_t* locks[LOCK_COUNT]) {
  for (int i = 0; i < LOCK_COUNT; i++) {
    if ((taken & 1u << i) != 0) { mi_lock_release(locks[i]); }
  }
  taken = 0;
}

static bool try_all(mi_lock_t* locks[LOCK_COUNT]) {
  for (int i = 0; i < LOCK_COUNT; i++) {
    if (is_own(locks[i])) { continue; }
    if (!mi_lock_try_acquire(locks[i])) {
      release_taken(locks);
      return false;
    }
    taken |= 1u << i;
  }
  return true;
}

void ebb_malloc_before_fork(void) {
  // A start that another thread is in the midst of would never end in the child.
  mi_process_init();
  mi_lock_t* locks[LOCK_COUNT];
  fork_locks(locks);
  // Not sched_yield: a real-time thread would leave nobody else its processor.
  while (!try_all(locks)) { sleep_uncancelled(); }
}

// The thread that took the locks, or its copy in the child, releases them.
void ebb_malloc_after_fork(void) {
  mi_lock_t* locks[LOCK_COUNT];
  fork_locks(locks);
  release_taken(locks);
}

// In the child, first: a thread that gave memory back is not there to end that.
void ebb_malloc_after_fork_in_child(void) {
  if (!is_own(&purge_lock)) { mi_lock_release(&purge_lock); }
  ebb_malloc_after_fork();
}
