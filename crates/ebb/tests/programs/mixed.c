/*
 * Pages that take room to be stored beside pages that take none, touched at random: mixed SIZE_MIB
 * ROUNDS. Every other page holds words that do not compress, the rest are zero. Prints a sum of all.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { WORDS = 4096 / 8 };

static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int argc, char **argv)
{
	size_t pages = (size_t)(argc > 1 ? atoi(argv[1]) : 64) * 256;
	size_t touches = pages * (argc > 2 ? atoi(argv[2]) : 4);
	uint64_t *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	for (size_t page = 0; page < pages; page++)
		for (int word = 0; word < WORDS; word++)
			memory[page * WORDS + word] = page % 2 ? 0 : next();
	for (size_t i = 0; i < touches; i++) {
		size_t page = next() % pages;
		memory[page * WORDS + next() % WORDS] *= page % 2 ? 1 : 3;
	}
	uint64_t sum = 0;
	for (size_t word = 0; word < pages * WORDS; word++)
		sum = sum * 31 + memory[word];
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
