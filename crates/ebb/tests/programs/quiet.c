/*
 * Allocations that succeed, in threads that wait for each other's memory calls: errno stays. Prints how often it did not.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 3, MIB = 1 << 20, BYTES = 64 * MIB, PAGE = 4096, BEFORE = 77 };
#define READ_WRITE (PROT_READ | PROT_WRITE)

static atomic_int over;
static atomic_long changed;

static void *churn(void *nothing)
{
	while (!over) {
		size_t bytes = 16 * PAGE;
		char *part = mmap(NULL, bytes, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mprotect(part, PAGE, PROT_READ);
		munmap(part, bytes);
	}
	return nothing;
}

static void look(void)
{
	changed += errno != BEFORE;
	errno = BEFORE;
}

static void *allocate(void *nothing)
{
	errno = BEFORE;
	while (!over) {
		void *large = malloc(33 * MIB), *small;
		look();
		large = realloc(large, 70 * MIB);
		look();
		free(large);
		look();
		small = malloc(300000);
		look();
		free(small);
		posix_madvise(NULL, 0, POSIX_MADV_WILLNEED);
		look();
	}
	return nothing;
}

int main(void)
{
	char *memory = mmap(NULL, BYTES, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 1, BYTES);
	pthread_t threads[2 * THREADS];
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_create(&threads[i], NULL, i % 2 ? churn : allocate, NULL);
	for (int second = 0; second < 3; second++) {
		for (size_t at = 0; at < BYTES; at += PAGE)
			memory[at]++;
		sleep(1);
	}
	over = 1;
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%ld changed\n", changed);
	return 0;
}
