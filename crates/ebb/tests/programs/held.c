/*
 * Executes itself while it holds robust mutexes: many in memory that is out by then, and before them one
 * that it shares with what it becomes. The kernel goes through all of them on the way, when nothing of the
 * old program runs any more, and marks that their owner is gone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HELD = 200, APART = 16 * 4096 };

static void *map(int fd, size_t len)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		abort();
	return p;
}

static void hold(pthread_mutex_t *mutex, int sharing)
{
	pthread_mutexattr_t attributes;
	if (pthread_mutexattr_init(&attributes) ||
	    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) ||
	    pthread_mutexattr_setpshared(&attributes, sharing) ||
	    pthread_mutex_init(mutex, &attributes) || pthread_mutex_lock(mutex))
		abort();
}

int main(int argc, char **argv)
{
	if (argc == 3) {
		int answer = pthread_mutex_lock(map(atoi(argv[2]), 4096));
		puts(answer == EOWNERDEAD ? "its owner died" : "its owner lives");
		return 0;
	}
	size_t len = (size_t)atoi(argv[1]) << 20;
	int shared = memfd_create("shared", 0);
	if (shared < 0 || ftruncate(shared, 4096) != 0)
		abort();
	hold(map(shared, 4096), PTHREAD_PROCESS_SHARED);
	char *many = map(-1, HELD * APART);
	for (int i = 0; i < HELD; i++)
		hold((pthread_mutex_t *)(many + i * APART), PTHREAD_PROCESS_PRIVATE);
	char *large = map(-1, len);
	for (int round = 0; round < 2; round++)
		for (size_t i = 0; i < len; i += 4096)
			memset(large + i, (int)(i >> 12) + round, 64);
	char fd[16];
	snprintf(fd, sizeof fd, "%d", shared);
	execl("/proc/self/exe", argv[0], argv[1], fd, (char *)NULL);
	return 1;
}
