/*
 * Coroutines on stacks of malloc'ed memory that make memory calls there, and a signal handler on
 * such a stack, while their memory is larger than the budget.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { ROUTINES = 64, STACK = 256 << 10, BLOCK = 1 << 20, ROUNDS = 6 };

static ucontext_t back, routines[ROUTINES];
static uint64_t sums[ROUTINES];
static volatile sig_atomic_t handled;

static void routine(int number)
{
	volatile char deep[STACK / 4];
	memset((void *)deep, number, sizeof deep);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (size_t i = 0; i < BLOCK / 8; i++)
			block[i] = i % 512 < 60 ? i * (number + 1) * 2654435761u : round;
		swapcontext(&routines[number], &back);
		for (size_t i = 0; i < BLOCK / 8; i += 64)
			sums[number] = sums[number] * 31 + block[i] + deep[i % sizeof deep];
		munmap(block, BLOCK);
	}
}

static void handler(int number)
{
	char *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	block[number] = 1;
	munmap(block, BLOCK);
	handled++;
}

int main(void)
{
	stack_t alternate = { .ss_sp = malloc(STACK), .ss_size = STACK };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	if (sigaltstack(&alternate, NULL) || sigaction(SIGUSR1, &action, NULL))
		return 1;
	for (int i = 0; i < ROUTINES; i++) {
		getcontext(&routines[i]);
		routines[i].uc_stack.ss_sp = malloc(STACK);
		routines[i].uc_stack.ss_size = STACK;
		routines[i].uc_link = &back;
		makecontext(&routines[i], (void (*)(void))routine, 1, i);
	}
	for (int round = 0; round <= ROUNDS; round++) {
		for (int i = 0; i < ROUTINES; i++)
			swapcontext(&back, &routines[i]);
		raise(SIGUSR1);
	}
	uint64_t sum = 0;
	for (int i = 0; i < ROUTINES; i++)
		sum = sum * 31 + sums[i];
	printf("%016llx %d\n", (unsigned long long)sum, (int)handled);
	return 0;
}
