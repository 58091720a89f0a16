/* Memory that the kernel would fill as a whole:
 *   filled populate MIB   mapped with MAP_POPULATE
 *   filled locked         locked, and larger in place
 *   filled at_once MIB    mapped, a third first and the rest then, and filled as fast as can be with huge pages
 *   filled stack MIB      given to a thread as its stack, which uses little of it; as much is filled elsewhere
 *   filled guarded MIB    the same with a small stack, the lowest page of which nobody may touch
 *   filled over MIB       mapped over other memory with MAP_POPULATE: files, shared memory, what is not paged
 *   filled over MIB apart the same, where the system refuses to map over other memory and to fill it in one call
 * Prints what is there, which is the same wherever it runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(2);
	}
}

static char *memory(size_t len, int how)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0);
	must(p != MAP_FAILED, "mmap");
	return p;
}

/* Each page has its number, and nothing else: zeros where nobody wrote. */
static void check_from(size_t from, const char *what, const char *p, size_t first, size_t pages)
{
	size_t wrong = 0;
	for (size_t i = from; i < pages; i++) {
		size_t word, want = i < first ? 0 : i;
		memcpy(&word, p + i * PAGE, sizeof word);
		wrong += word != want;
	}
	printf("%s: %zu pages, %zu wrong\n", what, pages, wrong);
}

static void check(const char *what, const char *p, size_t first, size_t pages)
{
	check_from(0, what, p, first, pages);
}

static void number(char *p, size_t first, size_t pages)
{
	for (size_t i = first; i < pages; i++)
		memcpy(p + i * PAGE, &i, sizeof i);
}

static void *thread(void *arg)
{
	char mine[100 << 10];
	size_t sum = 0;
	memset(mine, 3, sizeof mine);
	for (size_t i = 0; i < sizeof mine; i++)
		sum += ((volatile char *)mine)[i];
	*(size_t *)arg = sum;
	return NULL;
}

/* Runs a thread on a stack of the program's, up to its end. */
static void run_on(char *stack, size_t len, void *(*entry)(void *), void *arg)
{
	pthread_attr_t attributes;
	pthread_t id;
	must(pthread_attr_init(&attributes) == 0, "attr");
	must(pthread_attr_setstack(&attributes, stack, len) == 0, "setstack");
	must(pthread_create(&id, &attributes, entry, arg) == 0, "pthread_create");
	must(pthread_join(id, NULL) == 0, "join");
}

/* Which of the pages below its frames are there. */
static void *look(void *arg)
{
	char here;
	char *below = (char *)((uintptr_t)&here & -PAGE) - 16 * PAGE;
	unsigned char there[16];
	size_t count = 0;
	must(mincore(below, sizeof there * PAGE, there) == 0, "mincore");
	for (size_t i = 0; i < sizeof there; i++)
		count += there[i] & 1;
	*(size_t *)arg = count;
	return NULL;
}

/* A thread on a stack of which all was used before, and is out. */
static void guarded(size_t pages)
{
	size_t count = 0, stack = 32;
	char *p = memory(stack * PAGE, 0), *other = memory(pages * PAGE, 0);
	number(p, 0, stack);
	must(mprotect(p, PAGE, PROT_NONE) == 0, "mprotect");
	number(other, 0, pages);
	run_on(p, stack * PAGE, look, &count);
	printf("below the thread's frames: %zu there\n", count);
	check("elsewhere", other, 0, pages);
}

/* An mmap with MAP_FIXED and MAP_POPULATE is refused from now on. */
static void refuse(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, MAP_FIXED | MAP_POPULATE),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAP_FIXED | MAP_POPULATE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0, "seccomp");
}

