/*
 * Pages that are dropped by an instruction just as they leave, in a process that has forked: shed SIZE_MIB FORKS.
 * After a fork the kernel moves no page before it was written. What was used last is left in memory at a fork, and
 * leaves first after it, as all else is read; meanwhile a thread drops some of it. A page holds its number or, once it was
 * dropped, zeros. Prints what was wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* UNIT: pages that leave together. LEFT: units that are left in memory at a fork. SOME: units of which one leaves next.
 * PAUSE: turns of a loop, at most. */
enum { PAGE = 4096, WORDS = PAGE / 8, UNIT = 16, LEFT = 128, SOME = 8, PAUSE = 10000 };

static volatile uint64_t *memory;
static size_t units;
static volatile int drops, over;

/* The first page of the unit that is used after so many others: not in order, or it would be a scan. */
static size_t page_of(size_t nth)
{
	return nth * 7919 % units * UNIT;
}

static void raw_madvise(volatile uint64_t *at, size_t bytes, long advice)
{
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_madvise), "D"(at), "S"(bytes), "d"(advice)
			 : "rcx", "r11", "memory");
}

static int is_out(size_t page)
{
	unsigned char there = 0;
	mincore((void *)(memory + page * WORDS), PAGE, &there);
	return !(there & 1);
}

/* Units leave one after the other, but for some that stay. When one has left, a page of the next is dropped, sooner or
 * later. */
static void *shed(void *argument)
{
	uint64_t x = 88172645463325252u;
	(void)argument;
	while (!over) {
		size_t leaves = units - LEFT;
		while (drops && leaves + SOME < units) {
			size_t some = 0;
			while (some < SOME && !is_out(page_of(leaves + some)))
				some++;
			if (some == SOME)
				continue;
			leaves += some + 1;
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			for (volatile uint64_t pause = x / 64 % PAUSE; pause > 0; pause--)
				;
			raw_madvise(memory + (page_of(leaves) + x % UNIT) * WORDS, PAGE, MADV_DONTNEED);
		}
		usleep(100);
	}
	return NULL;
}

/* The pages that are neither their number nor zeros. Those of zeros are their number afterwards: no other is written. */
static size_t use(size_t first, size_t end)
{
	size_t wrong = 0;
	for (size_t nth = first; nth < end; nth++) {
		for (size_t page = page_of(nth); page < page_of(nth) + UNIT; page++) {
			uint64_t now = memory[page * WORDS];
			wrong += now != page + 1 && now != 0;
			if (now == 0)
				memory[page * WORDS] = page + 1;
		}
	}
	return wrong;
}

int main(int argc, char **argv)
{
	size_t bytes = strtoul(argv[1], NULL, 0) << 20, wrong = 0;
	int forks = argc > 2 ? atoi(argv[2]) : 20;
	pthread_t thread;
	units = bytes / PAGE / UNIT;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	wrong += use(0, units);
	pthread_create(&thread, NULL, shed, NULL);
	for (int n = 0; n < forks; n++) {
		int status = -1;
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		waitpid(child, &status, 0);
		wrong += status != 0;
		/* Until its helper has ended, and nothing is shared. */
		usleep(50000);
		drops = 1;
		wrong += use(0, units - LEFT);
		drops = 0;
		wrong += use(units - LEFT, units);
	}
	over = 1;
	pthread_join(thread, NULL);
	printf("%zu wrong\n", wrong);
	return wrong != 0;
}
