/*
 * Four threads map and unmap memory all the time. The first one reads at random what it wrote.
 * Arguments: MiB, seconds, and "hidden" if nobody may look into the process from then on.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

enum { THREADS = 4, PAGE = 4096, SIZE = 1 << 16 };

static volatile int over;

static void *churn(void *none)
{
	while (!over) {
		void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at == MAP_FAILED || munmap(at, SIZE) != 0)
			abort();
	}
	return none;
}

static unsigned char content(size_t page)
{
	return page % 251;
}

int main(int count, char **words)
{
	size_t pages = (size_t)atoi(words[1]) << 8;
	time_t end;
	volatile unsigned char *data = malloc(pages * PAGE);
	unsigned draw = 1;
	pthread_t threads[THREADS];
	for (size_t page = 0; page < pages; page++)
		data[page * PAGE] = content(page);
	if (count > 3 && strcmp(words[3], "hidden") == 0 && prctl(PR_SET_DUMPABLE, 0) != 0)
		return 1;
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, churn, NULL);
	for (end = time(NULL) + atoi(words[2]); time(NULL) < end;) {
		draw = draw * 1664525u + 1013904223u;
		size_t page = (draw >> 8) % pages;
		if (data[page * PAGE] != content(page)) {
			puts("wrong");
			return 1;
		}
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	puts("good");
	return 0;
}