/* Maps it over other memory. How many of its pages are there when that is done; and it is written, if it may be. */
static void over(char *at, size_t pages, const char *what, int prot, int flags, int fd)
{
	unsigned char *there = malloc(pages);
	size_t count = 0;
	must(there != NULL, "malloc");
	must(mmap(at, pages * PAGE, prot, MAP_FIXED | flags, fd, 0) == at, what);
	must(mincore(at, pages * PAGE, there) == 0, "mincore");
	for (size_t i = 0; i < pages; i++)
		count += there[i] & 1;
	if (prot & PROT_WRITE)
		number(at, 0, pages);
	printf("%s: %zu of %zu pages there\n", what, count, pages);
	free(there);
}

static void each_over(char *at, size_t pages)
{
	const int both = PROT_READ | PROT_WRITE, filled = MAP_POPULATE, private = MAP_PRIVATE, shared = MAP_SHARED;
	int file = memfd_create("filled", 0);
	must(file >= 0 && ftruncate(file, pages * PAGE) == 0, "a file");
	over(at, pages, "private, not paged", both, private | MAP_ANONYMOUS | MAP_STACK | filled, -1);
	over(at, pages, "shared", both, shared | MAP_ANONYMOUS | filled, -1);
	over(at, pages, "shared, not waited for", both, shared | MAP_ANONYMOUS | filled | MAP_NONBLOCK, -1);
	over(at, pages, "not to be touched", PROT_NONE, private | MAP_ANONYMOUS | MAP_STACK | filled, -1);
	over(at, pages, "a file", both, shared | filled, file);
	over(at, pages, "a file, to be read", PROT_READ, shared | filled, file);
	over(at, pages, "a file, for itself", both, private | filled, file);
	over(at, pages, "paged", both, private | MAP_ANONYMOUS | filled, -1);
	check("paged", at, 0, pages);
}

int main(int argc, char **argv)
{
	must(argc > 1, "how");
	size_t len = argc > 2 ? (size_t)atoi(argv[2]) << 20 : 8 << 20, pages = len / PAGE;
	if (!strcmp(argv[1], "populate")) {
		char *p = memory(len, MAP_POPULATE);
		number(p, pages / 2, pages);
		check("populated", p, pages / 2, pages);
		/* What may be read only is there too. */
		char *q = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		must(q != MAP_FAILED, "mmap");
		check("to be read", q, pages, pages);
	} else if (!strcmp(argv[1], "locked")) {
		char *p = memory(len, 0);
		must(munmap(p + len / 2, len / 2) == 0, "munmap");
		number(p, 0, pages / 2);
		must(mlock(p, len / 2) == 0, "mlock");
		must(mremap(p, len / 2, len, 0) == p, "mremap");
		check("in place", p + len / 2, pages, pages / 2);
		number(p, 0, pages);
		p = mremap(p, len, 2 * len, MREMAP_MAYMOVE);
		must(p != MAP_FAILED, "mremap");
		check("moved", p, 0, pages);
		check("beyond", p + len, pages, pages);
	} else if (!strcmp(argv[1], "over")) {
		char *p = memory(len, 0);
		number(p, 0, pages);
		if (argc > 3)
			refuse();
		each_over(p, pages);
	} else if (!strcmp(argv[1], "guarded")) {
		guarded(pages);
	} else if (!strcmp(argv[1], "at_once")) {
		size_t first = pages / 3;
		char *p = memory(first * PAGE, 0);
		number(p, 0, first);
		char *q = memory((pages - first) * PAGE, 0);
		number(q, 0, pages - first);
		check("first", p, 0, first);
		check("then", q, 0, pages - first);
	} else {
		size_t sum = 0;
		char *p = memory(len, MAP_NORESERVE), *other = memory(len, 0);
		number(other, 0, pages);
		number(p, pages / 2, pages / 2 + 100);
		run_on(p, len, thread, &sum);
		printf("the thread: %zu\n", sum);
		/* No others: what is touched of a stack stays. */
		check_from(pages / 2, "below", p, 0, pages / 2 + 100);
		check("elsewhere", other, 0, pages);
	}
	return 0;
}
