/*
 * Memory that had to stay for a while: stacks of threads that are over, robust mutexes that are destroyed. Then the heap
 * is used for data.
 *
 *   released PART SIZE_MIB
 *
 * A thread on such a stack forks, too: what the child has of it must stay while it runs.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define STACK (256 << 10)
/* Not a multiple of pages: neighbours share one. */
#define ODD (STACK + 1000)

static size_t number;
static atomic_int over;

static void fill(char *at, size_t bytes, unsigned seed)
{
	uint64_t x = 88172645463325252u + seed;
	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		*(uint64_t *)(at + i) = x;
	}
}

static size_t wrong(const char *at, size_t bytes, unsigned seed)
{
	uint64_t x = 88172645463325252u + seed;
	size_t wrong = 0;
	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		wrong += *(const uint64_t *)(at + i) != x;
	}
	return wrong;
}

/* Fills as much of the heap as the stacks were, some of it in their places. */
static void use_heap(const char *after)
{
	char **blocks = malloc(number * sizeof *blocks);
	for (size_t i = 0; i < number; i++)
		fill(blocks[i] = aligned_alloc(PAGE, STACK), STACK, i);
	size_t sum = 0;
	for (size_t i = 0; i < number; i++) {
		sum += wrong(blocks[i], STACK, i);
		free(blocks[i]);
	}
	free(blocks);
	printf("%s: %zu wrong\n", after, sum);
	fflush(stdout);
}

static void *fills_its_stack(void *argument)
{
	volatile char local[STACK - (64 << 10)];
	for (size_t i = 0; i < sizeof local; i += PAGE)
		local[i] = i >> 12;
	size_t sum = 0;
	for (size_t i = 0; i < sizeof local; i += PAGE)
		sum += local[i] != (char)(i >> 12);
	atomic_fetch_add(&over, 1);
	return (void *)(sum + (size_t)argument);
}

static void *exits(void *argument)
{
	pthread_exit(fills_its_stack(argument));
}

static pthread_t start(char *stack, size_t bytes, int state, void *(*entry)(void *), size_t argument)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, state);
	if (pthread_attr_setstack(&attributes, stack, bytes) != 0
	    || pthread_create(&thread, &attributes, entry, (void *)argument) != 0) {
		puts("no thread");
		exit(1);
	}
	pthread_attr_destroy(&attributes);
	return thread;
}

/* Those that nobody joins have ended a moment after they said so. */
static void stacks(int state)
{
	char **stacks = malloc(number * sizeof *stacks);
	for (size_t i = 0; i < number; i++)
		stacks[i] = aligned_alloc(PAGE, STACK);
	over = 0;
	for (size_t i = 0; i < number; i++) {
		pthread_t thread = start(stacks[i], STACK, state, i % 2 ? exits : fills_its_stack, i);
		void *result = NULL;
		if (state == PTHREAD_CREATE_JOINABLE && (pthread_join(thread, &result) != 0 || (size_t)result != i))
			puts("a wrong result");
		while (over <= (int)i)
			usleep(100);
	}
	usleep(200000);
	for (size_t i = 0; i < number; i++)
		free(stacks[i]);
	free(stacks);
	use_heap(state == PTHREAD_CREATE_JOINABLE ? "joined" : "detached");
}

static void mutexes(void)
{
	size_t pages = number * STACK / PAGE;
	char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	/* Two in a page at a time, of a fourth of the pages. */
	for (size_t part = 0; part < 4; part++) {
		for (size_t i = part * pages / 4; i < (part + 1) * pages / 4; i++)
			for (int n = 0; n < 2; n++)
				pthread_mutex_init((void *)(memory + i * PAGE + n * 1000), &attributes);
		for (size_t i = part * pages / 4; i < (part + 1) * pages / 4; i++)
			for (int n = 0; n < 2; n++)
				if (pthread_mutex_destroy((void *)(memory + i * PAGE + n * 1000)) != 0)
					puts("a mutex that stays");
		usleep(200000);
	}
	fill(memory, pages * PAGE, 5);
	printf("destroyed: %zu wrong\n", wrong(memory, pages * PAGE, 5));
	munmap(memory, pages * PAGE);
}

static void *uses_heap(void *argument)
{
	use_heap(argument ? "a thread" : "its neighbour");
	return NULL;
}

/* Its thread is the child's only one, of another number. */
static void *forks(void *argument)
{
	(void)argument;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		usleep(500000);
		use_heap("a child");
		use_heap("a child again");
		_exit(0);
	}
	int status = -1;
	waitpid(child, &status, 0);
	use_heap("its parent");
	return (void *)(size_t)status;
}

/* Stacks side by side that share a page, of which one is in use for longer. */
static void neighbours(void)
{
	char *memory = aligned_alloc(PAGE, 3 * (STACK + PAGE));
	pthread_t first = start(memory + 16, ODD / 16 * 16, PTHREAD_CREATE_JOINABLE, fills_its_stack, 0);
	pthread_t second = start(memory + 16 + ODD / 16 * 16, STACK, PTHREAD_CREATE_JOINABLE, uses_heap, 0);
	pthread_join(first, NULL);
	pthread_join(second, NULL);
	void *status;
	pthread_join(start(memory, STACK, PTHREAD_CREATE_JOINABLE, forks, 0), &status);
	printf("status %zx\n", (size_t)status);
	pthread_join(start(memory, STACK, PTHREAD_CREATE_JOINABLE, uses_heap, 1), NULL);
	free(memory);
}

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : "";
	number = ((argc > 2 ? strtoul(argv[2], NULL, 0) : 48) << 20) / STACK;
	if (strcmp(part, "joined") == 0)
		stacks(PTHREAD_CREATE_JOINABLE);
	else if (strcmp(part, "detached") == 0)
		stacks(PTHREAD_CREATE_DETACHED);
	else if (strcmp(part, "mutexes") == 0)
		mutexes();
	else
		neighbours();
	return 0;
}
