/*
 * Fills MIB with random words and reads all of it again, surviving SIGBUS. Either a page is as it was,
 * or each read of it gives the signal.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { WORDS = 4096 / 8 };

static sigjmp_buf back;

static void hit(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static uint64_t word(uint64_t n)
{
	n = (n + 1) * 0x9e3779b97f4a7c15u;
	n = (n ^ n >> 31) * 0xbf58476d1ce4e5b9u;
	return n ^ n >> 29;
}

static int lost(const volatile uint64_t *page)
{
	if (sigsetjmp(back, 1))
		return 1;
	(void)page[0];
	return 0;
}

int main(int argc, char **argv)
{
	size_t pages = (size_t)(argc > 1 ? atoi(argv[1]) : 128) << 8;
	uint64_t *all = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = {.sa_handler = hit};
	size_t gone = 0, wrong = 0, again = 0;
	sigaction(SIGBUS, &action, NULL);
	for (size_t i = 0; i < pages * WORDS; i++)
		all[i] = word(i);
	for (size_t p = 0; p < pages; p++) {
		if (lost(all + p * WORDS)) {
			gone++;
			again += lost(all + p * WORDS);
			continue;
		}
		for (size_t i = p * WORDS; i < (p + 1) * WORDS; i++)
			if (all[i] != word(i)) {
				wrong++;
				break;
			}
	}
	fprintf(stderr, "%zu lost\n", gone);
	printf("%zu wrong, %s\n", wrong, gone == again ? "what is lost stays lost" : "what was lost came back");
	return 0;
}
