/*
 * Fills memory once and then reads it in one order only: order SIZE_MIB walk|random. A walk goes through
 * all of it, three times; random reads are as many. A third of each page is random words, so that it
 * compresses, but not to nothing. Prints a checksum.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, ROUNDS = 3 };

static uint64_t state = 88172645463325252u;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	uint64_t pages = (uint64_t)atoi(argv[1]) * ((1 << 20) / PAGE), sum = 0;
	int random = strcmp(argv[2], "random") == 0;
	uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	for (uint64_t i = 0; i < pages * WORDS; i++)
		memory[i] = i % WORDS < WORDS / 3 ? draw() : i / WORDS + 1;
	for (uint64_t i = 0; i < ROUNDS * pages; i++)
		sum = sum * 31 + memory[(random ? draw() : i) % pages * WORDS + 7];
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
