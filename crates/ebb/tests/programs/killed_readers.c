/*
 * Threads that read at random in memory most of which is swapped out, until the program is killed:
 * killed_readers MIB THREADS MS. A child kills it so many milliseconds after the memory was filled.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t *memory, pages;

static void *read_at_random(void *seed)
{
	uint64_t state = (uintptr_t)seed;
	for (;;) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		uint64_t page = (state >> 33) % pages;
		if (memory[page * WORDS + page % WORDS] != page * 2654435761u)
			abort();
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	pages = strtoull(argv[1], 0, 10) << 8;
	memory = malloc(pages * WORDS * 8);
	if (!memory)
		return 1;
	for (uint64_t page = 0; page < pages; page++)
		for (uint64_t w = 0; w < WORDS; w++)
			memory[page * WORDS + w] = w == page % WORDS ? page * 2654435761u : (page * WORDS + w) * 0x9e3779b97f4a7c15u;
	for (uintptr_t n = 1; n <= strtoull(argv[2], 0, 10); n++) {
		pthread_t thread;
		if (pthread_create(&thread, 0, read_at_random, (void *)n) != 0)
			return 1;
	}
	pid_t self = getpid();
	if (fork() == 0) {
		usleep(atoi(argv[3]) * 1000);
		kill(self, SIGKILL);
		_exit(0);
	}
	pause();
	return 0;
}
