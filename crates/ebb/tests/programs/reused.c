/*
 * Memory that libc mapped is unmapped, and its addresses are mapped anew, by system calls without libc.
 *
 *   reused SIZE_MIB ROUNDS
 *
 * The new memory must read as zeros first and then hold its writes, however long other memory comes and goes
 * beside it. Some of the old pages are in memory when they go, some are out. A child that is
 * forked while nothing is mapped there has all other memory.
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

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
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

int main(int argc, char **argv)
{
	size_t big_bytes = strtoul(argv[1], NULL, 0) << 20, bytes = 8 << 20;
	int rounds = argc > 2 ? atoi(argv[2]) : 3;
	uint64_t *big = mmap(NULL, big_bytes, READ_WRITE, PRIVATE, -1, 0);
	size_t bad = 0;
	for (int round = 1; round <= rounds; round++) {
		uint64_t *area = mmap(NULL, bytes, READ_WRITE, PRIVATE, -1, 0);
		/* The first half is out, mostly, when the second is written. */
		fill(area, bytes / 16, 9 * round);
		fill(big, big_bytes / 8, 7 * round);
		fill(area + bytes / 16, bytes / 16, 10 * round);
		/* In the second round a part in the midst of it. */
		char *part = (char *)area + (round == 2 ? 3 * 4096 : 0);
		size_t part_bytes = round == 2 ? bytes - 8 * 4096 : bytes;
		if (raw(SYS_munmap, (long)part, part_bytes, 0, 0, 0, 0) != 0)
			return 2;
		int status = 0;
		pid_t child = round == 3 ? fork() : 0;
		if (round == 3 && child == 0)
			_exit(wrong(big, big_bytes / 8, 7 * round) != 0);
		if (round == 3 && (waitpid(child, &status, 0) != child || status != 0)) {
			printf("a child that was forked meanwhile ended with status %x\n", status);
			bad++;
		}
		long now = raw(SYS_mmap, (long)part, part_bytes, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0);
		if (now != (long)part)
			return 3;
		size_t old = nonzero((uint64_t *)part, part_bytes / 16);
		fill((uint64_t *)part, part_bytes / 8, 11 * round);
		size_t others = 0, anew = 0;
		for (int look = 0; look < 2; look++) {
			others += wrong(big, big_bytes / 8, 7 * round);
			anew += wrong((uint64_t *)part, part_bytes / 8, 11 * round);
		}
		printf("round %d: %zu old words, %zu wrong of other memory, %zu of what is there anew\n",
		       round, old, others, anew);
		bad += old + others + anew;
	}
	return bad != 0;
}
