/*
 * Drops memory in every way there is, when all of it has left: it reads as zeros afterwards, and what
 * lies beside it as it did. Says on standard error whether it was out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGE = 4096, PAGES = 32, SIZE = PAGES * PAGE, FIRST = 8, COUNT = 16 };

extern ssize_t process_madvise(int, const struct iovec *, size_t, int, unsigned);

enum way { MADVISE, NUMBER, PROCESS, PROCESS_NUMBER, FREE, HOLE, GUARD, GUARD_FEW, REMAP, LOCKED, WAYS };

static const char *const names[] = {"madvise",  "its number",    "process_madvise", "its number, of two",
				    "free",     "with a hole",   "guard",           "guard and use beside",
				    "mapped over", "up to what is locked"};

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	return p;
}

static int out(char *start)
{
	unsigned char there[PAGES];
	int n = 0;
	mincore(start, SIZE, there);
	for (int i = 0; i < PAGES; i++)
		n += there[i] & 1;
	return n == 0;
}

/* COUNT pages from the one at P on. */
static long drop(enum way way, char *p)
{
	const size_t len = COUNT * PAGE;
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct iovec areas[2] = {{p, len / 2}, {p + len / 2, len / 2}};
	switch (way) {
	case MADVISE:
		return madvise(p, len, MADV_DONTNEED);
	case NUMBER:
		return syscall(SYS_madvise, p, len, MADV_DONTNEED);
	case PROCESS:
		areas[0].iov_len = len;
		return process_madvise(self, areas, 1, MADV_DONTNEED, 0);
	case PROCESS_NUMBER:
		return syscall(SYS_process_madvise, self, areas, 2, MADV_DONTNEED, 0);
	case FREE:
		/* It reads as zeros or as it did; written over, as it was written. */
		madvise(p, len, MADV_FREE);
		return madvise(p, len, MADV_DONTNEED);
	case HOLE:
		munmap(p + len / 2, PAGE);
		return madvise(p, len, MADV_DONTNEED);
	case GUARD:
		if (madvise(p, len, MADV_GUARD_INSTALL) != 0)
			return -1;
		return madvise(p, len, MADV_GUARD_REMOVE);
	case GUARD_FEW:
		/* Others beside them are touched for the first time. */
		if (madvise(p, len, MADV_DONTNEED) != 0 || madvise(p, PAGE, MADV_GUARD_INSTALL) != 0)
			return -1;
		for (size_t i = PAGE; i < len; i += PAGE)
			p[i] = 0;
		/* A system call cannot write where a guard is. */
		if (syscall(SYS_getcwd, p, PAGE) != -1 || errno != EFAULT)
			return -2;
		errno = 0;
		return madvise(p, PAGE, MADV_GUARD_REMOVE);
	case REMAP:
		return mmap(p, len, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == p;
	case LOCKED:
		if (mlock(p + len / 2, PAGE) != 0)
			return -2;
		return madvise(p, len, MADV_DONTNEED);
	default:
		return -3;
	}
}

int main(int argc, char **argv)
{
	char *held[WAYS];
	size_t len = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
	setvbuf(stdout, NULL, _IONBF, 0);
	for (int way = 0; way < WAYS; way++) {
		held[way] = map(SIZE);
		memset(held[way], 7, SIZE);
	}
	/* The kernel reads the vector, and no part is dropped of one that it cannot read as a whole. */
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	char *edge = map(2 * PAGE) + PAGE;
	struct iovec area = {held[MADVISE], PAGE};
	munmap(edge, PAGE);
	memcpy(edge - sizeof area, &area, sizeof area);
	for (int which = 0; which < 2; which++) {
		const struct iovec *vector = which ? (void *)(edge - sizeof area) : (void *)edge;
		errno = 0;
		long result = process_madvise(self, vector, 1 + which, MADV_DONTNEED, 0);
		printf("unreadable: %ld errno %d, %d\n", result, errno, held[MADVISE][0]);
	}
	char *heap = (char *)(((uintptr_t)syscall(SYS_brk, 0) + PAGE - 1) & -(uintptr_t)PAGE);
	if ((char *)syscall(SYS_brk, heap + SIZE) != heap + SIZE)
		return 3;
	memset(heap, 7, SIZE);
	volatile char *more = map(len);
	for (int turn = 0; turn < 2; turn++)
		for (size_t i = 0; i < len; i += PAGE)
			more[i] = (char)(i / PAGE);

	for (int way = 0; way < WAYS; way++) {
		char *p = held[way];
		if (out(p))
			fprintf(stderr, "%s was out\n", names[way]);
		errno = 0;
		long result = drop(way, p + FIRST * PAGE);
		printf("%s: %ld errno %d:", names[way], result, errno);
		for (int i = 0; i < PAGES; i++)
			if (way == HOLE && i == FIRST + COUNT / 2)
				printf(" -");
			else
				printf(" %d", p[i * PAGE + 100]);
		puts("");
	}
	if (out(heap))
		fprintf(stderr, "brk was out\n");
	syscall(SYS_brk, heap + FIRST * PAGE);
	printf("brk: %d:", (char *)syscall(SYS_brk, heap + SIZE) == heap + SIZE);
	for (int i = 0; i < PAGES; i++)
		printf(" %d", heap[i * PAGE + 100]);
	puts("");
	return 0;
}
