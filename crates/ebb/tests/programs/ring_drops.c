/*
 * io_uring drops memory that is out (IORING_OP_MADVISE): it reads as zeros then, or the kernel has refused and
 * it is what it was.
 *
 *   ring_drops SIZE_MIB
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, FIRST = 100, DROPPED = 64 };

int main(int argc, char **argv)
{
	size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t x = 88172645463325252u;
	for (size_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		((uint64_t *)memory)[i] = x;
	}
	struct io_uring_params parameters = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
	if (ring < 0) {
		puts("no io_uring");
		return 0;
	}
	if (parameters.flags != 0)
		puts("WRONG: other flags than were given");
	if (!(parameters.features & IORING_FEAT_SINGLE_MMAP))
		return 2;
	size_t slots = parameters.sq_off.array + parameters.sq_entries * 4;
	size_t results = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
	char *queue = mmap(NULL, slots > results ? slots : results, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *request = mmap(NULL, parameters.sq_entries * sizeof *request,
					    PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
					    IORING_OFF_SQES);
	memset(request, 0, sizeof *request);
	request->opcode = IORING_OP_MADVISE;
	request->addr = (uintptr_t)memory + FIRST * PAGE;
	request->len = DROPPED * PAGE;
	request->fadvise_advice = MADV_DONTNEED;
	*(uint32_t *)(queue + parameters.sq_off.tail) = 1;
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return 3;
	int result = ((struct io_uring_cqe *)(queue + parameters.cq_off.cqes))->res;
	int zero = 0;
	for (int i = 0; i < DROPPED; i++)
		zero += *(uint64_t *)(memory + (FIRST + i) * PAGE) == 0;
	fprintf(stderr, "result %d, %d of %d pages read as zeros\n", result, zero, DROPPED);
	int good = result == 0 ? zero == DROPPED : result == -EACCES && zero == 0;
	puts(good ? "as the result says" : "WRONG");
	return !good;
}
