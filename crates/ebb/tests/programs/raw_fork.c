/*
 * Children made by system calls. By number through libc's syscall() they are forks like any other. An
 * instruction of the program's own is seen by nobody: such a child must find its memory as it was or end,
 * but never read zeros.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 24000, WORDS = 512 };

static uint64_t *memory;

static uint64_t digest(void)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < (uint64_t)PAGES * WORDS; i += 64)
		sum = sum * 31 + memory[i];
	return sum;
}

static long own_fork(void)
{
	long result;
#ifdef __x86_64__
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_fork) : "rcx", "r11", "memory");
#else
	result = fork();
#endif
	return result;
}

/* 0: right; 1: wrong; 2: ended by SIGSEGV. */
static int outcome(long child)
{
	int status = 0;
	waitpid((pid_t)child, &status, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV)
		return 2;
	return status != 0;
}

int main(void)
{
	memory = malloc((size_t)PAGES * WORDS * 8);
	if (!memory)
		return 1;
	for (uint64_t i = 0; i < (uint64_t)PAGES * WORDS; i++)
		memory[i] = i % WORDS < 100 ? i * 2654435761u : i / WORDS + 1;
	uint64_t expected = digest();
	fflush(stdout);
	for (int round = 0; round < 3; round++) {
		long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (child == 0)
			_exit(digest() != expected);
		printf("clone by number: %d\n", outcome(child));
		fflush(stdout);
		child = own_fork();
		if (child == 0)
			_exit(digest() != expected);
		int seen = outcome(child);
		printf("own instruction: %s\n", seen == 1 ? "wrong data" : "right or ended");
		fprintf(stderr, "own instruction: %d\n", seen);
		fflush(stdout);
	}
	printf("parent: %d\n", digest() != expected);
	return 0;
}
