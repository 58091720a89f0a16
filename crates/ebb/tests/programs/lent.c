/*
 * Memory that is lent to the kernel and pushed out before it is read there: lent SIZE_MIB. A pipe
 * (vmsplice) and a socket (MSG_ZEROCOPY) go on referring to pages after the call, and must give out
 * what was in them, wherever the pages are by then. Prints what calls return, right and wrong ones.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
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

static ssize_t by_number(int fd, const struct iovec *parts, size_t count, unsigned flags)
{
	return syscall(SYS_vmsplice, fd, parts, count, flags);
}

/* A full pipe is waited for, also where its descriptor never waits: until somebody has read it. */
static void wait_for_room(int how)
{
	struct iovec all = { memory, LENGTH };
	int end[2];
	if (pipe(end) != 0 || fcntl(end[1], F_SETFL, how) != 0 || vmsplice(end[1], &all, 1, 0) != PIPE)
		exit(1);
	pid_t child = fork();
	if (child == 0) {
		static char got[PIPE];
		usleep(100000);
		_exit(read(end[0], got, PIPE) != PIPE);
	}
	result("waited for", vmsplice(end[1], &all, 1, 0));
	int status;
	printf("child %d\n", waitpid(child, &status, 0) == child && status == 0);
	close(end[0]);
	close(end[1]);
}

static void pipes(ssize_t (*lend)(int, const struct iovec *, size_t, unsigned), const char *how)
{
	printf("%s\n", how);
	int end[2];
	if (pipe(end) != 0)
		exit(1);
	fill(memory, LENGTH, 1);
	struct iovec all = { memory, LENGTH };
	/* As much as fits, without waiting for the rest. */
	result("lent", lend(end[1], &all, 1, 0));
	result("full", lend(end[1], &all, 1, SPLICE_F_NONBLOCK));
	push_out(how, memory);
	receive("pipe", end[0], memory, PIPE);

	struct iovec parts[3] = { { memory, PAGE }, { memory, 0 }, { memory + PAGE, 2 * PAGE } };
	result("parts", lend(end[1], parts, 3, SPLICE_F_GIFT));
	receive("parts", end[0], memory, 3 * PAGE);
	result("back", write(end[1], memory, PAGE));
	struct iovec into = { memory + LENGTH, PAGE };
	result("into memory", lend(end[0], &into, 1, 0));
	printf("%s\n", memcmp(memory + LENGTH, memory, PAGE) == 0 ? "same" : "WRONG");

	struct iovec none = { (void *)PAGE, PAGE }, half[2] = { { memory, PAGE }, none };
	result("nothing", lend(end[1], &all, 0, 0));
	result("no memory", lend(end[1], &none, 1, 0));
	result("some memory", lend(end[1], half, 2, 0));
	receive("some memory", end[0], memory, PAGE);
	result("no such flag", lend(end[1], &all, 1, 64));
	result("no pipe", lend(open("file", O_RDWR | O_CREAT, 0600), &all, 1, 0));
	result("no descriptor", lend(-1, &all, 1, 0));
	unlink("fifo");
	int named = mkfifo("fifo", 0600) == 0 ? open("fifo", O_RDWR) : -1;
	result("named pipe", lend(named, &all, 1, 0));
	result("full", lend(named, &all, 1, SPLICE_F_NONBLOCK));
	receive("named pipe", named, memory, PIPE);
	close(named);
	close(end[0]);
	result("no reader", lend(end[1], &all, 1, 0));
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

static void sockets(int by_number)
{
	int to, from, one = 1;
	connection(&to, &from);
	/* A program does without where this is refused, as an older kernel does. */
	if (by_number)
		syscall(SYS_setsockopt, to, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);
	else
		setsockopt(to, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);
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
	signal(SIGPIPE, SIG_IGN);
	fill(rest, rest_size, 0);
	pipes(vmsplice, "vmsplice");
	pipes(by_number, "vmsplice by number");
	sockets(0);
	sockets(1);
	wait_for_room(0);
	wait_for_room(O_NONBLOCK);
	return 0;
}
