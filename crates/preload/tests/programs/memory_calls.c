// libc's memory calls: results, errno, and that data follows a remap.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ballast.h"

extern ssize_t process_madvise(int, const struct iovec*, size_t, int, unsigned);

#define PAGE 4096
#define MIB (1 << 20)

// What the calls are about. All of it is out when the next is made.
static char* about;
static size_t about_len;

static void say(const char* what, long result) {
  printf("%s: %ld errno %d\n", what, result, result < 0 ? errno : 0);
  press(about, about_len);
  errno = 0;
}

int main(void) {
  char* p = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  say("mmap", p == MAP_FAILED ? -1 : 0);
  about = p;
  about_len = 4 * MIB;
  memset(p, 3, 4 * MIB);
  for (int i = 0; i < 4 * MIB; i += 64) *(int*)(p + i + 4) = i * 2654435761u;
  say("mmap 0", mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
  say("mmap bad fd", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 9999, 0) == MAP_FAILED ? -1 : 0);
  say("madvise bad", madvise(p, PAGE, 12345));
  say("madvise unaligned", madvise(p + 1, PAGE, MADV_DONTNEED));
  say("madvise", madvise(p, PAGE, MADV_DONTNEED));
  printf("dropped %d kept %d\n", p[0], p[PAGE]);
  say("posix_madvise", posix_madvise(p + PAGE, PAGE, POSIX_MADV_DONTNEED));
  printf("kept %d\n", p[PAGE]);
  errno = 5;
  printf("posix_madvise bad %d errno %d\n", posix_madvise(p + 1, PAGE, POSIX_MADV_WILLNEED), errno);
  errno = 0;
  char* q = mremap(p, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
  about = q;
  say("mremap", q == MAP_FAILED ? -1 : 0);
  printf("follows %d %d\n", q[4 * MIB - 1], q[8 * MIB - 1]);
  say("mremap bad", mremap(q, 8 * MIB, 0, 0) == MAP_FAILED ? -1 : 0);
  char* place = mmap(NULL, 8 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  q[123] = 9;
  char* moved = mremap(q, 8 * MIB, 8 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place);
  about = moved;
  printf("fixed %d %d\n", moved == place, moved[123]);
  say("mprotect", mprotect(moved, PAGE, PROT_READ));
  say("mprotect bad", mprotect((char*)1, PAGE, PROT_READ));
  say("pkey_mprotect no key", pkey_mprotect(moved, PAGE, PROT_READ | PROT_WRITE, -1));
  say("pkey_mprotect bad key", pkey_mprotect(moved, PAGE, PROT_READ, 99));
  say("mlock", mlock(moved, PAGE));
  say("mlock2", mlock2(moved + PAGE, PAGE, MLOCK_ONFAULT));
  say("mlock2 bad", mlock2(moved, PAGE, 1234));
  say("munlock", munlock(moved, 2 * PAGE));
  say("mlockall bad", mlockall(0));
  say("munlockall", munlockall());
  say("mlock by number", syscall(SYS_mlock, moved, PAGE));
  say("mlock2 by number", syscall(SYS_mlock2, moved, PAGE, MLOCK_ONFAULT));
  say("munlock by number", syscall(SYS_munlock, moved, PAGE));
  say("munlockall by number", syscall(SYS_munlockall));
  say("pkey_mprotect by number", syscall(SYS_pkey_mprotect, moved, PAGE, PROT_READ, 99));
  struct iovec areas[] = {{moved, PAGE}, {moved + 2 * PAGE, PAGE}};
  int self = syscall(SYS_pidfd_open, getpid(), 0);
  moved[2 * PAGE] = 5;
  say("process_madvise", process_madvise(self, areas, 2, MADV_DONTNEED, 0));
  printf("dropped %d\n", moved[2 * PAGE]);
  say("process_madvise by number", syscall(SYS_process_madvise, self, areas, 2, MADV_COLD, 0));
  say("process_madvise bad fd", process_madvise(-1, areas, 2, MADV_DONTNEED, 0));
  say("process_madvise bad flags", process_madvise(self, areas, 2, MADV_DONTNEED, 1));
  say("process_madvise bad advice", process_madvise(self, areas, 2, 12345, 0));
  say("process_madvise too many", process_madvise(self, areas, 1025, MADV_DONTNEED, 0));
  areas[1].iov_base = (char*)1;
  say("process_madvise in part", process_madvise(self, areas, 2, MADV_DONTNEED, 0));
  close(self);
  unsigned sum = 0;
  for (int i = 4 * PAGE; i < 4 * MIB; i += 64) sum = sum * 31 + *(int*)(moved + i + 4);
  printf("all of it %u\n", sum);
  about_len = 0;
  say("munmap", munmap(moved, 8 * MIB));
  say("munmap bad", munmap((char*)1, PAGE));
  char* base = sbrk(0);
  printf("sbrk same %d\n", sbrk(3 * PAGE) == base);
  memset(base, 4, 3 * PAGE);
  press(base, 3 * PAGE);
  printf("sbrk grown %d\n", (char*)sbrk(0) == base + 3 * PAGE);
  say("brk back", brk(base + PAGE));
  printf("kept %d at %d\n", base[PAGE - 1], (char*)sbrk(0) == base + PAGE);
  say("sbrk absurd", sbrk(INTPTR_MAX) == (void*)-1 ? -1 : 0);
  say("sbrk down", sbrk(-PAGE) == base + PAGE ? 0 : -1);
  say("brk null", brk(NULL));
  printf("brk by number %d\n", (char*)syscall(SYS_brk, base + PAGE) == base + PAGE && syscall(SYS_brk, 0) == (long)base + PAGE);
  // A reservation such as a JVM makes: far more than there is, used in two places.
  size_t wide = (size_t)64 << 30;
  char* r = mmap(NULL, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  say("reserve", r == MAP_FAILED ? -1 : 0);
  say("commit", mprotect(r + wide / 2, MIB, PROT_READ | PROT_WRITE));
  char* c = mmap(r + MIB, MIB, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(r + wide / 2, 6, MIB);
  memset(c, 7, MIB);
  printf("reserved %d %d\n", r[wide / 2 + MIB - 1], r[MIB]);
  say("release", munmap(r, wide));
  return 0;
}
