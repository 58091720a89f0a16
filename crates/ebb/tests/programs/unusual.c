/*
 * Memory that few programs have: unusual WHAT SIZE_MIB, with WHAT one of
 *
 *   faults   has a userfaultfd of its own over memory that is partly out, partly never touched.
 *   events   has one that tells of memory that moves or goes: the call waits for a thread that makes such calls, too.
 *   wide     ends the registration of more memory than it began, and has memory registered that may not be read.
 *   merged   advises the kernel to merge equal pages (KSM), in memory that is partly out.
 *   down     has a mapping that grows down, as stacks do.
 *
 * Prints the content of memory and the results of the calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

enum { PAGE = 4096, UNIT = 65536, MIB = 1 << 20 };
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

static void fill(char *at, size_t bytes, uint64_t x)
{
	for (size_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		((uint64_t *)at)[i] = x;
	}
}

static size_t wrong(const char *at, size_t bytes, uint64_t x)
{
	size_t count = 0;
	for (size_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		count += ((const uint64_t *)at)[i] != x;
	}
	return count;
}

static char *mapping(size_t bytes, int flags)
{
	char *at = mmap(NULL, bytes, READ_WRITE, PRIVATE | flags, -1, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return at;
}

static int open_userfaultfd(uint64_t features)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (fd < 0) {
		int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
		fd = device < 0 ? -1 : ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
	}
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) {
		puts("no userfaultfd");
		exit(0);
	}
	return fd;
}

static volatile int served;

static void *serve(void *argument)
{
	int fd = *(int *)argument;
	static char page[PAGE];
	memset(page, 'f', PAGE);
	for (;;) {
		struct uffd_msg message;
		if (read(fd, &message, sizeof message) != sizeof message)
			return NULL;
		struct uffdio_copy copy = { .dst = message.arg.pagefault.address & ~(PAGE - 1ull),
					    .src = (uintptr_t)page, .len = PAGE };
		served++;
		ioctl(fd, UFFDIO_COPY, &copy);
	}
}

static int faults(size_t bytes)
{
	/* In the midst of memory that is managed; the last MIB of it is never touched before. */
	char *memory = mapping(bytes, 0);
	char *part = memory + bytes / 2 / PAGE * PAGE;
	size_t touched = 3 * MIB, untouched = MIB;
	char *behind = part + touched + untouched;
	fill(memory, part - memory, 3);
	fill(part, touched, 5);
	fill(behind, memory + bytes - behind, 7);
	int fd = open_userfaultfd(0);
	struct uffdio_register range = { .range = { (uintptr_t)part, touched + untouched },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (ioctl(fd, UFFDIO_REGISTER, &range) != 0) {
		printf("not registered: %s\n", strerror(errno));
		return 1;
	}
	pthread_t thread;
	pthread_create(&thread, NULL, serve, &fd);
	size_t bad = 0;
	/* Again and again beside what comes and goes. */
	for (int look = 0; look < 3; look++) {
		bad += wrong(part, touched, 5) + wrong(memory, part - memory, 3);
		bad += wrong(behind, memory + bytes - behind, 7);
	}
	/* A first touch of a neighbour may have filled the first unit. */
	for (char *at = part + touched + UNIT; at < behind; at += PAGE)
		bad += *at != 'f';
	printf("%zu wrong, %d served by the program\n", bad, served);
	/* It goes as it came. */
	if (madvise(part, PAGE, MADV_DONTNEED) != 0 || *part != 'f')
		puts("WRONG: what was dropped is not the program's to serve");
	struct uffdio_range all = { (uintptr_t)part, touched + untouched };
	printf("unregister %d\n", ioctl(fd, UFFDIO_UNREGISTER, &all));
	if (madvise(part, PAGE, MADV_DONTNEED) != 0 || *part != 0)
		puts("WRONG: what was dropped is not zero");
	pid_t child = fork();
	if (child == 0)
		_exit(wrong(part + PAGE, PAGE, 0) == 0 || part[2 * PAGE] == 0);
	int status;
	waitpid(child, &status, 0);
	printf("in a child %d\n", status);
	return bad != 0;
}

static volatile int told;
static int events_told[16];

/* The kernel's call lasts until the event is read. Before that, this thread needs memory. */
static void *hear(void *argument)
{
	struct pollfd events = { .fd = *(int *)argument, .events = POLLIN };
	for (;;) {
		poll(&events, 1, -1);
		char *own = mapping(2 * MIB, 0);
		memset(own, 1, MIB);
		munmap(own, 2 * MIB);
		struct uffd_msg message;
		if (told == 16 || read(events.fd, &message, sizeof message) != sizeof message)
			return NULL;
		events_told[told] = message.event;
		told++;
	}
}

