/*
 * Children of vfork that map, fill, protect, move, drop and unmap memory all the time, killed at any moment:
 * sharers SIZE_KIB ROUNDS. They share the parent's memory, so what they leave half done would be left to it.
 * After each of them the parent makes memory calls of its own, and reads some of what it filled. A round in
 * eight of them is not killed, and says by its exit status whether it read what it wrote. The children are
 * killed by one that is forked before, so that the program need not have a thread. Prints whether all is as
 * it was.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SOME = 24 };

static volatile uint64_t *memory;
static size_t pages;

static uint64_t word(uint64_t page)
{
	return (page + 1) * 0x9e3779b97f4a7c15u;
}

static int good(uint64_t first, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t page = (first + i) % pages;
		if (memory[page * PAGE / 8 + page % 512] != word(page))
			return 0;
	}
	return 1;
}

static char *map(size_t count)
{
	char *some = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return some == MAP_FAILED ? NULL : some;
}

/*
 * One round of a child's work on memory; 0 if it read something else than it wrote. malloc's own data are in
 * memory too, so a child that may be killed leaves them alone.
 */
static int uses(unsigned n, int with_malloc)
{
	char *some = map(SOME), *more, *block;
	if (!some)
		return 0;
	for (unsigned i = 0; i < SOME; i++)
		some[i * PAGE] = (char)(n + i);
	if (mprotect(some, SOME / 2 * PAGE, PROT_READ) || some[PAGE] != (char)(n + 1))
		return 0;
	if (mprotect(some, SOME * PAGE, PROT_READ | PROT_WRITE))
		return 0;
	if (madvise(some + 2 * PAGE, 3 * PAGE, MADV_DONTNEED) || some[2 * PAGE] || some[5 * PAGE] != (char)(n + 5))
		return 0;
	more = mremap(some, SOME * PAGE, 2 * SOME * PAGE, MREMAP_MAYMOVE);
	if (more == MAP_FAILED || more[7 * PAGE] != (char)(n + 7) || more[(SOME + 1) * PAGE])
		return 0;
	if (mmap(more, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != more || more[0])
		return 0;
	if (with_malloc) {
		block = malloc(100000 + n % 7 * 1000);
		if (!block)
			return 0;
		memset(block, 1, 100000);
		free(block);
	}
	return munmap(more, 2 * SOME * PAGE) == 0;
}

/* Reads numbers of processes, and kills each after a while. */
static void kills(int from)
{
	uint64_t state = 1;
	pid_t child;
	while (read(from, &child, sizeof child) == sizeof child) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		struct timespec pause = { 0, (long)(state >> 33) % 2000000 };
		nanosleep(&pause, NULL);
		kill(child, SIGKILL);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	static volatile int killed, wrong;
	int rounds = argc > 2 ? atoi(argv[2]) : 100, ends[2];
	pages = (size_t)(argc > 1 ? atoi(argv[1]) : 65536) / 4;
	if (pipe(ends))
		return 1;
	pid_t killer = fork();
	if (killer == 0) {
		close(ends[1]);
		kills(ends[0]);
	}
	close(ends[0]);
	memory = (uint64_t *)map(pages);
	if (!memory || killer < 0)
		return 1;
	for (uint64_t page = 0; page < pages; page++)
		memory[page * PAGE / 8 + page % 512] = word(page);
	for (int round = 0; round < rounds; round++) {
		volatile int spared = round % 8 == 7;
		int status = 0;
		pid_t child = vfork();
		if (child == 0) {
			pid_t own = getpid();
			if (!spared && write(ends[1], &own, sizeof own) != sizeof own)
				_exit(1);
			for (unsigned n = 0; !spared || n < 20; n++)
				if (!uses(n, spared))
					_exit(2);
			_exit(7);
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			return 1;
		killed += WIFSIGNALED(status);
		if (WIFEXITED(status))
			wrong |= WEXITSTATUS(status) != 7;
		else
			wrong |= spared || WTERMSIG(status) != SIGKILL;
		char *some = map(SOME);
		if (!some)
			return 1;
		memset(some, 1, SOME * PAGE);
		wrong |= munmap(some, SOME * PAGE) != 0;
		wrong |= !good((uint64_t)round * 1009, 100);
	}
	close(ends[1]);
	waitpid(killer, NULL, 0);
	puts(wrong || !good(0, pages) ? "WRONG" : "as it was");
	fprintf(stderr, "killed %d of %d\n", killed, rounds);
	return 0;
}
