/*
 * Memory calls on stacks as small as libc allows. Signal handlers have alternate stacks in the midst of a
 * malloc'ed block, threads the smallest stack there is.
 *
 *   stacks SIZE_MIB
 *
 * Each call is made by a process that has little yet, and again when SIZE_MIB are filled and partly out.
 * Memory around the stack must not change. On stderr, for each call, how many bytes of the stack were
 * used: "depth WHEN CALL BYTES".
 */
#define _GNU_SOURCE
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define AROUND (64 << 10)
#define LARGEST (64 << 10)
#define PATTERN 0xA5
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static volatile int failed;

static void must(int good, const char *what)
{
	if (!good) {
		failed = 1;
		write(2, what, strlen(what));
		write(2, " failed\n", 8);
	}
}

static char *mapping(size_t len)
{
	char *at = mmap(NULL, len, READ_WRITE, PRIVATE, -1, 0);
	must(at != MAP_FAILED, "mmap");
	for (size_t i = 0; i < len; i += PAGE)
		at[i] = 1;
	return at;
}

static void map_and_unmap(void)
{
	must(munmap(mapping(8 << 20), 8 << 20) == 0, "munmap");
}

static void map_over(void)
{
	char *at = mapping(64 << 10);
	must(mmap(at, 64 << 10, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0) == at, "fixed mmap");
	must(at[0] == 0, "zeros");
	munmap(at, 64 << 10);
}

/* A file of 2 MiB. */
static int file;

static void map_file(void)
{
	char *at = mmap(NULL, 2 << 20, READ_WRITE, MAP_PRIVATE, file, 0);
	must(at != MAP_FAILED, "mmap of a file");
	at[0] = 1;
	munmap(at, 2 << 20);
}

static void protect(void)
{
	char *at = mapping(256 << 10);
	must(mprotect(at, PAGE, PROT_READ) == 0, "mprotect");
	must(mprotect(at, PAGE, READ_WRITE) == 0, "mprotect");
	munmap(at, 256 << 10);
}

static void move(void)
{
	char *at = mapping(1 << 20);
	at[0] = 7;
	char *now = mremap(at, 1 << 20, 4 << 20, MREMAP_MAYMOVE);
	must(now != MAP_FAILED && now[0] == 7, "mremap");
	must(mremap(now, 4 << 20, 64 << 10, 0) == now, "mremap that shrinks");
	munmap(now, 64 << 10);
}

