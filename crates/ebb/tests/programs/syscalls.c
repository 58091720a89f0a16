/*
 * Calls the kernel with buffers that were written first and then pushed out by everything that
 * was written after them: syscalls SIZE_MIB. Says on stderr of each buffer whether it was out;
 * prints the results.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Pages that are planted as memory is filled, beyond those that calls are made with. */
enum { PAGE = 4096, PATH = 1500, WORD = 1700, PLANTED = 2000 };

static char *memory;
static size_t size, next_page;

/* Whether the page is in memory, without touching it. */
static int present(const void *page)
{
	uint64_t word = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	if (fd < 0 || pread(fd, &word, 8, (off_t)((uintptr_t)page / PAGE * 8)) != 8)
		word = 1ull << 63;
	close(fd);
	return (int)(word >> 63);
}

static char *say(const char *what, size_t page)
{
	char *at = memory + page * PAGE;
	fprintf(stderr, "%s %s\n", what, present(at) ? "was in" : "was out");
	return at;
}

/* The next pages of the early part of memory, which by now are out. */
static char *cold(const char *what, size_t pages)
{
	size_t page = next_page;
	next_page += pages + 40; /* beyond the reach of any readahead */
	return say(what, page);
}

static uint64_t digest(const char *data, size_t length)
{
	uint64_t sum = 1469598103934665603u;
	for (size_t i = 0; i < length; i++)
		sum = (sum ^ (unsigned char)data[i]) * 1099511628211u;
	return sum;
}

static void result(const char *what, long value, const char *data, size_t length)
{
	printf("%s %ld %016llx\n", what, value, (unsigned long long)digest(data, length));
}

static void *wake_later(void *word)
{
	struct timespec pause = { 0, 100000000 };
	nanosleep(&pause, NULL);
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	return NULL;
}

int main(int argc, char **argv)
{
	size = (size_t)(argc > 1 ? atoi(argv[1]) : 160) << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	uint64_t random = 88172645463325252u;
	for (size_t i = 0; i < size; i += 8) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		/* A third of each page is random: it compresses, but not to nothing. */
		uint64_t word = i % PAGE < PAGE / 3 ? random : i / PAGE;
		memcpy(memory + i, &word, 8);
		if (i == (size_t)PLANTED * PAGE) {
			strcpy(memory + PATH * PAGE, "data");
			*(uint32_t *)(memory + WORD * PAGE) = 77;
		}
	}

	int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
	char *buffer = cold("write", 8);
	long n = write(fd, buffer, 8 * PAGE);
	result("write", n, buffer, 8 * PAGE);

	buffer = cold("read", 8);
	n = pread(fd, buffer, 8 * PAGE, 0);
	result("read", n, buffer, 8 * PAGE);

	struct iovec parts[4];
	for (int i = 0; i < 4; i++)
		parts[i] = (struct iovec){ cold("readv", 2) + 100, 6000 };
	lseek(fd, 0, SEEK_SET);
	n = readv(fd, parts, 4);
	result("readv", n, parts[3].iov_base, 6000);

	int pair[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
		return 1;
	buffer = cold("send", 4);
	n = send(pair[0], buffer, 4 * PAGE, 0);
	char *received = cold("recv", 4);
	long m = recv(pair[1], received, 4 * PAGE, MSG_WAITALL);
	result("send and recv", n + m, received, 4 * PAGE);

	struct stat status;
	n = stat(say("path", PATH), &status);
	printf("stat of the path: %ld, %ld bytes\n", n, (long)status.st_size);

	struct stat *cold_status = (struct stat *)cold("stat buffer", 1);
	n = fstat(fd, cold_status);
	printf("fstat %ld, %ld bytes\n", n, (long)cold_status->st_size);

	/* Its value is compared by the kernel. */
	uint32_t *word = (uint32_t *)say("futex", WORD);
	pthread_t waker;
	pthread_create(&waker, NULL, wake_later, word);
	n = syscall(SYS_futex, word, FUTEX_WAIT, 77, NULL, NULL, 0);
	printf("futex %ld of %u\n", n, *word);
	pthread_join(waker, NULL);

	int direct = open("data", O_RDWR | O_DIRECT);
	if (direct >= 0) {
		buffer = cold("direct write", 16);
		n = pwrite(direct, buffer, 16 * PAGE, 0);
		result("direct write", n, buffer, 16 * PAGE);
		uint64_t expected = digest(buffer, 16 * PAGE);
		buffer = cold("direct read", 16);
		n = pread(direct, buffer, 16 * PAGE, 0);
		printf("direct read %ld %s\n", n, digest(buffer, 16 * PAGE) == expected ? "same" : "WRONG");
		/* One that ends early; some file systems fill the rest. */
		if (ftruncate(direct, 9 * PAGE + 1000) != 0)
			return 1;
		buffer = cold("short direct read", 16);
		n = pread(direct, buffer, 16 * PAGE, 0);
		result("short direct read", n, buffer, 16 * PAGE);
		close(direct);
	}

	/* A bad address must still be a bad address. */
	char *volatile bad = (char *)16;
	n = read(fd, bad, 10);
	printf("bad address %ld %s\n", n, errno == EFAULT ? "EFAULT" : strerror(errno));
	unlink("data");
	printf("all %016llx\n", (unsigned long long)digest(memory + size / 2, size / 2));
	return 0;
}
