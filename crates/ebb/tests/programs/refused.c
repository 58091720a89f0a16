/*
 * A part of memory refuses to leave while the rest is needed: refused HOW PART_MIB WORK_MIB. HOW is "pinned", for
 * buffers that are registered with an io_uring; or "sealed", for memory that may only be read (mseal). Then
 * memory of noise comes and goes three times, and the part holds what was written.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROUNDS = 3 };
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static uint64_t draw(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random;
}

static uint64_t *filled(size_t bytes, uint64_t seed)
{
	uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(2);
	for (size_t i = 0; i < bytes / 8; i++)
		memory[i] = draw(&seed);
	return memory;
}

static size_t wrong(const uint64_t *memory, size_t bytes, uint64_t seed)
{
	size_t count = 0;
	for (size_t i = 0; i < bytes / 8; i++)
		count += memory[i] != draw(&seed);
	return count;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	size_t part = strtoul(argv[2], NULL, 0) << 20, work = strtoul(argv[3], NULL, 0) << 20;
	uint64_t *memory = filled(part, 1);
	if (strcmp(argv[1], "pinned") == 0) {
		struct io_uring_params parameters = { 0 };
		int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
		struct iovec buffer = { memory, part };
		if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) != 0) {
			puts("not here");
			return 0;
		}
	} else if (mprotect(memory, part, PROT_READ) != 0 || syscall(SYS_mseal, memory, part, 0) != 0) {
		puts("not here");
		return 0;
	}
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t *noise = filled(work, 9);
		printf("%zu wrong of the noise\n", wrong(noise, work, 9));
		munmap(noise, work);
	}
	printf("%zu wrong of what refused\n", wrong(memory, part, 1));
	return 0;
}
