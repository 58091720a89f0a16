/*
 * Threads that fork at the same time, while memory comes and goes.
 *
 *   crossed_forks THREADS FORKS SIZE_MIB
 *
 * Each child looks at what its thread wrote, and ends. Others of the process keep the processors busy, so that
 * threads are interrupted anywhere.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int forks;
static size_t words;
static volatile int done;

static int is_right(const uint64_t *at, uint64_t key, size_t step)
{
	for (size_t i = 0; i < words; i += step)
		if (at[i] != key + i)
			return 0;
	return 1;
}

static void *work(void *argument)
{
	uint64_t key = (uint64_t)(uintptr_t)argument << 32;
	uint64_t *at = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t bad = 0;
	for (int n = 0; n < forks; n++) {
		if (n % 50 == 0)
			for (size_t i = 0; i < words; i++)
				at[i] = key + i;
		pid_t child = fork();
		if (child == 0)
			_exit(is_right(at, key, 4099) ? 7 : 1);
		int status = 0;
		bad += child < 0 || waitpid(child, &status, 0) != child || status != 7 << 8;
	}
	bad += !is_right(at, key, 1);
	return (void *)bad;
}

static void *keep_busy(void *argument)
{
	for (volatile uint64_t n = 0; !done; n++)
		;
	return argument;
}

int main(int argc, char **argv)
{
	int threads = atoi(argv[1]);
	forks = atoi(argv[2]);
	words = (strtoul(argv[3], NULL, 0) << 20) / 8 / threads;
	pthread_t all[64], busy[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&busy[i], NULL, keep_busy, NULL);
	for (int i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, work, (void *)(uintptr_t)(i + 1));
	size_t bad = 0;
	for (int i = 0; i < threads; i++) {
		void *wrong;
		pthread_join(all[i], &wrong);
		bad += (size_t)wrong;
	}
	done = 1;
	printf("%zu wrong\n", bad);
	return argc < 0 || bad != 0;
}
