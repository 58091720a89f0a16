/*
 * Forks while sealed memory is read at random by a thread: sealed_forks SIZE_MIB FORKS. Captured
 * pages of such memory can only be copied back. Each child reads some of it. Prints whether all is as it was.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static volatile uint64_t *memory;
static size_t pages;
static volatile int over, wrong;

static int good(uint64_t page)
{
	return memory[page * PAGE / 8 + page % 512] == (page + 1) * 0x9e3779b97f4a7c15u;
}

static void *reads(void *unused)
{
	uint64_t state = 1;
	(void)unused;
	while (!over) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		wrong |= !good((state >> 33) % pages);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int forks = argc > 2 ? atoi(argv[2]) : 20;
	pages = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 8;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	for (uint64_t page = 0; page < pages; page++)
		memory[page * PAGE / 8 + page % 512] = (page + 1) * 0x9e3779b97f4a7c15u;
	pthread_t reader;
	if (mprotect((void *)memory, pages * PAGE, PROT_READ) || pthread_create(&reader, NULL, reads, NULL))
		return 1;
	for (int n = 0; n < forks; n++) {
		int status = 0;
		usleep(20000);
		pid_t child = fork();
		if (child == 0)
			_exit(n % 4 == 0 && !good((uint64_t)n * 97 % pages));
		if (child < 0 || waitpid(child, &status, 0) != child)
			return 1;
		wrong |= status;
	}
	over = 1;
	pthread_join(reader, NULL);
	puts(wrong ? "WRONG" : "as it was");
	return 0;
}
