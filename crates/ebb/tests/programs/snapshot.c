/*
 * A snapshot by fork, as redis saves one. The child digests the memory as it was at the fork
 * while the parent overwrites it. Then the parent digests its own pages. In three rounds
 * parent and child both come to hold swapped pages of the other's making.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 30000, WORDS = 512 };

static uint64_t *memory;

static void write_all(uint64_t round)
{
	for (uint64_t p = 0; p < PAGES; p++)
		for (int w = 0; w < WORDS; w++)
			memory[p * WORDS + w] = w < 100 ? (p * 2654435761u + w) * (round + 1) : p + round;
}

static uint64_t digest(void)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < (uint64_t)PAGES * WORDS; i += 7)
		sum = sum * 31 + memory[i];
	return sum;
}

int main(void)
{
	memory = malloc((size_t)PAGES * WORDS * 8);
	if (!memory)
		return 1;
	write_all(0);
	for (uint64_t round = 1; round <= 3; round++) {
		int pipes[2];
		if (pipe(pipes) != 0)
			return 1;
		pid_t child = fork();
		if (child == 0) {
			uint64_t sum = digest();
			if (write(pipes[1], &sum, sizeof sum) != sizeof sum)
				_exit(1);
			_exit(0);
		}
		write_all(round);
		uint64_t sum = 0;
		int status = 0;
		close(pipes[1]);
		if (read(pipes[0], &sum, sizeof sum) != sizeof sum)
			sum = 0;
		close(pipes[0]);
		waitpid(child, &status, 0);
		printf("round %d child %016llx status %d parent %016llx\n", (int)round,
		       (unsigned long long)sum, status, (unsigned long long)digest());
	}
	return 0;
}
