/*
 * Words that the kernel remembers and stores to later, in memory that is managed: kernel_words SIZE_MIB.
 *
 *   set_tid_address   is cleared at the thread's end
 *   rseq              holds the processor when the thread has been moved or interrupted
 *   robust list       is marked when a thread ends with mutexes locked
 *
 * Each is made, then more is written than there is room for, then the kernel stores. Prints their values in the
 * end. On stderr it says how many pages of equally unused memory are out, as these would be.
 * To be run with GLIBC_TUNABLES=glibc.pthread.rseq=0: libc has the one registration of a thread otherwise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, APART = 48 * PAGE, STACK = 65536, HELD = 40, ID = 1234 };

static char *memory;
static size_t bytes, next_place;

/* Fills half of the memory, in no order: what a walk brings leaves first, and the rest stays. */
static void push_out(void)
{
	uint64_t x = 88172645463325252u;
	size_t half = bytes / 2 / PAGE;
	for (size_t i = 0; i < half * 3 / 2; i++) {
		uint64_t *page = (uint64_t *)(memory + bytes / 2 + i * 7919 % half * PAGE);
		for (int word = 0; word < PAGE / 8; word += 2) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			page[word] = x;
		}
	}
}

static void *place(void)
{
	char *at = memory + next_place + 64;
	next_place += APART;
	if (next_place > bytes / 2)
		abort();
	return at;
}

/* Waits till a word is not what it was, 5 seconds at most. */
static void await(volatile int *word, int was)
{
	struct timespec patience = { 5, 0 };
	while (*word == was)
		if (syscall(SYS_futex, word, FUTEX_WAIT, was, &patience, NULL, 0) != 0 && errno == ETIMEDOUT)
			break;
}

static volatile int go;

static void *ends(void *argument)
{
	if (syscall(SYS_set_tid_address, argument) != syscall(SYS_gettid))
		abort();
	while (!go)
		usleep(1000);
	syscall(SYS_exit, 0);
	return NULL;
}

static void tid_address(void)
{
	int *word = place();
	*word = ID;
	push_out();
	pthread_t thread;
	pthread_create(&thread, NULL, ends, word);
	push_out();
	go = 1;
	/* Who looked at it would bring it in. */
	usleep(100000);
	await(word, ID);
	printf("set_tid_address: %d\n", *word);
}

struct area {
	uint32_t first_processor, processor;
	uint64_t section;
	uint32_t flags, node, id, end;
} __attribute__((aligned(32)));

static void *moves(void *argument)
{
	volatile struct area *area = argument;
	long answer = syscall(SYS_rseq, area, sizeof *area, 0, 0x53053053);
	if (answer != 0) {
		printf("rseq: %s\n", strerror(errno));
		return NULL;
	}
	int wrong = 0;
	cpu_set_t all;
	sched_getaffinity(0, sizeof all, &all);
	for (int i = 0; i < 24; i++) {
		/* Interrupted and moved while it is busy with memory that comes and goes. */
		if (i == 12)
			push_out();
		for (size_t at = bytes / 4; at < bytes / 2; at += PAGE)
			memory[at] += 1;
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET(i % 2 && CPU_ISSET(1, &all) ? 1 : 0, &one);
		if (sched_setaffinity(0, sizeof one, &one) == 0)
			wrong += area->processor != (uint32_t)sched_getcpu();
	}
	printf("rseq: %d wrong\n", wrong);
	if (syscall(SYS_rseq, area, sizeof *area, 1, 0x53053053) != 0)
		printf("rseq stays: %s\n", strerror(errno));
	return NULL;
}

static void rseq_area(void)
{
	char *at = place();
	at -= (uintptr_t)at % 64;
	memset(at, 0, sizeof(struct area));
	push_out();
	pthread_t thread;
	pthread_create(&thread, NULL, moves, at);
	pthread_join(thread, NULL);
}

static pthread_mutex_t *held[HELD];

static void *dies(void *argument)
{
	(void)argument;
	for (int i = 0; i < HELD; i++)
		pthread_mutex_lock(held[i]);
	push_out();
	return NULL;
}

static void robust(void)
{
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	for (int i = 0; i < HELD; i++)
		pthread_mutex_init(held[i] = place(), &attributes);
	pthread_t thread;
	pthread_create(&thread, NULL, dies, NULL);
	pthread_join(thread, NULL);
	int told = 0;
	for (int i = 0; i < HELD; i++) {
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += i == told ? 5 : 0;
		told += pthread_mutex_timedlock(held[i], &until) == EOWNERDEAD;
	}
	printf("robust: %d of %d\n", told, HELD);
}

/* A list of the program's own in managed memory; what it names is not. */
struct head {
	struct head *next;
	long offset;
	void *pending;
};

static int word;

static void *dies_with_a_list(void *argument)
{
	struct head *head = argument;
	*head = (struct head){ .next = head, .pending = &word };
	word = (int)syscall(SYS_gettid);
	if (syscall(SYS_set_robust_list, head, sizeof *head) != 0)
		abort();
	push_out();
	syscall(SYS_set_tid_address, &go);
	syscall(SYS_exit, 0);
	return NULL;
}

static void own_list(void)
{
	struct head *head = place();
	go = ID;
	pthread_t thread;
	pthread_create(&thread, NULL, dies_with_a_list, head);
	await(&go, ID);
	printf("own list: %s\n", word & FUTEX_OWNER_DIED ? "told" : "NOT told");
}

static size_t pages_out(void)
{
	size_t out = 0, first = bytes / 4 / PAGE, last = bytes / 2 / PAGE;
	uint64_t word;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	for (size_t i = first; i < last; i++)
		if (pread(fd, &word, 8, (off_t)(((uintptr_t)memory / PAGE + i) * 8)) == 8)
			out += !(word >> 63);
	close(fd);
	return out;
}

int main(int argc, char **argv)
{
	bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	alarm(50);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	push_out();
	tid_address();
	rseq_area();
	robust();
	own_list();
	fprintf(stderr, "%zu of %zu pages out\n", pages_out(), bytes / 4 / PAGE);
	return 0;
}
