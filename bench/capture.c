/*
 * Costs of taking scattered pages from a program, for docs/decisions/0013-capturing-in-batches.md. It needs root, and
 * two processors to itself:
 *
 *   cc -O2 -o capture bench/capture.c -lpthread && chrt -f 1 ./capture
 *
 * A part of 64 MiB is there, page by page at random. All of it leaves, so many units of 16 pages at a time. With two
 * threads, the other one writes to memory of its own on another processor. Flushes are the TLB shootdowns of
 * /proc/interrupts, so the machine must be quiet.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES (16384UL)
#define UNIT 16
#define MOST 1024

struct move {
	uint64_t to, from, length, mode;
	int64_t moved;
};
#define MOVE _IOWR(0xAA, 5, struct move)

static int faults, self, pipes[2];
static char *memory, *frames, *passage, *spare, there[PAGES];
static char buffer[MOST * PAGE];
static volatile int over, runs;
static int asks_beside;

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void on_processor(int which)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(which, &set);
	must(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static long shootdowns(void)
{
	char line[4096], *at;
	long all = 0;
	FILE *file = fopen("/proc/interrupts", "r");
	while (fgets(line, sizeof line, file))
		if ((at = strstr(line, "TLB:")))
			for (at += 4; at && *at; ) {
				char *end;
				long n = strtol(at, &end, 10);
				if (end == at)
					break;
				all += n;
				at = end;
			}
	fclose(file);
	return all;
}

static void register_all(char *start)
{
	struct uffdio_register r = { { (uint64_t)start, PAGES * PAGE },
		UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP, 0 };
	must(ioctl(faults, UFFDIO_REGISTER, &r) == 0, "UFFDIO_REGISTER");
}

static void forget(char *start)
{
	struct uffdio_range r = { (uint64_t)start, PAGES * PAGE };
	must(ioctl(faults, UFFDIO_UNREGISTER, &r) == 0, "UFFDIO_UNREGISTER");
	must(madvise(start, PAGES * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
}

static void protect(char *start, size_t bytes, int on)
{
	struct uffdio_writeprotect w = { { (uint64_t)start, bytes }, on };
	must(ioctl(faults, UFFDIO_WRITEPROTECT, &w) == 0, "UFFDIO_WRITEPROTECT");
}

/* Whether memory is registered: by a protection that changes nothing, or by a call that is refused. */
static void ask(char *page, int by_refusal)
{
	struct uffdio_continue c = { { (uint64_t)page, PAGE }, UFFDIO_CONTINUE_MODE_DONTWAKE, 0 };
	if (!by_refusal)
		protect(page, PAGE, 0);
	else
		must(ioctl(faults, UFFDIO_CONTINUE, &c) && errno == EINVAL, "UFFDIO_CONTINUE");
}

static void move(char *to, char *from, size_t bytes)
{
	struct move m = { (uint64_t)to, (uint64_t)from, bytes, 1, 0 };
	must(ioctl(faults, MOVE, &m) == 0, "UFFDIO_MOVE");
}

static void advise(struct iovec *parts, int count, int advice)
{
	must(syscall(SYS_process_madvise, self, parts, (long)count, advice, 0) >= 0, "process_madvise");
}

/* Refers to pages by a pipe, and reads their content from there. */
static void refer(struct iovec *parts, int count, size_t bytes)
{
	for (size_t done = 0; done < bytes; ) {
		struct iovec rest[MOST];
		int n = 0;
		size_t skip = done;
		for (int i = 0; i < count; i++) {
			size_t len = parts[i].iov_len, cut = skip < len ? skip : len;
			skip -= cut;
			if (len > cut)
				rest[n++] = (struct iovec){ (char *)parts[i].iov_base + cut, len - cut };
		}
		ssize_t more = vmsplice(pipes[1], rest, n, 0);
		must(more > 0, "vmsplice");
		done += more;
	}
}

static void read_referred(size_t bytes)
{
	for (size_t done = 0; done < bytes; ) {
		ssize_t more = read(pipes[0], buffer + done, bytes - done);
		must(more > 0, "read");
		done += more;
	}
}

enum way { RUNS, PROTECT, REFER, FREE, REMAP, WAYS };
static const char *const names[WAYS] = {
	"UFFDIO_MOVE a run (the pager's)", "protect, copy, drop", "refer, drop, copy", "refer, free, copy, page out",
	"remap the block, fill its holes, move"
};

