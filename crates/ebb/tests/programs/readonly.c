/*
 * Memory that may only be read, beside memory that is written: readonly SIZE_MIB. The first is
 * written while it may be, pushed out by the second, and read again after it was made read-only;
 * a third was never written at all. Pages of neither can be moved into place. Prints a checksum.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static unsigned char *map(size_t pages, int protection)
{
	void *at = mmap(NULL, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		exit(1);
	return at;
}

static void fill(unsigned char *at, size_t pages, uint64_t seed)
{
	for (size_t i = 0; i < pages * PAGE; i += 8) {
		uint64_t word = i % PAGE < PAGE / 4 ? (seed += 0x9e3779b97f4a7c15u) * (i + 1) : i / PAGE;
		memcpy(at + i, &word, 8);
	}
}

int main(int argc, char **argv)
{
	size_t pages = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 8, few = pages / 8;
	unsigned char *sealed = map(few, PROT_READ | PROT_WRITE);
	unsigned char *empty = map(few, PROT_READ);
	unsigned char *written = map(pages, PROT_READ | PROT_WRITE);
	fill(sealed, few, 1);
	fill(written, pages, 2);
	if (mprotect(sealed, few * PAGE, PROT_READ) != 0)
		return 1;
	uint64_t sum = 0, random = 88172645463325252u;
	for (size_t n = 0; n < 3 * pages; n++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		sum = sum * 31 + written[random % pages * PAGE]++;
		if (n % 4 == 0)
			sum = sum * 31 + sealed[random % few * PAGE + 8] + empty[n / 4 % few * PAGE];
	}
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
