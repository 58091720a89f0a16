/*
 * A thread that is to be cancelled goes through calls that are no points of cancellation: cancelled SIZE_MIB ROUNDS
 *
 * While another reads memory that is mostly out, so that calls wait. A thread that ended in one of them would leave locks
 * behind: others fork afterwards. Prints where each was cancelled in the end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, BLOCK = 2 << 20 };

extern char **environ;

static uint64_t *memory;
static size_t pages;
static int rounds;
static volatile int over;
static const char *volatile step;

static uint64_t word_of(size_t page, int i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * i * 0x2545f4914f6cdd1du;
}

/* waitpid is a point of cancellation, as it may be. */
static int ended_with(pid_t child)
{
	int status = -1;
	if (child < 0 || syscall(SYS_wait4, child, &status, 0, NULL) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int is_right(size_t page)
{
	return memory[page * WORDS + 5] == word_of(page, 5);
}

static void *read_all(void *argument)
{
	size_t wrong = 0;
	while (!over)
		for (size_t page = 0; page < pages && !over; page++)
			wrong += !is_right(page);
	*(size_t *)argument = wrong;
	return NULL;
}

static void check(int right)
{
	if (!right) {
		fprintf(stderr, "wrong in %s\n", step);
		abort();
	}
}

static void call_each(int round)
{
	step = "malloc";
	char *block = malloc(BLOCK);
	check(block != NULL);
	memset(block, round, BLOCK);
	step = "realloc";
	block = realloc(block, 2 * BLOCK);
	check(block != NULL && block[BLOCK - 1] == (char)round);
	step = "free";
	free(block);
	step = "mmap";
	char *mapped = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(mapped != MAP_FAILED);
	memset(mapped, round, BLOCK);
	step = "mremap";
	mapped = mremap(mapped, BLOCK, 2 * BLOCK, MREMAP_MAYMOVE);
	check(mapped != MAP_FAILED && mapped[BLOCK - 1] == (char)round);
	step = "madvise";
	check(madvise(mapped, BLOCK, MADV_DONTNEED) == 0 && mapped[0] == 0);
	step = "munmap";
	check(munmap(mapped, 2 * BLOCK) == 0);
	step = "fork";
	pid_t child = fork();
	if (child == 0)
		_exit(is_right(round * 997 % pages) ? 7 : 8);
	check(ended_with(child) == 7);
	step = "posix_spawn";
	char *arguments[] = {"true", NULL};
	check(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
	check(ended_with(child) == 0);
	step = "execve";
	check(execve("/nowhere/at/all", arguments, environ) == -1);
	check(execve("/proc/self/status", arguments, environ) == -1);
	step = "setgid";
	check(setgid(getgid()) == 0);
}

static void told(void *argument)
{
	*(const char **)argument = step;
}

static void *work(void *argument)
{
	pthread_cleanup_push(told, argument);
	/* Itself: from here on it is to be cancelled. */
	pthread_cancel(pthread_self());
	for (int round = 0; round < rounds; round++)
		call_each(round);
	step = "pthread_testcancel";
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	pages = strtoul(argv[1], NULL, 10) << 20 >> 12;
	rounds = atoi(argv[2]);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	for (size_t page = 0; page < pages; page++)
		for (int i = 0; i < WORDS; i++)
			memory[page * WORDS + i] = word_of(page, i);
	pthread_t reader, cancelled;
	size_t wrong = 0;
	pthread_create(&reader, NULL, read_all, &wrong);
	for (int n = 0; n < 4; n++) {
		const char *where = "nowhere";
		pthread_create(&cancelled, NULL, work, &where);
		pthread_join(cancelled, NULL);
		printf("cancelled in %s\n", where);
		fflush(stdout);
		pid_t child = fork();
		if (child == 0)
			_exit(is_right(n) ? 7 : 8);
		printf("then a child ended with %d\n", ended_with(child));
		fflush(stdout);
	}
	over = 1;
	pthread_join(reader, NULL);
	printf("%zu wrong\n", wrong);
	return wrong != 0;
}
