/*
 * Children that share their parent's memory until they exec, killed at any moment: spawned SIZE_MIB ROUNDS.
 * They are made by vfork, where they read the parent's memory, and by posix_spawn, whose thread is in the
 * call as long. One thread kills whoever is a child of the first, another goes on with memory calls and
 * walks through what was filled. Prints whether all is as it was; how many were killed on stderr.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SOME = 64 };

extern char **environ;
static volatile uint64_t *memory;
static size_t pages;
static volatile int over;

static uint64_t word(uint64_t page)
{
	return (page + 1) * 0x9e3779b97f4a7c15u;
}

/* So many pages from there on: whether they are what was written. */
static int good(uint64_t first, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t page = (first + i) % pages;
		if (memory[page * PAGE / 8 + page % 512] != word(page))
			return 0;
	}
	return 1;
}

static void *kills(void *unused)
{
	char file[64], text[64];
	uint64_t state = 1;
	(void)unused;
	snprintf(file, sizeof file, "/proc/self/task/%d/children", getpid());
	while (!over) {
		int fd = open(file, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
		close(fd);
		text[n > 0 ? n : 0] = 0;
		int child = atoi(text);
		if (child <= 0)
			continue;
		state = state * 6364136223846793005u + 1442695040888963407u;
		struct timespec pause = { 0, (long)(state >> 33) % 1500000 };
		nanosleep(&pause, NULL);
		kill(child, SIGKILL);
	}
	return NULL;
}

static void *works(void *wrong)
{
	for (uint64_t at = 0; !over; at += SOME) {
		char *some = mmap(NULL, SOME * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (some == MAP_FAILED)
			break;
		memset(some, 1, SOME * PAGE);
		free(malloc(3 * PAGE));
		munmap(some, SOME * PAGE);
		if (!good(at, SOME))
			*(int *)wrong = 1;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static volatile int unlike;
	int rounds = argc > 2 ? atoi(argv[2]) : 100, killed = 0, wrong = 0;
	char *arguments[] = { "sh", "-c", "exit 7", NULL };
	pages = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 8;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	for (uint64_t page = 0; page < pages; page++)
		memory[page * PAGE / 8 + page % 512] = word(page);
	pthread_t killer, worker;
	if (pthread_create(&killer, NULL, kills, NULL) || pthread_create(&worker, NULL, works, &wrong))
		return 1;
	for (int round = 0; round < rounds; round++) {
		pid_t child = -1;
		int status = 0;
		if (round % 2) {
			if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) != 0)
				continue;
		} else {
			child = vfork();
			if (child == 0) {
				unlike |= !good((uint64_t)round * 997, 300);
				execv("/bin/sh", arguments);
				_exit(1);
			}
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			return 1;
		killed += WIFSIGNALED(status);
		wrong |= !WIFSIGNALED(status) && WEXITSTATUS(status) != 7;
		wrong |= !good((uint64_t)round * 1009, 100);
	}
	over = 1;
	pthread_join(killer, NULL);
	pthread_join(worker, NULL);
	puts(wrong || unlike || !good(0, pages) ? "WRONG" : "as it was");
	fprintf(stderr, "killed %d of %d\n", killed, rounds);
	return 0;
}
