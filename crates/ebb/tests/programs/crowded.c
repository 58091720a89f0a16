/*
 * One thread touches pages at random in more memory than there is room for; others compute without end, so that no
 * processor is ever idle.
 *
 *     crowded MIB THREADS SECONDS
 *
 * Says how long one touch in a hundred of those that faulted took at least, in microseconds.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, MOST = 1 << 20 };

static volatile int over;
static float waits[MOST];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *compute(void *unused)
{
	for (volatile uint64_t n = 0; !over;)
		n++;
	return unused;
}

static int longer(const void *one, const void *other)
{
	float a = *(const float *)one, b = *(const float *)other;
	return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	size_t pages = strtoul(argv[1], NULL, 10) << 8, count = 0;
	int threads = atoi(argv[2]);
	uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	for (size_t page = 0; page < pages; page++)
		memory[page * PAGE / 8] = page + 1;
	pthread_t thread;
	for (int i = 0; i < threads; i++)
		if (pthread_create(&thread, NULL, compute, NULL))
			return 1;
	uint64_t seed = 88172645463325252u;
	for (double end = now() + atof(argv[3]); now() < end && count < MOST;) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		size_t page = seed % pages;
		double begin = now();
		if (memory[page * PAGE / 8] != page + 1) {
			printf("page %zu is wrong\n", page);
			return 1;
		}
		double took = now() - begin;
		if (took > 2e-6)
			waits[count++] = (float)(took * 1e6);
	}
	over = 1;
	if (count < 333 * atof(argv[3]))
		return 3;
	qsort(waits, count, sizeof *waits, longer);
	printf("%.0f\n", waits[count * 99 / 100]);
	return 0;
}
