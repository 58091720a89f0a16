// Transfers between memory and a file past the page cache, by pread and pwrite and by io_uring. Other memory
// is touched meanwhile: a page that is being read into must not leave.
#pragma once
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "elements.h"
#include "regions.h"

// A region of a caller, in no thread's list; its memory is still to be mapped.
static void begin_region(struct thread* t, struct region* r, size_t pages) {
  memset(r, 0, sizeof *r);
  r->pages = pages;
  r->id = t->number << 32 | ++t->ids;
  r->version = calloc(pages, sizeof *r->version);
  must(r->version != 0, "calloc");
}

static void open_region(struct thread* t, struct region* r, size_t pages) {
  begin_region(t, r, pages);
  r->base = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(r->base != MAP_FAILED, "mmap");
}

static void fill_all(struct region* r) {
  for (size_t i = 0; i < r->pages; i++) fill(r, i);
}

static void check_all(struct region* r) {
  for (size_t i = 0; i < r->pages; i++) check(r, i);
}

static void close_region(struct region* r) {
  must(munmap(r->base, r->pages * PAGE) == 0, "munmap");
  free(r->version);
}

// A file without a name; past the page cache where the file system can.
static int open_file(void) {
  const char* dir = getenv("TMPDIR");
  if (!dir) dir = "/var/tmp";
  int file = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) file = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  must(file >= 0, "open a file in TMPDIR");
  return file;
}

static void direct(struct thread* t) {
  struct region r;
  const int file = open_file();
  open_region(t, &r, 1 + below(t, 64));
  const size_t bytes = r.pages * PAGE;
  fill_all(&r);
  fill_some(t, 2);
  must(pwrite(file, r.base, bytes, 0) == (ssize_t)bytes, "pwrite past the cache");
  memset(r.base, 0x5a, bytes);
  fill_some(t, 2);
  must(pread(file, r.base, bytes, 0) == (ssize_t)bytes, "pread past the cache");
  check_all(&r);
  fill_some(t, 2);
  check_all(&r);
  close_region(&r);
  close(file);
}

// A ring with one entry at a time.
struct ring {
  int file;
  char *queue, *entries;
  size_t queue_bytes, entries_bytes;
  struct io_uring_params p;
};

// 0 where the system has none.
static int open_ring(struct ring* ring) {
  memset(ring, 0, sizeof *ring);
  ring->file = (int)syscall(SYS_io_uring_setup, 4, &ring->p);
  if (ring->file < 0 && (errno == ENOSYS || errno == EPERM)) return 0;
  must(ring->file >= 0, "io_uring_setup");
  const size_t submission = ring->p.sq_off.array + ring->p.sq_entries * sizeof(uint32_t);
  const size_t completion = ring->p.cq_off.cqes + ring->p.cq_entries * sizeof(struct io_uring_cqe);
  ring->queue_bytes = submission > completion ? submission : completion;
  ring->entries_bytes = ring->p.sq_entries * sizeof(struct io_uring_sqe);
  const int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
  ring->queue = mmap(0, ring->queue_bytes, protection, flags, ring->file, IORING_OFF_SQ_RING);
  must(ring->queue != MAP_FAILED, "mmap of a ring");
  ring->entries = mmap(0, ring->entries_bytes, protection, flags, ring->file, IORING_OFF_SQES);
  must(ring->entries != MAP_FAILED, "mmap of a ring's entries");
  return 1;
}

static void close_ring(struct ring* ring) {
  munmap(ring->queue, ring->queue_bytes);
  munmap(ring->entries, ring->entries_bytes);
  close(ring->file);
}

static uint32_t* ring_word(struct ring* ring, uint32_t offset) {
  return (uint32_t*)(ring->queue + offset);
}

static void submit(struct ring* ring, int code, int file, void* memory, size_t bytes) {
  const uint32_t mask = *ring_word(ring, ring->p.sq_off.ring_mask);
  uint32_t* tail = ring_word(ring, ring->p.sq_off.tail);
  const uint32_t at = *tail & mask;
  struct io_uring_sqe* entry = (struct io_uring_sqe*)ring->entries + at;
  memset(entry, 0, sizeof *entry);
  entry->opcode = (uint8_t)code;
  // A queue of the kernel's own threads: the transfer goes on while this thread does.
  entry->flags = IOSQE_ASYNC;
  entry->fd = file;
  entry->addr = (uint64_t)memory;
  entry->len = (uint32_t)bytes;
  ring_word(ring, ring->p.sq_off.array)[at] = at;
  __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
  long done;
  do done = syscall(SYS_io_uring_enter, ring->file, 1, 0, 0, 0, 0);
  while (done < 0 && errno == EINTR);
  must(done == 1, "io_uring_enter");
}

// The result of what was submitted last.
static int result_of(struct ring* ring) {
  uint32_t* head = ring_word(ring, ring->p.cq_off.head);
  const uint32_t* tail = ring_word(ring, ring->p.cq_off.tail);
  while (__atomic_load_n(tail, __ATOMIC_ACQUIRE) == *head) {
    const long done = syscall(SYS_io_uring_enter, ring->file, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
    must(done >= 0 || errno == EINTR, "io_uring_enter");
  }
  const uint32_t mask = *ring_word(ring, ring->p.cq_off.ring_mask);
  const struct io_uring_cqe* cqe =
      (struct io_uring_cqe*)ring_word(ring, ring->p.cq_off.cqes) + (*head & mask);
  const int result = cqe->res;
  __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
  return result;
}

static void complete(struct ring* ring, int code, int file, void* memory, size_t bytes) {
  int result = result_of(ring);
  // A signal that comes as the kernel starts a thread for the transfer cancels it.
  while (result == -ECANCELED) {
    submit(ring, code, file, memory, bytes);
    result = result_of(ring);
  }
  if (result < 0) errno = -result;
  must(result == (int)bytes, "a transfer of io_uring");
}

static void uring(struct thread* t) {
  struct ring ring;
  if (!open_ring(&ring)) return;
  struct region r;
  open_region(t, &r, 1 + below(t, 64));
  const size_t bytes = r.pages * PAGE;
  const int file = open_file(), fixed = (int)below(t, 2);
  const struct iovec whole = {r.base, bytes};
  fill_all(&r);
  fill_some(t, 2);
  // Registered buffers are pinned as long as the ring lives.
  if (fixed)
    must(syscall(SYS_io_uring_register, ring.file, IORING_REGISTER_BUFFERS, &whole, 1) == 0,
         "registering a buffer");
  const int write_it = fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE;
  const int read_it = fixed ? IORING_OP_READ_FIXED : IORING_OP_READ;
  submit(&ring, write_it, file, r.base, bytes);
  fill_some(t, 2);
  complete(&ring, write_it, file, r.base, bytes);
  memset(r.base, 0xa5, bytes);
  fill_some(t, 2);
  submit(&ring, read_it, file, r.base, bytes);
  fill_some(t, 3);
  complete(&ring, read_it, file, r.base, bytes);
  check_all(&r);
  close_ring(&ring);
  fill_some(t, 2);
  check_all(&r);
  close_region(&r);
  close(file);
}
