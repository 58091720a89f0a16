/*
 * A process that pages drops the memory that it shares with an idle child since a fork. It fills as much as the
 * budget holds at once. The child keeps its pages, so there is room for the rest alone.
 *
 *     parting MIB      of which two fifths are shared
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t word(uint64_t page, uint64_t w, uint64_t seed)
{
	uint64_t x = (page * WORDS + w + 1) * 0x9e3779b97f4a7c15u ^ seed;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 32;
}

static uint64_t *filled(uint64_t pages, uint64_t seed)
{
	uint64_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED)
		exit(1);
	for (uint64_t p = 0; p < pages; p++)
		for (int w = 0; w < WORDS; w++)
			m[p * WORDS + w] = word(p, w, seed);
	return m;
}

static uint64_t wrong(const uint64_t *m, uint64_t pages, uint64_t seed)
{
	uint64_t n = 0;
	for (uint64_t p = 0; p < pages; p++)
		n += m[p * WORDS + 5] != word(p, 5, seed) || m[p * WORDS + 500] != word(p, 500, seed);
	return n;
}

int main(int argc, char **argv)
{
	uint64_t pages = (argc > 1 ? strtoull(argv[1], 0, 0) : 200) * 256, shared = pages * 2 / 5;
	uint64_t bad = 0;
	/* So that it pages. */
	uint64_t *first = filled(pages + pages / 10, 1);
	munmap(first, (pages + pages / 10) * 4096);
	for (int round = 0; round < 3; round++) {
		uint64_t *m = filled(shared, 2);
		int ends[2], status;
		char c;
		if (pipe(ends))
			return 1;
		pid_t child = fork();
		if (child == 0) {
			close(ends[1]);
			c = read(ends[0], &c, 1);
			_exit(wrong(m, shared, 2) != 0);
		}
		close(ends[0]);
		/* Measured by now, and at rest. */
		usleep(500000);
		munmap(m, shared * 4096);
		uint64_t *next = filled(pages, 3);
		close(ends[1]);
		if (waitpid(child, &status, 0) != child || status)
			return 1;
		bad += wrong(next, pages, 3);
		munmap(next, pages * 4096);
	}
	printf("%lu wrong\n", (unsigned long)bad);
	return bad != 0;
}
