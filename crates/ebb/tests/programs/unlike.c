/*
 * Memory mapped in less usual ways leaves as other memory does: unlike KIND SIZE_MIB, where KIND is
 *
 *   write   it may be written, and nothing says that it may be read
 *   sealed  the same by mprotect
 *   stack   MAP_STACK, as fibers have it
 *   moves   a part of what moves by one call is memory that is not managed
 *
 * Prints what it read, a checksum.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static unsigned char *map(size_t len, int protection, int flags)
{
	void *at = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	if (at == MAP_FAILED)
		exit(1);
	return at;
}

static void fill(unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = i % PAGE < PAGE / 2 ? (seed + i) * 0x9e3779b97f4a7c15u : i / PAGE;
		memcpy(at + i, &word, 8);
	}
}

static uint64_t sum(const unsigned char *at, size_t len)
{
	uint64_t sum = 0, word;
	for (size_t i = 0; i < len; i += 8) {
		memcpy(&word, at + i, 8);
		sum = sum * 31 + word;
	}
	return sum;
}

/* Two pages of a file that was mapped privately show the file again, in the midst of memory that was copied. */
static int moves(size_t len)
{
	FILE *file = tmpfile();
	unsigned char *wanted = map(len, PROT_READ | PROT_WRITE, 0), *moved = NULL;
	fill(wanted, len, 7);
	if (file == NULL || fwrite(wanted, 1, len, file) != len || fflush(file) != 0)
		return 1;
	for (int at = 0; at < 2; at++) {
		unsigned char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
		unsigned char *place = map(len, PROT_READ | PROT_WRITE, 0);
		unsigned char *dropped = memory + (at == 0 ? 0 : len / 2);
		if (memory == MAP_FAILED)
			return 1;
		fill(place, len, 9);
		fill(memory, len, 8);
		if (madvise(dropped, 2 * PAGE, MADV_DONTNEED) != 0)
			return 1;
		moved = mremap(memory, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place);
		printf("moved %d, ", moved == place);
		/* Before 6.17 the kernel moves one mapping at a time, and refuses more. */
		if (moved != place)
			moved = memory;
		fill(wanted, len, 8);
		for (int page = 0; page < 2; page++)
			if (pread(fileno(file), wanted + (dropped - memory) + page * PAGE, PAGE,
				  (dropped - memory) + page * PAGE) != PAGE)
				return 1;
		printf("alike %d, ", memcmp(moved, wanted, len) == 0);
		fflush(stdout);
		pid_t child = fork();
		if (child == 0)
			_exit(memcmp(moved, wanted, len) != 0);
		int status;
		waitpid(child, &status, 0);
		printf("in a child %d\n", status == 0);
	}
	return 0;
}

int main(int argc, char **argv)
{
	size_t len = (size_t)(argc > 2 ? atoi(argv[2]) : 96) << 20;
	const char *kind = argc > 1 ? argv[1] : "";
	if (strcmp(kind, "moves") == 0)
		return moves(len);
	int is_sealed = strcmp(kind, "sealed") == 0;
	int flags = strcmp(kind, "stack") == 0 ? MAP_STACK : 0;
	unsigned char *memory = map(len, flags || is_sealed ? PROT_READ | PROT_WRITE : PROT_WRITE, flags);
	if (is_sealed && mprotect(memory, len, PROT_WRITE) != 0)
		return 1;
	fill(memory, len, 1);
	uint64_t first = sum(memory, len);
	fill(memory + len / 4, len / 2, 2);
	printf("%016llx %016llx\n", (unsigned long long)first, (unsigned long long)sum(memory, len));
	return 0;
}