static void take(enum way way, size_t first, size_t pages)
{
	struct iovec parts[MOST], placed[MOST];
	int count = 0;
	size_t bytes = 0;
	for (size_t i = first, j; i < first + pages; i = j) {
		for (j = i + 1; j < first + pages && there[j] == there[i] && j % UNIT; j++)
			;
		if (!there[i])
			continue;
		parts[count] = (struct iovec){ memory + i * PAGE, (j - i) * PAGE };
		placed[count++] = (struct iovec){ frames + i * PAGE, (j - i) * PAGE };
		bytes += (j - i) * PAGE;
	}
	if (!count)
		return;
	char *start = memory + first * PAGE;
	switch (way) {
	case RUNS:
		for (int i = 0; i < count; i++) {
			ask(parts[i].iov_base, 1);
			move(placed[i].iov_base, parts[i].iov_base, parts[i].iov_len);
		}
		advise(placed, count, MADV_DONTNEED);
		break;
	case PROTECT:
		protect(start, pages * PAGE, 1);
		for (int i = 0; i < count; i++)
			memcpy(buffer, parts[i].iov_base, parts[i].iov_len);
		advise(parts, count, MADV_DONTNEED);
		protect(start, pages * PAGE, 0);
		break;
	case REFER:
		refer(parts, count, bytes);
		advise(parts, count, MADV_DONTNEED);
		read_referred(bytes);
		break;
	case FREE:
		refer(parts, count, bytes);
		advise(parts, count, MADV_FREE);
		read_referred(bytes);
		must(madvise(start, pages * PAGE, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
		break;
	case REMAP:
		must(mremap(start, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
			    passage) == passage, "mremap");
		for (size_t i = 0; i < pages; i++)
			if (!there[first + i])
				passage[i * PAGE] = 1;
		move(frames + first * PAGE, passage, pages * PAGE);
		must(madvise(frames + first * PAGE, pages * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
		break;
	default:
		break;
	}
}

static void *beside(void *unused)
{
	on_processor(1);
	for (size_t i = 0; !over; i = (i + 1) % 4096, runs = 1) {
		if (asks_beside)
			ask(memory + i * PAGE, asks_beside - 1);
		else
			spare[i * PAGE]++;
	}
	return unused;
}

static pthread_t begin_beside(void)
{
	pthread_t thread;
	over = runs = 0;
	must(pthread_create(&thread, NULL, beside, NULL) == 0, "pthread_create");
	while (!runs)
		usleep(500);
	return thread;
}

static void measure(enum way way, int threads, unsigned percent, unsigned batch)
{
	uint64_t x = 88172645463325252ull;
	long pages = 0, flushes;
	for (size_t i = 0; i < PAGES; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		there[i] = (x >> 20) % 100 < percent;
		pages += there[i];
		if (there[i])
			memset(memory + i * PAGE, (int)i, PAGE);
	}
	frames[0] = 1; /* A page table, and all that a first page takes. */
	register_all(memory);
	register_all(frames);
	must(madvise(frames, PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
	pthread_t thread;
	if (threads > 1)
		thread = begin_beside();
	flushes = shootdowns();
	double time = seconds();
	for (size_t first = 0; first < PAGES; first += batch * UNIT)
		take(way, first, batch * UNIT);
	time = seconds() - time;
	flushes = shootdowns() - flushes;
	over = 1;
	if (threads > 1)
		pthread_join(thread, NULL);
	forget(memory);
	forget(frames);
	printf("| %s | %u | %u%% | %d | %.2f | %.3f |\n", names[way], batch, percent, threads, time * 1e6 / pages,
	       (double)flushes / pages);
}

static void measure_asking(int by_refusal, int both)
{
	enum { TIMES = 200000 };
	memset(memory, 1, 8192 * PAGE);
	register_all(memory);
	asks_beside = 1 + by_refusal;
	pthread_t thread;
	if (both)
		thread = begin_beside();
	long flushes = shootdowns();
	double time = seconds();
	for (size_t i = 0; i < TIMES; i++)
		ask(memory + (4096 + i % 4096) * PAGE, by_refusal);
	time = seconds() - time;
	flushes = shootdowns() - flushes;
	over = 1;
	if (both)
		pthread_join(thread, NULL);
	asks_beside = 0;
	forget(memory);
	printf("| %s | %d | %.2f | %.3f |\n", by_refusal ? "UFFDIO_CONTINUE, refused" : "UFFDIO_WRITEPROTECT, as it is",
	       1 + both, time * 1e6 / TIMES, (double)flushes / TIMES);
}

static char *map(void)
{
	char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(at != MAP_FAILED, "mmap");
	madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE);
	return at;
}

int main(void)
{
	struct uffdio_api api = { UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0 };
	on_processor(0);
	faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	must(faults >= 0 && ioctl(faults, UFFDIO_API, &api) == 0, "userfaultfd");
	self = syscall(SYS_pidfd_open, getpid(), 0);
	must(self >= 0 && pipe2(pipes, O_NONBLOCK) == 0 && fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20) > 0, "pipe");
	memory = map(), frames = map(), passage = map(), spare = map();
	memset(spare, 1, 4096 * PAGE), memset(buffer, 1, sizeof buffer);
	puts("| question | threads | µs | flushes |\n|---|---|---|---|");
	for (int both = 0; both < 2; both++)
		for (int by_refusal = 0; by_refusal < 2; by_refusal++)
			measure_asking(by_refusal, both);
	static const unsigned batches[] = { 1, 4, 16 }, percents[] = { 15, 45, 80 };
	puts("\n| way | units | there | threads | µs a page | flushes a page |\n|---|---|---|---|---|---|");
	for (int threads = 1; threads <= 2; threads++)
		for (int p = 0; p < 3; p++)
			for (enum way way = 0; way < WAYS; way++)
				for (int b = 0; b < 3; b++)
					measure(way, threads, percents[p], batches[b]);
	return 0;
}
