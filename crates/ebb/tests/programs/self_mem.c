/*
 * Code as Julia writes it: memory that was writable once, written through /proc/self/mem beside memory that is
 * written: self_mem SIZE_MIB [low]. An eighth is code, which is written before anybody has touched it, and again when it was
 * read or went out meanwhile; low: below 4 GiB. Prints how many calls failed, and a checksum of what was read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 200 };

static int file;
static unsigned failed;

static unsigned char *map(size_t pages, int where)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | where;
	void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (at == MAP_FAILED)
		exit(1);
	return at;
}

static void put(unsigned char *at, unsigned seed)
{
	unsigned char piece[PIECE];
	for (int i = 0; i < PIECE; i++)
		piece[i] = (unsigned char)(seed * 31 + (unsigned)i);
	if (pwrite(file, piece, PIECE, (off_t)(uintptr_t)at) != PIECE)
		failed++;
}

int main(int argc, char **argv)
{
	size_t pages = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 8, few = pages / 8;
	file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	unsigned char *code = map(few, argc > 2 ? MAP_32BIT : 0);
	if (mprotect(code, few * PAGE, PROT_READ | PROT_EXEC) != 0)
		return 1;
	unsigned char *written = map(pages, 0);
	uint64_t sum = 0, random = 88172645463325252u;
	for (size_t i = 0; i < pages; i++)
		for (int at = 0; at < PAGE / 2; at += 8)
			memcpy(written + i * PAGE + at, &(uint64_t){ (i + 1) * 0x9e3779b97f4a7c15u + at }, 8);
	for (size_t n = 0; n < 3 * pages; n++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		sum = sum * 31 + written[random % pages * PAGE]++;
		if (n % 8 == 0)
			/* Over the end of a page, too. */
			put(code + random % (few * PAGE - PIECE), (unsigned)n);
		if (n % 8 == 4)
			sum = sum * 31 + code[random % (few * PAGE)];
	}
	for (size_t i = 0; i < few * PAGE; i++)
		sum = sum * 31 + code[i];
	/* Where nothing is mapped nothing is written; and a file is a file. */
	munmap(code, few * PAGE);
	ssize_t none = pwrite(file, "x", 1, (off_t)(uintptr_t)code);
	int why = errno;
	FILE *other = tmpfile();
	if (other == NULL || pwrite(fileno(other), "x", 1, 1 << 20) != 1)
		failed++;
	printf("%u failed, then %zd (%s), %016llx\n", failed, none, strerror(why), (unsigned long long)sum);
	return 0;
}
