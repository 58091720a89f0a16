/*
 * io_uring on memory that is pushed out meanwhile: rings SIZE_MIB [unseen]. Prints the results.
 *
 * A registered buffer is pinned: the program must see a transfer into it, whatever was evicted in between.
 * That holds also where the program may only read the buffer. Other buffers are out when the kernel fills them.
 * A transfer that ends early leaves the bytes behind its end, in both, as without ebb. Data that waits in a
 * socket is sent as it was, wherever its pages are by then. `unseen`: the ring is made without libc.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, LENGTH = PAGES * PAGE, ENTRIES = 4 };

static struct {
	int fd;
	uint32_t *submitted, *mask, *slots;
	uint32_t *taken, *completed, *completion_mask;
	struct io_uring_sqe *requests;
	struct io_uring_cqe *results;
} ring;

static int make(struct io_uring_params *parameters, int unseen)
{
	if (!unseen)
		return (int)syscall(SYS_io_uring_setup, ENTRIES, parameters);
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_io_uring_setup), "D"(ENTRIES), "S"(parameters)
			 : "rcx", "r11", "memory");
	return (int)result;
}

static int start(int unseen)
{
	struct io_uring_params p = { 0 };
	ring.fd = make(&p, unseen);
	if (ring.fd < 0)
		return 0;
	size_t length = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	size_t other = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
	int how = PROT_READ | PROT_WRITE;
	char *both = mmap(NULL, length > other ? length : other, how, MAP_SHARED | MAP_POPULATE,
			  ring.fd, IORING_OFF_SQ_RING);
	ring.requests = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), how,
			     MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
	if (both == MAP_FAILED || ring.requests == MAP_FAILED)
		return 0;
	ring.submitted = (uint32_t *)(both + p.sq_off.tail);
	ring.mask = (uint32_t *)(both + p.sq_off.ring_mask);
	ring.slots = (uint32_t *)(both + p.sq_off.array);
	ring.taken = (uint32_t *)(both + p.cq_off.head);
	ring.completed = (uint32_t *)(both + p.cq_off.tail);
	ring.completion_mask = (uint32_t *)(both + p.cq_off.ring_mask);
	ring.results = (struct io_uring_cqe *)(both + p.cq_off.cqes);
	return 1;
}

/* One transfer, waited for: what io_uring says of it first. */
static int transfer(int operation, int file, int registered, char *buffer)
{
	uint32_t at = *ring.submitted, slot = at & *ring.mask;
	ring.requests[slot] = (struct io_uring_sqe){
		.opcode = (uint8_t)operation,
		.fd = file,
		.addr = (uintptr_t)buffer,
		.len = LENGTH,
		.buf_index = (uint16_t)registered,
	};
	ring.slots[slot] = slot;
	__atomic_store_n(ring.submitted, at + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return -1;
	uint32_t done = *ring.taken;
	if (done == __atomic_load_n(ring.completed, __ATOMIC_ACQUIRE))
		return -1;
	int result = ring.results[done & *ring.completion_mask].res;
	__atomic_store_n(ring.taken, done + 1, __ATOMIC_RELEASE);
	return result;
}

static void fill(char *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = i % PAGE < PAGE / 3 ? (seed += 0x9e3779b97f4a7c15u) * (i + 1) : i / PAGE;
		memcpy(at + i, &word, 8);
	}
}

static const char *compared(const char *a, const char *b)
{
	return memcmp(a, b, LENGTH) == 0 ? "same" : "WRONG";
}

/* What a transfer of the first `end` bytes of `data` made of a buffer: some file systems fill the rest. */
static void ended(const char *at, size_t end, const char *data)
{
	uint64_t rest = 0;
	for (size_t i = end; i < LENGTH; i++)
		rest = (rest ^ (unsigned char)at[i]) * 1099511628211u;
	printf(" %s %016llx\n", memcmp(at, data, end) == 0 ? "same" : "WRONG", (unsigned long long)rest);
}

static int in_memory(const char *page)
{
	uint64_t word = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	if (fd < 0 || pread(fd, &word, 8, (off_t)((uintptr_t)page / PAGE * 8)) != 8)
		word = 1ull << 63;
	close(fd);
	return (int)(word >> 63);
}

