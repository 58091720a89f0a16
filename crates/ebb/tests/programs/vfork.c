/*
 * Children that share the parent's memory until they exec: made by vfork and by posix_spawn, from
 * memory most of which is swapped out. The child of vfork reads all of it and writes to some, as
 * the parent does itself; what it wrote is there when the parent runs on.
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 24000, WORDS = 512 };

extern char **environ;
static uint64_t *memory;

static uint64_t digest(void)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < (uint64_t)PAGES * WORDS; i += 7)
		sum = sum * 31 + memory[i];
	return sum;
}

static int status_of(pid_t child)
{
	int status = -1;
	waitpid(child, &status, 0);
	return status;
}

int main(void)
{
	static volatile uint64_t seen;
	char *argv[] = {"sh", "-c", "exit 7", NULL};
	memory = malloc((size_t)PAGES * WORDS * 8);
	if (!memory)
		return 1;
	for (uint64_t p = 0; p < PAGES; p++)
		for (int w = 0; w < WORDS; w++)
			memory[p * WORDS + w] = w < 100 ? p * 2654435761u + w : p;
	uint64_t before = digest();
	for (int round = 0; round < 3; round++) {
		pid_t child = vfork();
		if (child == 0) {
			seen = digest();
			for (uint64_t p = round; p < PAGES; p += 100)
				memory[p * WORDS + 1] = seen + p;
			execv("/bin/sh", argv);
			_exit(1);
		}
		printf("vfork: exit %d, %s\n", WEXITSTATUS(status_of(child)), seen == before ? "same" : "other");
		before = digest();
		printf("parent %016llx\n", (unsigned long long)before);
		if (posix_spawn(&child, "/bin/sh", NULL, NULL, argv, environ) != 0)
			return 1;
		printf("posix_spawn: exit %d\n", WEXITSTATUS(status_of(child)));
	}
	return 0;
}
