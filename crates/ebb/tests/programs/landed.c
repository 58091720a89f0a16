/*
 * Memory that libc mapped is unmapped by a system call without libc. Then mremap or brk, called through libc, puts
 * other memory there.
 *
 *   landed SIZE_MIB
 *
 * That must hold what was moved, and zeros where it is new, and then its writes, however long other memory comes and
 * goes beside it. A child that is forked meanwhile has it, too. Some of the old pages are in memory when they go,
 * some are out. The program says on standard error where the system really put memory there.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_WRITE (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

enum { BYTES = 8 << 20, WORDS = BYTES / 8, HALF = WORDS / 2 };

static uint64_t *big;
static size_t big_words, bad;

static long raw_unmap(void *at, size_t len)
{
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_munmap), "D"(at), "S"(len)
			 : "rcx", "r11", "memory");
	return result;
}

static uint64_t next(uint64_t x)
{
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x;
}

static void fill(uint64_t *at, size_t words, uint64_t x)
{
	for (size_t i = 0; i < words; i++)
		at[i] = x = next(x);
}

static size_t wrong(const uint64_t *at, size_t words, uint64_t x)
{
	size_t count = 0;
	for (size_t i = 0; i < words; i++)
		count += at[i] != (x = next(x));
	return count;
}

static size_t nonzero(const uint64_t *at, size_t words)
{
	size_t count = 0;
	for (size_t i = 0; i < words; i++)
		count += at[i] != 0;
	return count;
}

/* Memory for a call to come to: filled, partly out, and unmapped behind libc's back. */
static void leave(uint64_t *at, size_t words)
{
	fill(at, words, 3);
	fill(big, big_words, 7);
	fill(at + words / 2, words / 2, 5);
	if (raw_unmap(at, words * 8) != 0)
		exit(2);
}

static void *map(void *at, size_t words, int flags)
{
	void *mapped = mmap(at, words * 8, READ_WRITE, PRIVATE | flags, -1, 0);
	if (mapped == MAP_FAILED)
		exit(3);
	return mapped;
}

/* Memory at `at` holds `kept` words that were moved, and zeros behind them. */
static void look(const char *call, uint64_t *at, size_t kept, size_t words)
{
	size_t moved = wrong(at, kept, 11), old = nonzero(at + kept, words - kept);
	fill(at + kept, words - kept, 13);
	size_t others = 0, later = 0;
	int status = -1;
	for (int round = 0; round < 2; round++) {
		others += wrong(big, big_words, 7);
		later += wrong(at, kept, 11) + wrong(at + kept, words - kept, 13);
	}
	pid_t child = fork();
	if (child == 0)
		_exit(wrong(at, kept, 11) + wrong(at + kept, words - kept, 13) != 0);
	if (child < 0 || waitpid(child, &status, 0) != child)
		status = -1;
	printf("%s: %zu wrong of what was moved, %zu old words, %zu wrong later, %zu of other memory, child %x\n",
	       call, moved, old, later, others, (unsigned)status);
	bad += moved + old + others + later + (status != 0);
}

static void landed(const char *call, void *at, void *wanted)
{
	if (at == MAP_FAILED)
		exit(4);
	fprintf(stderr, "%s: %s\n", call, at == wanted ? "landed" : "elsewhere");
}

int main(int argc, char **argv)
{
	big_words = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 17;
	setvbuf(stdout, NULL, _IOLBF, 1024);
	printf("begins\n");
	void *heap = (void *)(((uintptr_t)sbrk(0) + 4095) & -(uintptr_t)4096);
	uint64_t *above = map(heap, WORDS, MAP_FIXED_NOREPLACE);
	big = map(NULL, big_words, 0);

	/* The system is told where to move to, and may. */
	uint64_t *from = map(NULL, WORDS, 0), *place = map(NULL, WORDS, 0);
	fill(from, WORDS, 11);
	leave(place, WORDS);
	uint64_t *to = mremap(from, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, place);
	landed("a move to a wish", to, place);
	look("a move to a wish", to, WORDS, WORDS);
	munmap(from, BYTES);
	munmap(to, BYTES);

	/* It moves memory that cannot grow to where it finds room: what was unmapped last. */
	from = map(NULL, HALF + 512, 0);
	place = map(NULL, WORDS, 0);
	fill(from, HALF, 11);
	leave(place, WORDS);
	to = mremap(from, BYTES / 2, BYTES, MREMAP_MAYMOVE);
	landed("a move", to, place);
	look("a move", to, HALF, WORDS);
	munmap(to, BYTES);

	/* Memory grows where it is. */
	from = map(NULL, WORDS, 0);
	fill(from, HALF, 11);
	leave(from + HALF, HALF);
	to = mremap(from, BYTES / 2, BYTES, 0);
	landed("growth", to, from);
	look("growth", to, HALF, WORDS);
	munmap(to, BYTES);

	/* The heap does. */
	leave(above, WORDS);
	landed("brk", brk((char *)heap + BYTES) == 0 ? heap : NULL, above);
	look("brk", above, 0, WORDS);
	return bad != 0;
}
