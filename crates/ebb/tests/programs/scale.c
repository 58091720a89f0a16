/*
 * The same pages, laid out in another way each: scale KIND PAGES fills them, and looks twice whether they hold what was
 * written.
 *
 * dense     one mapping
 * sparse    runs of 16 pages all over 64 GiB
 * reserved  runs of 160 pages all over 20 TiB that are reserved and may not be touched elsewhere
 * mappings  each page a mapping of its own: every second one may only be read
 * threads   1,000 threads, which share them out
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, THREADS = 1000 };
#define GIB (1ul << 30)

static size_t pages;
/* Pages of a run, and bytes from one to the next. */
static size_t run, stride;
static unsigned char *start;
static pthread_barrier_t barrier;

static unsigned char *page_at(size_t n)
{
	return start + n / run * stride + n % run * PAGE;
}

static uint64_t word(size_t page, int n)
{
	return (page << 8 | n) * 0x9e3779b97f4a7c15u;
}

static void fill(size_t from, size_t to)
{
	for (size_t n = from; n < to; n++)
		for (int i = 0; i < 64; i++)
			((uint64_t *)page_at(n))[i] = word(n, i);
}

static void look(size_t from, size_t to)
{
	for (size_t n = from; n < to; n++)
		for (int i = 0; i < 64; i++)
			if (((uint64_t *)page_at(n))[i] != word(n, i)) {
				printf("page %zu is wrong\n", n);
				exit(1);
			}
}

static void *thread(void *number)
{
	size_t each = pages / THREADS, from = (size_t)number * each;
	fill(from, from + each);
	pthread_barrier_wait(&barrier);
	for (int round = 0; round < 2; round++)
		look(from, from + each);
	return NULL;
}

static void in_threads(void)
{
	static pthread_t threads[THREADS];
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (size_t n = 0; n < THREADS; n++)
		if (pthread_create(&threads[n], &small, thread, (void *)n) != 0)
			abort();
	for (size_t n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
}

int main(int count, char **arguments)
{
	const char *kind = arguments[1];
	int reserved = strcmp(kind, "reserved") == 0;
	if (count != 3)
		return 2;
	pages = strtoul(arguments[2], NULL, 10);
	size_t bytes = pages * PAGE;
	run = pages;
	if (reserved || strcmp(kind, "sparse") == 0) {
		run = reserved ? 160 : 16;
		bytes = reserved ? 20 * 1024 * GIB : 64 * GIB;
		stride = bytes / (pages / run + 1) / PAGE * PAGE;
	}
	int prot = reserved ? PROT_NONE : PROT_READ | PROT_WRITE;
	start = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		abort();
	for (size_t n = 0; reserved && n < pages; n += run)
		if (mprotect(page_at(n), run * PAGE, PROT_READ | PROT_WRITE) != 0)
			abort();
	if (strcmp(kind, "threads") == 0) {
		in_threads();
	} else {
		fill(0, pages);
		for (size_t n = 0; strcmp(kind, "mappings") == 0 && n < pages; n += 2)
			if (mprotect(page_at(n), PAGE, PROT_READ) != 0)
				abort();
		for (int round = 0; round < 2; round++)
			look(0, pages);
	}
	printf("right\n");
	return 0;
}
