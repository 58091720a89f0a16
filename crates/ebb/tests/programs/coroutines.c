/* Coroutines on stacks from malloc, switched to by instructions of the program's own: nobody is told
   that these are stacks. On each of them memory is mapped, unmapped and allocated; then the same in a
   forked child beside its parent.

     coroutines COUNT ROUNDS

   Prints a sum of what was read back. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 128 << 10, MAPPED = 200 << 10 };

static void *caller;
static void **stacks;
static int current;
static uint64_t sum;

#ifdef __x86_64__
__attribute__((naked, noinline)) static void switch_to(void **from, void *to)
{
	__asm__("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15;"
		"mov %rsp, (%rdi); mov %rsi, %rsp;"
		"pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}

static void body(void)
{
	int me = current;
	for (int round = 0;; round++) {
		size_t size = MAPPED + me * 64;
		char *mapped = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(mapped, me + round, size);
		sum = sum * 31 + (unsigned char)mapped[size / 2];
		munmap(mapped, size);
		char *allocated = malloc(5000);
		memset(allocated, round, 5000);
		sum = sum * 31 + allocated[100];
		free(allocated);
		switch_to(&stacks[me], caller);
	}
}

static void rounds(int count, int n)
{
	for (int round = 0; round < n; round++)
		for (current = 0; current < count; current++)
			switch_to(&caller, stacks[current]);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int count = atoi(argv[1]), n = atoi(argv[2]);
	stacks = calloc(count, sizeof *stacks);
	for (int i = 0; i < count; i++) {
		char *stack = malloc(STACK);
		memset(stack, i, STACK);
		uint64_t *top = (uint64_t *)(((uintptr_t)stack + STACK) & ~15ul);
		*--top = 0;
		*--top = (uint64_t)body;
		for (int saved = 0; saved < 6; saved++)
			*--top = 0;
		stacks[i] = top;
	}
	rounds(count, n);
	fflush(stdout);
	pid_t child = fork();
	rounds(count, n);
	if (child == 0)
		_exit(sum % 100);
	int status;
	waitpid(child, &status, 0);
	printf("%016llx %d\n", (unsigned long long)sum,
	       WIFEXITED(status) && WEXITSTATUS(status) == (int)(sum % 100));
	return 0;
}
#else
int main(void)
{
	puts("no switch for this processor");
	return 0;
}
#endif
