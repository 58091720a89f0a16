/* Coroutines on stacks from malloc, switched to by instructions of the program's own: nobody is told
   that these are stacks. On each of them memory is mapped, unmapped and allocated; in several threads,
   and then in a forked child beside its parent.

     coroutines COUNT ROUNDS THREADS

   Prints a sum of what was read back. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 128 << 10, MAPPED = 200 << 10 };

static __thread void *caller;
static __thread void **stacks;
static __thread int current;
static __thread uint64_t sum;
static int count, n;

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

static void make(void)
{
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
}

static void rounds(void)
{
	for (int round = 0; round < n; round++)
		for (current = 0; current < count; current++)
			switch_to(&caller, stacks[current]);
}

static void *run(void *unused)
{
	(void)unused;
	make();
	rounds();
	return (void *)sum;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int threads = atoi(argv[3]);
	count = atoi(argv[1]) / (threads + 1), n = atoi(argv[2]);
	pthread_t ids[threads];
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, run, NULL);
	make();
	rounds();
	for (int i = 0; i < threads; i++) {
		void *theirs;
		pthread_join(ids[i], &theirs);
		sum = sum * 31 + (uint64_t)theirs;
	}
	fflush(stdout);
	pid_t child = fork();
	rounds();
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
