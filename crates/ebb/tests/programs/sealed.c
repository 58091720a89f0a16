/*
 * Memory that is written once and sealed, more of it than the budget: sealed SIZE_MIB. While it may
 * only be read, two threads read it at random. A third opens, changes and seals parts of its own
 * quarter, some against reading too. A child made meanwhile reads it as well. Then all of it is out
 * of reach while other memory is filled, then open again: every page is changed and checked.
 * Prints a sum of the words that it reads.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, RUN = 40, OPEN = PROT_READ | PROT_WRITE };

static uint64_t *memory;
static size_t pages, sealed; /* the pages behind `sealed` are the third thread's */

static void must(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	abort();
}

static uint64_t draw(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random >> 8;
}

/* A quarter of a page is noise, the rest one value. */
static uint64_t word(size_t page, size_t i, uint64_t version)
{
	uint64_t seed = page * 31 + version;
	return i < WORDS / 4 ? (seed + 1) * (i + 1) * 0x9e3779b97f4a7c15u : seed;
}

static void fill(uint64_t *at, size_t page, uint64_t version)
{
	for (size_t i = 0; i < WORDS; i++)
		at[i] = word(page, i, version);
}

static uint64_t check(size_t page, uint64_t version)
{
	for (size_t i = 0; i < WORDS; i += 7)
		if (memory[page * WORDS + i] != word(page, i, version)) {
			fprintf(stderr, "wrong data in page %zu, word %zu\n", page, i);
			abort();
		}
	return memory[page * WORDS + 1];
}

static void protect(size_t page, size_t count, int how)
{
	must(mprotect(memory + page * WORDS, count * PAGE, how) == 0, "mprotect");
}

static uint64_t read_some(uint64_t random, size_t times)
{
	uint64_t sum = 0;
	while (times-- > 0)
		sum = sum * 31 + check(draw(&random) % sealed, 0);
	return sum;
}

static void *reader(void *seed)
{
	return (void *)read_some((uintptr_t)seed, pages);
}

static void *changer(void *version)
{
	uint64_t random = 77, sum = 0;
	uint64_t *versions = version;
	for (size_t n = 0; n < 200; n++) {
		size_t first = sealed + draw(&random) % (pages - sealed - RUN);
		protect(first, RUN, n % 2 ? PROT_NONE : PROT_READ);
		protect(first, RUN, OPEN);
		for (size_t page = first; page < first + RUN; page++) {
			sum = sum * 31 + check(page, versions[page]);
			fill(memory + page * WORDS, page, ++versions[page]);
		}
		protect(first, RUN, PROT_READ);
	}
	return (void *)sum;
}

int main(int argc, char **argv)
{
	pages = (size_t)(argc > 1 ? atoi(argv[1]) : 256) << 8;
	sealed = pages / 4 * 3;
	memory = mmap(NULL, pages * PAGE, OPEN, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED, "mmap");
	uint64_t *versions = calloc(pages, sizeof *versions);
	for (size_t page = 0; page < pages; page++)
		fill(memory + page * WORDS, page, 0);
	protect(0, pages, PROT_READ);

	pthread_t threads[3];
	for (uintptr_t i = 0; i < 2; i++)
		must(pthread_create(&threads[i], NULL, reader, (void *)(i + 5)) == 0, "pthread_create");
	must(pthread_create(&threads[2], NULL, changer, versions) == 0, "pthread_create");
	pid_t child = fork();
	must(child >= 0, "fork");
	if (child == 0) {
		read_some(9, pages / 4);
		_exit(0);
	}
	uint64_t sum = 0;
	for (int i = 0; i < 3; i++) {
		void *part;
		pthread_join(threads[i], &part);
		sum = sum * 31 + (uintptr_t)part;
	}
	int status;
	must(waitpid(child, &status, 0) == child && status == 0, "the child");

	protect(0, pages, PROT_NONE);
	uint64_t *other = malloc(pages / 4 * PAGE);
	for (size_t page = 0; page < pages / 4; page++)
		fill(other + page * WORDS, page, 3);
	sum = sum * 31 + other[pages / 8 * WORDS];
	protect(0, pages, OPEN);
	for (size_t page = 0; page < pages; page++) {
		sum = sum * 31 + check(page, versions[page]);
		fill(memory + page * WORDS, page, ++versions[page]);
	}
	for (size_t page = pages; page-- > 0;)
		sum = sum * 31 + check(page, versions[page]);
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
