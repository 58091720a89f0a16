/*
 * Signals at every moment of calls that change the user or the groups: signalled_users SIZE_MIB CALLS
 *
 * The handler reads a page of memory that is mostly out, and calls setgid itself now and then, as it may.
 * Prints how many pages it found wrong. On stderr it says how often the handler ran.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t *memory, random_state = 88172645463325252u;
static size_t pages;
static volatile sig_atomic_t ran, wrong;

static uint64_t word_of(size_t page, int i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * i * 0x2545f4914f6cdd1du;
}

static void handler(int number)
{
	(void)number;
	uint64_t x = random_state;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	random_state = x;
	const size_t page = x % pages;
	const int i = x >> 32 & (WORDS - 1);
	wrong += memory[page * WORDS + i] != word_of(page, i);
	if (++ran % 16 == 0 && setgid(getgid()) != 0)
		wrong++;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	pages = strtoul(argv[1], NULL, 10) << 20 >> 12;
	const int calls = atoi(argv[2]);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	for (size_t page = 0; page < pages; page++)
		for (int i = 0; i < WORDS; i++)
			memory[page * WORDS + i] = word_of(page, i);
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	if (sigaction(SIGALRM, &action, NULL) != 0)
		abort();
	const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &often, NULL);
	int failed = 0;
	for (int i = 0; i < calls; i++)
		failed += setgid(getgid()) != 0;
	setitimer(ITIMER_REAL, &never, NULL);
	printf("wrong %d, failed %d\n", (int)wrong, failed);
	fprintf(stderr, "handled %d\n", (int)ran);
	return wrong || failed;
}