static void advise(void)
{
	char *at = mapping(256 << 10);
	must(madvise(at, 128 << 10, MADV_DONTNEED) == 0 && at[PAGE] == 0, "madvise");
	must(madvise(at, 128 << 10, MADV_FREE) == 0, "MADV_FREE");
	must(madvise(at, PAGE, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
	munmap(at, 256 << 10);
}

static void lock(void)
{
	char *at = mapping(16 << 10);
	must(mlock(at, 16 << 10) == 0 && munlock(at, 16 << 10) == 0, "mlock");
	munmap(at, 16 << 10);
}

static void heap_end(void)
{
	char *at = sbrk(64 << 10);
	must(at != (void *)-1, "sbrk");
	if (at != (void *)-1)
		at[0] = 1;
	must(sbrk(-(64 << 10)) != (void *)-1, "sbrk back");
}

static void allocate(size_t size)
{
	enum { MANY = 64 };
	static char *blocks[MANY];
	int many = size < (1 << 20) ? MANY : 4;
	for (int i = 0; i < many; i++) {
		blocks[i] = malloc(size);
		must(blocks[i] != NULL, "malloc");
		blocks[i][0] = blocks[i][size - 1] = 1;
	}
	for (int i = 0; i < many; i++)
		free(blocks[i]);
}

static void allocate_words(void) { allocate(24); }
static void allocate_pages(void) { allocate(9000); }
static void allocate_chunks(void) { allocate(200 << 10); }
static void allocate_large(void) { allocate(3 << 20); }
static void allocate_huge(void) { allocate(40 << 20); }

static void allocate_again(void)
{
	char *block = calloc(100, 10);
	must(block != NULL && block[999] == 0, "calloc");
	for (size_t size = 2000; size <= (8 << 20); size *= 3) {
		block = realloc(block, size);
		must(block != NULL, "realloc");
	}
	free(block);
	must(posix_memalign((void **)&block, 64 << 10, 100 << 10) == 0, "posix_memalign");
	free(block);
	block = aligned_alloc(PAGE, PAGE);
	must(block != NULL, "aligned_alloc");
	must(malloc_usable_size(block) >= PAGE, "malloc_usable_size");
	free(block);
}

extern char **environ;

static void must_succeed(pid_t child, const char *what)
{
	int status = -1;
	must(child > 0 && waitpid(child, &status, 0) == child && status == 0, what);
}

/* A child of vfork uses this very stack. */
static void execute(void)
{
	char *const arguments[] = { "stacks", "nothing", NULL };
	pid_t child = vfork();
	if (child == 0) {
		execve("/proc/self/exe", arguments, environ);
		_exit(127);
	}
	must_succeed(child, "vfork and execve");
}

static void spawn(void)
{
	char *const arguments[] = { "stacks", "nothing", NULL };
	pid_t child = -1;
	must(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0, "posix_spawn");
	must_succeed(child, "posix_spawn");
}

static const struct call {
	const char *name;
	void (*make)(void);
} calls[] = {
	{ "malloc-24", allocate_words },
	{ "malloc-9000", allocate_pages },
	{ "malloc-200K", allocate_chunks },
	{ "malloc-3M", allocate_large },
	{ "malloc-40M", allocate_huge },
	{ "realloc", allocate_again },
	{ "mmap", map_and_unmap },
	{ "mmap-fixed", map_over },
	{ "mmap-file", map_file },
	{ "mprotect", protect },
	{ "mremap", move },
	{ "madvise", advise },
	{ "mlock", lock },
	{ "sbrk", heap_end },
	{ "exec", execute },
	{ "spawn", spawn },
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static const struct call *volatile wanted;

static void handler(int signal)
{
	(void)signal;
	wanted->make();
}

/* Makes a call on an alternate stack of this size, and says how much of that it used. */
static size_t on_alternate_stack(unsigned char *block, size_t size, const struct call *call)
{
	memset(block, PATTERN, AROUND + LARGEST + AROUND);
	stack_t stack = { .ss_sp = block + AROUND, .ss_size = size };
	must(sigaltstack(&stack, NULL) == 0, "sigaltstack");
	wanted = call;
	raise(SIGUSR1);
	stack_t none = { .ss_flags = SS_DISABLE };
	must(sigaltstack(&none, NULL) == 0, "sigaltstack off");
	size_t below = 0, above = 0, untouched = 0;
	for (size_t i = 0; i < AROUND; i++)
		below += block[i] != PATTERN;
	for (size_t i = AROUND + size; i < AROUND + LARGEST + AROUND; i++)
		above += block[i] != PATTERN;
	while (untouched < size && block[AROUND + untouched] == PATTERN)
		untouched++;
	if (below || above) {
		failed = 1;
		fprintf(stderr, "%s on %zu bytes: %zu changed below, %zu above\n", call->name, size,
			below, above);
	}
	return size - untouched;
}

static void *thread(void *call)
{
	((const struct call *)call)->make();
	return NULL;
}

static void in_thread(const struct call *call)
{
	pthread_attr_t attributes;
	pthread_t made;
	pthread_attr_init(&attributes);
	must(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0, "stack size");
	must(pthread_create(&made, &attributes, thread, (void *)call) == 0, "pthread_create");
	pthread_join(made, NULL);
	pthread_attr_destroy(&attributes);
}

static void all(unsigned char *block, const char *when)
{
	for (int i = 0; i < CALLS; i++) {
		const struct call *call = &calls[i];
		size_t most = 0;
		for (size_t size = 8 << 10; size <= LARGEST; size += size / 2 & ~(size_t)(PAGE - 1)) {
			size_t used = on_alternate_stack(block, size, call);
			if (used > most)
				most = used;
		}
		fprintf(stderr, "depth %s %s %zu\n", when, call->name, most);
		in_thread(call);
		printf("%s %s\n", when, call->name);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "nothing") == 0)
		return 0;
	size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	/* Not from malloc, so that the first of it is on a small stack too. */
	unsigned char *block = mmap(NULL, AROUND + LARGEST + AROUND, READ_WRITE, PRIVATE, -1, 0);
	char name[] = "/var/tmp/stacks-XXXXXX";
	file = mkstemp(name);
	must(file >= 0 && unlink(name) == 0 && ftruncate(file, 2 << 20) == 0, "a file");
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	sigaction(SIGUSR1, &action, NULL);
	all(block, "small");
	uint64_t x = 88172645463325252u;
	uint64_t *memory = (uint64_t *)mmap(NULL, bytes, READ_WRITE, PRIVATE, -1, 0);
	for (size_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		memory[i] = x;
	}
	all(block, "paged");
	x = 88172645463325252u;
	size_t wrong = 0;
	for (size_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		wrong += memory[i] != x;
	}
	printf("%zu wrong words\n", wrong);
	return failed || wrong != 0;
}
