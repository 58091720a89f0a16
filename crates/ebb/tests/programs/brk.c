/* Fills memory from brk, reads it again, gives half of it back and reads the rest: brk SIZE_MIB. */
#define _DEFAULT_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t sum(const uint64_t *memory, size_t words)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < words; i++)
		sum = sum * 31 + memory[i];
	return sum;
}

int main(int argc, char **argv)
{
	size_t words = ((size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20) / 8;
	uint64_t *memory = sbrk((intptr_t)words * 8), random = 88172645463325252u;
	for (size_t i = 0; i < words; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		memory[i] = i % 512 < 160 ? random : i / 512;
	}
	uint64_t all = sum(memory, words);
	sbrk(-(intptr_t)(words * 4));
	uint64_t half = sum(memory, words / 2);
	printf("%016llx %016llx\n", (unsigned long long)all, (unsigned long long)half);
	return 0;
}
