/*
 * Memory calls that fail, or are of no use: they leave memory as it was.
 *
 *   refused_calls SIZE_MIB
 *
 * On stderr, what of resident memory counts as touched lately: "touched WHEN KIB".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
#define RANDOM_WORD(x) (x ^= x << 13, x ^= x >> 7, x ^= x << 17)
#define PIDFD_SELF (-10000)

static char *mapping(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return at;
}

static void fill(char *at, size_t bytes)
{
	uint64_t x = 88172645463325252u;
	for (size_t i = 0; i < bytes; i += 8)
		*(uint64_t *)(at + i) = RANDOM_WORD(x);
}

static size_t wrong(const char *at, size_t bytes)
{
	uint64_t x = 88172645463325252u;
	size_t wrong = 0;
	for (size_t i = 0; i < bytes; i += 8)
		wrong += *(const uint64_t *)(at + i) != RANDOM_WORD(x);
	return wrong;
}

/* No such key was allocated. Memory that could not leave afterwards would be more than there is room for. */
static void keys(size_t bytes)
{
	char *at = mapping(bytes), *other = mapping(bytes);
	fill(at, bytes);
	int refused = pkey_mprotect(at, bytes, PROT_READ | PROT_WRITE, 15);
	printf("a key: %d, %s\n", refused, strerror(errno));
	fill(other, bytes);
	printf("%zu and %zu wrong\n", wrong(at, bytes), wrong(other, bytes));
	munmap(other, bytes);
	munmap(at, bytes);
}

static void bad_pointers(void)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
	struct uffdio_api api = { .api = UFFD_API };
	ioctl(fd, UFFDIO_API, &api);
	void *const bad[] = { NULL, (void *)8, (void *)-8, mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };
	const unsigned long requests[] = { UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_COPY };
	for (int i = 0; i < 4; i++)
		for (int n = 0; n < 3; n++) {
			int first = ioctl(fd, requests[n], bad[i]) == 0 ? 0 : errno;
			int second = syscall(SYS_ioctl, fd, requests[n], bad[i]) == 0 ? 0 : errno;
			printf("ioctl %d %d: %d %d\n", i, n, first, second);
		}
	munmap(bad[3], PAGE);
	if (fd >= 0)
		close(fd);
}

static long touched(const void *at, const char *when)
{
	char line[256];
	long kib = -1;
	int is_it = 0;
	FILE *file = fopen("/proc/self/smaps", "r");
	while (fgets(line, sizeof line, file)) {
		uintptr_t start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			is_it = start <= (uintptr_t)at && (uintptr_t)at < end;
		else if (is_it)
			sscanf(line, "Referenced: %ld kB", &kib);
	}
	fclose(file);
	fprintf(stderr, "touched %s %ld\n", when, kib);
	return kib;
}

static void cold(size_t bytes)
{
	char *at = mapping(bytes);
	fill(at, bytes);
	touched(at, "before");
	printf("cold: %d\n", madvise(at, bytes, MADV_COLD));
	touched(at, "by-madvise");
	struct iovec area = { at, bytes };
	printf("cold: %d\n", (long)syscall(SYS_process_madvise, PIDFD_SELF, &area, 1, MADV_COLD, 0) == (long)bytes);
	touched(at, "by-syscall");
	printf("cold: %d\n", (long)process_madvise(PIDFD_SELF, &area, 1, MADV_COLD, 0) == (long)bytes);
	touched(at, "by-process_madvise");
	printf("%zu wrong\n", wrong(at, bytes));
	munmap(at, bytes);
}

int main(int argc, char **argv)
{
	size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 48) << 20;
	keys(bytes);
	bad_pointers();
	cold(8 << 20);
	return 0;
}