static void has(int fd, char *at, size_t bytes)
{
	struct uffdio_register range = { .range = { (uintptr_t)at, bytes },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	printf("register %d\n", ioctl(fd, UFFDIO_REGISTER, &range));
}

static int events(size_t bytes)
{
	char *memory = mapping(bytes, 0);
	fill(memory, bytes, 3);
	uint64_t all = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
	int fd = open_userfaultfd(all);
	pthread_t thread;
	pthread_create(&thread, NULL, hear, &fd);
	size_t size = 64 * PAGE, half = size / 2;
	char *part = mapping(size, 0), *mixed = mapping(size, 0), *hole = mapping(size, 0);
	fill(part, size, 5);
	fill(mixed, size, 7);
	has(fd, part, size);
	has(fd, mixed + half, half / 2);
	munmap(hole, size);
	char *moved = mremap(part, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, hole);
	printf("moved %d, %zu wrong\n", moved == hole, wrong(hole, size, 5));
	char *over = mmap(hole, half, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0);
	printf("mapped over %d, %zu wrong\n", over == hole, wrong(hole, half, 0));
	printf("dropped %d\n", madvise(hole + half, PAGE, MADV_DONTNEED));
	printf("unmapped %d\n", munmap(hole + half, half));
	printf("dropped among others %d\n", madvise(mixed, size, MADV_DONTNEED));
	printf("%zu wrong\n", wrong(mixed, half, 0) + wrong(mixed + 3 * half / 2, half / 2, 0));
	for (int i = 0; told < 6 && i < 2000; i++)
		usleep(1000);
	for (int i = 0; i < told; i++)
		printf("event %#x\n", events_told[i]);
	printf("%zu wrong\n", wrong(memory, bytes, 3));
	return 0;
}

static int wide(size_t bytes)
{
	char *memory = mapping(bytes, 0), *part = memory + bytes / 2 / PAGE * PAGE;
	size_t hidden = 4 * MIB;
	fill(memory, part - memory, 3);
	fill(part, memory + bytes - part, 5);
	char *last = memory + bytes - hidden;
	/* The last ones were filled last: others come in between. */
	size_t bad = wrong(memory, part - memory, 3);
	mprotect(last, hidden, PROT_NONE);
	int fd = open_userfaultfd(0);
	/* It fails where pages of it are elsewhere: nothing may be lost by that. */
	struct uffdio_register range = { .range = { (uintptr_t)last, hidden },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	ioctl(fd, UFFDIO_REGISTER, &range);
	mprotect(last, hidden, READ_WRITE);
	range.range.start = (uintptr_t)part;
	printf("register %d\n", ioctl(fd, UFFDIO_REGISTER, &range));
	struct uffdio_range all = { (uintptr_t)memory, bytes };
	printf("unregister %d\n", ioctl(fd, UFFDIO_UNREGISTER, &all));
	bad += wrong(memory, part - memory, 3) + wrong(part, memory + bytes - part, 5);
	printf("%zu wrong\n", bad);
	return bad != 0;
}

static int merged(size_t bytes)
{
	char *memory = mapping(bytes, 0);
	fill(memory, bytes, 3);
	size_t bad = 0;
	printf("merge all %d\n", prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0));
	for (int look = 0; look < 2; look++) {
		int advised = madvise(memory + bytes / 4, bytes / 2, MADV_MERGEABLE);
		printf("merge %d", advised);
		bad += wrong(memory, bytes, 3);
		advised = madvise(memory + bytes / 4, bytes / 4, MADV_UNMERGEABLE);
		printf(", do not %d, %zu wrong\n", advised, bad);
	}
	return bad != 0;
}

static int down(size_t bytes)
{
	char *memory = mapping(bytes, 0);
	fill(memory, bytes, 3);
	/* Room for it to grow into, and a gap as the kernel wants it below. */
	size_t room = 8 * MIB, begins = 64 << 10;
	char *low = mapping(room, MAP_NORESERVE);
	munmap(low, room);
	char *top = low + room;
	char *stack = mmap(top - begins, begins, READ_WRITE, PRIVATE | MAP_FIXED | MAP_GROWSDOWN, -1, 0);
	if (stack != top - begins)
		return 2;
	size_t grown = 2 * MIB, bad = 0;
	for (char *at = top - PAGE; at >= top - grown; at -= PAGE)
		*(uint64_t *)at = (uintptr_t)at;
	bad += wrong(memory, bytes, 3);
	for (char *at = top - PAGE; at >= top - grown; at -= PAGE)
		bad += *(uint64_t *)at != (uintptr_t)at;
	int protected = mprotect(top - PAGE, PAGE, PROT_READ | PROT_GROWSDOWN);
	int unmapped = munmap(top - grown, grown);
	printf("grown, %zu wrong; protect %d; unmap %d\n", bad, protected, unmapped);
	return bad != 0;
}

int main(int argc, char **argv)
{
	size_t bytes = (argc > 2 ? strtoul(argv[2], NULL, 0) : 96) << 20;
	switch (argv[1][0]) {
	case 'f':
		return faults(bytes);
	case 'e':
		return events(bytes);
	case 'w':
		return wide(bytes);
	case 'm':
		return merged(bytes);
	default:
		return down(bytes);
	}
}
