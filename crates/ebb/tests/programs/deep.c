/*
 * Fills memory, then a stack as deep as its argument in MiB, which is no managed memory, and works
 * on both at the same time.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PAGES = 16000, WORDS = 512 };

static uint64_t *memory;

static uint64_t descend(int mib)
{
	volatile uint64_t frame[1 << 17];
	for (int i = 0; i < 1 << 17; i++)
		frame[i] = (i % 16 ? 0 : memory[(uint64_t)(i / 16 + mib * 331) % PAGES * WORDS + i % WORDS]) + i;
	uint64_t below = mib > 1 ? descend(mib - 1) : 1;
	for (int i = 0; i < 1 << 17; i += 17)
		below = below * 31 + frame[i];
	return below;
}

int main(int argc, char **argv)
{
	memory = malloc((size_t)PAGES * WORDS * 8);
	if (!memory || argc < 2)
		return 1;
	for (uint64_t i = 0; i < (uint64_t)PAGES * WORDS; i++)
		memory[i] = i % WORDS < 100 ? i * 2654435761u : i / WORDS;
	printf("%016llx\n", (unsigned long long)descend(atoi(argv[1])));
	return 0;
}
