/*
 * Memory that is lent to the kernel and pushed out before it is read there: lent SIZE_MIB. A pipe
 * (vmsplice) and a socket (MSG_ZEROCOPY) go on referring to pages after the call. They must give out the
 * former content, wherever the pages are by then. Prints results of calls, right and wrong ones.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PIPE = 16 * PAGE, LENGTH = 64 * PAGE };

static char *memory, *rest;
static size_t rest_size;

static void fill(char *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = i % PAGE < PAGE / 3 ? (seed += 0x9e3779b97f4a7c15u) * (i + 1) : i / PAGE;
		memcpy(at + i, &word, 8);
	}
}

/* Everything else is written, twice: what was there before is out, and its frames are others'. */
static void push_out(const char *what, const char *at)
{
	static uint64_t seed = 100;
	fill(rest, rest_size, ++seed);
	fill(rest, rest_size, ++seed);
	uint64_t word = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	if (fd < 0 || pread(fd, &word, 8, (off_t)((uintptr_t)at / PAGE * 8)) != 8)
		word = 1ull << 63;
	close(fd);
	fprintf(stderr, "%s was %s\n", what, word >> 63 ? "in" : "out");
}

/* Reads what was lent and compares it with what is there. */
static void receive(const char *what, int from, const char *lent, size_t length)
{
	char *got = malloc(length);
	size_t count = 0;
	while (count < length) {
		ssize_t n = read(from, got + count, length - count);
		if (n <= 0)
			break;
		count += (size_t)n;
	}
	printf("%s: %zu bytes, %s\n", what, count, memcmp(got, lent, count) == 0 ? "same" : "WRONG");
	free(got);
}

static void result(const char *what, ssize_t result)
{
	printf("%s: %zd %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void pipes(void)
{
	int end[2];
	if (pipe(end) != 0)
		exit(1);
	fill(memory, LENGTH, 1);
	struct iovec all = { memory, LENGTH };
	/* As much as fits, without waiting for the rest. */
	result("lent", vmsplice(end[1], &all, 1, 0));
	push_out("pipe", memory);
	receive("pipe", end[0], memory, PIPE);
	close(end[0]);
	close(end[1]);
}

/* Two ends of a connection that takes much from its sender and little to its receiver. */
static void connection(int *to, int *from)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof at;
	int server = socket(AF_INET, SOCK_STREAM, 0), small = 16 * PAGE, large = 2 * LENGTH;
	setsockopt(server, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	if (bind(server, (void *)&at, size) || listen(server, 1) || getsockname(server, (void *)&at, &size))
		exit(1);
	*to = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(*to, SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
	if (connect(*to, (void *)&at, size))
		exit(1);
	*from = accept(server, NULL, NULL);
}

static void sockets(void)
{
	int to, from, one = 1;
	connection(&to, &from);
	result("without copies", setsockopt(to, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
	fill(memory, LENGTH, 2);
	result("sent", send(to, memory, LENGTH, MSG_ZEROCOPY));
	push_out("socket", memory);
	receive("socket", from, memory, LENGTH);
	close(to);
	close(from);
}

int main(int argc, char **argv)
{
	size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 128) << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	rest = memory + 2 * LENGTH;
	rest_size = size - 2 * LENGTH;
	fill(rest, rest_size, 0);
	pipes();
	sockets();
	return 0;
}
