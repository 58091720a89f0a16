/* Asks a handle of libc for its functions, as Python's ctypes does, and by version:
 *   handles MIB    fills MIB of memory that was mapped so, and looks at it
 * Prints what of it is right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void *(*lookup)(void *, const char *);
typedef void *(*versioned)(void *, const char *, const char *);

static void *libc;

static void *get(const char *name)
{
	void *at = dlsym(libc, name);
	if (!at)
		abort();
	return at;
}

/* Blocks that one malloc gives and another takes back. */
static void blocks(void)
{
	void (*release)(void *) = (void (*)(void *))get("free");
	void *(*resize)(void *, size_t) = (void *(*)(void *, size_t))get("realloc");
	versioned version = (versioned)get("dlvsym");
	for (size_t size = 1; size < 80 << 20; size = size * 3 + 1) {
		release(malloc(size));
		free(((void *(*)(size_t))get("malloc"))(size));
		free(resize(malloc(size), size + 1));
		((void (*)(void *))dlvsym(libc, "free", "GLIBC_2.2.5"))(malloc(size));
		((void (*)(void *))dlvsym(RTLD_DEFAULT, "free", "GLIBC_2.2.5"))(malloc(size));
		((void (*)(void *))version(libc, "free", "GLIBC_2.2.5"))(malloc(size));
		((void (*)(void *))dlsym(RTLD_NEXT, "free"))(malloc(size));
	}
	release(strdup("a block of libc's"));
	release(realpath("/", NULL));
	lookup again = (lookup)((lookup)get("dlsym"))(libc, "dlsym");
	((void (*)(void *))again(libc, "free"))(strdup("another"));
	puts("blocks");
}

/* Maps, and a map dropped and filled by the kernel: all of it is seen. */
static void memory(size_t bytes)
{
	uint64_t *map = ((void *(*)(void *, size_t, int, int, int, off_t))get("mmap"))(
		NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t words = bytes / 8, wrong = 0;
	uint64_t x = 88172645463325252u;
	for (size_t i = 0; i < words; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		map[i] = x;
	}
	x = 88172645463325252u;
	for (size_t i = 0; i < words; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		wrong += map[i] != x;
	}
	printf("filled, %zu wrong\n", wrong);
	/* Pages that are out must not come back. */
	((int (*)(void *, size_t, int))get("madvise"))(map, bytes / 2, MADV_DONTNEED);
	((long (*)(long, ...))get("syscall"))(SYS_madvise, map + words / 2, bytes / 4, MADV_DONTNEED);
	for (size_t i = wrong = 0; i < words / 4 * 3; i++)
		wrong += map[i] != 0;
	printf("dropped, %zu wrong\n", wrong);
	printf("unmapped: %d\n", ((int (*)(void *, size_t))get("munmap"))(map, bytes));
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = wrong = 0; i < words; i++)
		wrong += map[i] != 0;
	printf("mapped again, %zu wrong\n", wrong);
	munmap(map, bytes);
}

/* What libc has and nobody else, and what nobody has. */
static void others(void)
{
	size_t (*len)(const char *) = (size_t (*)(const char *))get("strlen");
	printf("%zu, %d\n", len("five!"), get("environ") == dlsym(RTLD_DEFAULT, "environ"));
	printf("%d", dlerror() == NULL);
	printf("%d", dlsym(libc, "no_such_function") == NULL);
	printf("%d", dlerror() != NULL);
	printf("%d", dlvsym(libc, "free", "NO_SUCH_1.0") == NULL);
	printf("%d", dlerror() != NULL);
	printf("%d", dlvsym(RTLD_DEFAULT, "free", "NO_SUCH_1.0") == NULL);
	printf("%d", dlerror() != NULL);
	/* The next after the program, and after itself, by who calls. */
	printf("%d", dlsym(RTLD_NEXT, "main") == NULL);
	printf("%d\n", dlerror() != NULL);
}

int main(int argc, char **argv)
{
	size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	libc = dlopen("libc.so.6", RTLD_LAZY);
	blocks();
	memory(bytes);
	others();
	return 0;
}
