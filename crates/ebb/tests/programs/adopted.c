/*
 * Threads that drop memory and name signal stacks all the time, while the main thread fills MIB. So one
 * such call is under way when the process begins to page. Dropped memory must read as zeros, and stacks
 * must be usable.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, STACK = 64 * PAGE, THREADS = 4 };

static volatile int over;
static volatile int wrong;

static void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	return p;
}

static void *drops(void *unused)
{
	volatile char *pages = map(16 * PAGE);
	while (!over)
		for (int i = 0; i < 16; i++) {
			volatile char *p = pages + i * PAGE;
			*p = 1;
			if (madvise((void *)p, PAGE, MADV_DONTNEED) != 0 || *p != 0)
				wrong = 1;
		}
	return unused;
}

static void *names_stacks(void *unused)
{
	while (!over) {
		stack_t stack = {.ss_sp = map(STACK), .ss_size = STACK};
		if (sigaltstack(&stack, NULL) != 0)
			wrong = 1;
		memset(stack.ss_sp, 1, STACK);
		stack.ss_flags = SS_DISABLE;
		sigaltstack(&stack, NULL);
		munmap(stack.ss_sp, STACK);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t threads[2 * THREADS];
	size_t len = (size_t)(argc > 1 ? atoi(argv[1]) : 32) << 20;
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_create(&threads[i], NULL, i % 2 ? drops : names_stacks, NULL);
	volatile char *held = map(len);
	for (size_t i = 0; i < len; i += PAGE)
		held[i] = (char)(i / PAGE);
	for (size_t i = 0; i < len; i += PAGE)
		if (held[i] != (char)(i / PAGE))
			wrong = 1;
	over = 1;
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(threads[i], NULL);
	puts(wrong ? "wrong" : "right");
	return wrong;
}
