/*
 * Maps files that may be written and are not, as linkers do with all that they read. It makes FILES of them, of 8 MiB
 * of noise each, in the working directory. Says how many pages read as they were written.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 8 << 20 };

static uint64_t noise[SIZE / 8];

static uint64_t first(int file, size_t page)
{
	return (file + 1) * 0x9e3779b97f4a7c15u ^ page * 0xbf58476d1ce4e5b9u;
}

int main(int argc, char **argv)
{
	int files = argc > 1 ? atoi(argv[1]) : 1;
	long right = 0;
	for (int file = 0; file < files; file++) {
		char name[32];
		uint64_t x = 0;
		for (size_t i = 0; i < SIZE / 8; i++) {
			x = i % (PAGE / 8) ? x * 6364136223846793005u + 1442695040888963407u : first(file, i / (PAGE / 8));
			noise[i] = x;
		}
		snprintf(name, sizeof name, "file%d", file);
		int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (fd < 0 || write(fd, noise, SIZE) != SIZE)
			return 1;
		const uint64_t *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
		if (mapped == MAP_FAILED)
			return 1;
		close(fd);
		for (size_t page = 0; page < SIZE / PAGE; page++)
			right += mapped[page * PAGE / 8] == first(file, page);
	}
	printf("%ld\n", right);
	return 0;
}
