/*
 * A process that uses a few pages all the time, beside many that it has not used for long. Another process
 * works at random in more than there is room for.
 *
 *     hot COLD_MIB HOT_MIB OTHER_MIB SECONDS
 *
 * Says how many of the pages that it used in the second half of twice that time were out.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t word(uint64_t page)
{
	return (page + 1) * 0x9e3779b97f4a7c15u;
}

/* A quarter of a page is noise, so that it compresses to about as much. */
static char *filled(size_t mib)
{
	size_t pages = mib << 8;
	char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(1);
	for (size_t p = 0; p < pages; p++) {
		uint64_t *at = (uint64_t *)(memory + p * PAGE), x = word(p);
		for (int w = 0; w < 128; w++, x = x * 6364136223846793005u + 1)
			at[w] = w ? x : word(p);
	}
	return memory;
}

static void check(const char *memory, size_t page)
{
	if (*(const uint64_t *)(memory + page * PAGE) != word(page)) {
		printf("page %zu is wrong\n", page);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	size_t cold = atoi(argv[1]), hot = atoi(argv[2]), other = atoi(argv[3]);
	double seconds = atof(argv[4]);
	pid_t child = other ? fork() : -1;
	if (child == 0) {
		char *memory = filled(other);
		uint64_t x = 1, rounds = 0;
		for (double end = now() + 60; now() < end; rounds++)
			for (int i = 0; i < 1000; i++) {
				x = x * 6364136223846793005u + 1442695040888963407u;
				check(memory, (x >> 33) % (other << 8));
			}
		_exit(0);
	}
	size_t pages = hot << 8;
	char *used = filled(hot), *unused = filled(cold);
	unsigned char there[pages];
	uint64_t out = 0, uses = 0;
	double begin = now(), last;
	while ((last = now()) < begin + 2 * seconds) {
		if (mincore(used, pages * PAGE, there))
			return 1;
		for (size_t p = 0; p < pages; p++) {
			check(used, p);
			if (last > begin + seconds) {
				uses++;
				out += !(there[p] & 1);
			}
		}
		usleep(10000);
	}
	if (child > 0) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	for (size_t p = 0; p < cold << 8; p += 7)
		check(unused, p);
	printf("uses %llu out %llu\n", (unsigned long long)uses, (unsigned long long)out);
	return 0;
}