/* Two ends of a connection that takes much from its sender and little to its receiver. */
static void connection(int *to, int *from)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof at;
	int server = socket(AF_INET, SOCK_STREAM, 0), small = 16 * PAGE, large = 2 * LENGTH;
	setsockopt(server, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	if (bind(server, (void *)&at, length) || listen(server, 1) ||
	    getsockname(server, (void *)&at, &length))
		exit(1);
	*to = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(*to, SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
	if (connect(*to, (void *)&at, length))
		exit(1);
	*from = accept(server, NULL, NULL);
}

int main(int argc, char **argv)
{
	int unseen = argc > 2 && strcmp(argv[2], "unseen") == 0;
	size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 160) << 20;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int file = open("data", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
	if (memory == MAP_FAILED || file < 0)
		return 1;
	char *pinned = memory, *loose = memory + 2 * LENGTH, *sealed = memory + 4 * LENGTH;
	char *rest = memory + 8 * LENGTH;
	fill(pinned, LENGTH, 1);
	fill(loose, LENGTH, 2);
	fill(rest, size - 8 * LENGTH, 3);
	if (!start(unseen)) {
		printf("no io_uring\n");
		return 0;
	}
	struct iovec registered[2] = { { pinned, LENGTH }, { sealed, LENGTH } };
	if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, registered, 2) != 0) {
		printf("no registered buffers\n");
		return 0;
	}
	mprotect(sealed, LENGTH, PROT_READ);
	fprintf(stderr, "loose %s\n", in_memory(loose) ? "was in" : "was out");
	printf("write %d\n", transfer(IORING_OP_WRITE, file, 0, loose));
	fill(rest, size - 8 * LENGTH, 4);
	fprintf(stderr, "pinned %s\n", in_memory(pinned) ? "was in" : "was out");
	printf("fixed read %d", transfer(IORING_OP_READ_FIXED, file, 0, pinned));
	printf(" %s\n", compared(pinned, loose));
	fprintf(stderr, "sealed %s\n", in_memory(sealed) ? "was in" : "was out");
	printf("sealed read %d", transfer(IORING_OP_READ_FIXED, file, 1, sealed));
	printf(" %s\n", compared(sealed, loose));

	fill(pinned, LENGTH, 5);
	fill(rest, size - 8 * LENGTH, 6);
	printf("fixed write %d\n", transfer(IORING_OP_WRITE_FIXED, file, 0, pinned));
	fprintf(stderr, "loose %s\n", in_memory(loose) ? "was in" : "was out");
	printf("read %d", transfer(IORING_OP_READ, file, 0, loose));
	printf(" %s\n", compared(loose, pinned));

	size_t end = LENGTH / 2 + 1000;
	char *early = memory + 6 * LENGTH;
	fill(pinned, LENGTH, 9);
	fill(early, LENGTH, 9);
	if (ftruncate(file, (off_t)end) != 0)
		return 1;
	fill(rest, size - 8 * LENGTH, 10);
	printf("short fixed read %d", transfer(IORING_OP_READ_FIXED, file, 0, pinned));
	fill(rest, size - 8 * LENGTH, 11);
	ended(pinned, end, loose);
	fprintf(stderr, "early %s\n", in_memory(early) ? "was in" : "was out");
	printf("short read %d", transfer(IORING_OP_READ, file, 0, early));
	fill(rest, size - 8 * LENGTH, 12);
	ended(early, end, loose);

	int to, from;
	connection(&to, &from);
	printf("sent %d", transfer(IORING_OP_SEND_ZC, to, 0, loose));
	/* The kernel may hold the pages until it has copied them: what refused to leave is tried again now and then. */
	for (unsigned round = 0; round < 2 || (round < 20 && in_memory(loose)); round++)
		fill(rest, size - 8 * LENGTH, 7 + round);
	fprintf(stderr, "sent %s\n", in_memory(loose) ? "was in" : "was out");
	printf(" %d", (int)recv(from, pinned, LENGTH, MSG_WAITALL));
	printf(" %s\n", compared(loose, pinned));
	unlink("data");
	return 0;
}
