/*
 * Children made by clone with CLONE_VM: clone_vm WHAT [MIB].
 *
 * calls: the child maps 2000 areas, unmaps some and protects others, while its parent waits. Prints how many failed.
 * maps: the child maps memory, and its parent fills it, then the child, round after round; prints what they read.
 * fixed: the child maps in the place of its parent's memory in ways that are refused. Prints the errors, and whether
 * the memory is as it was.
 * ends: the child does nothing, and its parent fills memory with what cannot be compressed. Prints the child's number.
 * number: the child is made by syscall(2), and goes on at the address on top of its stack.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, AREAS = 2000, STACK = 256 << 10, TURNS = 8, SOME = 1 << 20 };

static _Alignas(16) char stack[STACK];
static size_t size;
static char *volatile memory;
static volatile int step, failed, wrong, errors[4];

static void *map(size_t len)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int status_of(pid_t child)
{
	int status = -1;
	waitpid(child, &status, 0);
	return status;
}

static int calls(void *unused)
{
	static char *area[AREAS];
	for (int i = 0; i < AREAS; i++)
		area[i] = map(4 * PAGE);
	for (int i = 0; i < AREAS; i += 2) {
		failed += munmap(area[i], 4 * PAGE) != 0;
		failed += mprotect(area[i + 1], PAGE, PROT_READ) != 0;
	}
	return 0;
}

static void await(int wanted)
{
	while (step < wanted)
		usleep(1000);
}

/* In turn: one changes what the other wrote. */
static void take_turns(int first)
{
	for (int turn = first; turn < TURNS; turn += 2) {
		await(turn);
		for (size_t at = 0; at < size; at += PAGE) {
			uint64_t *word = (uint64_t *)(memory + at);
			wrong += *word != (turn > 1 ? at + (size_t)turn - 1 : 0);
			*word = at + (size_t)turn;
		}
		step = turn + 1;
	}
}

static int maps(void *unused)
{
	memory = map(size);
	step = 1;
	take_turns(2);
	return 0;
}

/* Flags, protection and file of calls that are refused, and the reasons. */
static int fixed(void *unused)
{
	int reads = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), some = PROT_READ | PROT_WRITE;
	const int how[4][3] = {
		{ MAP_SHARED, PROT_READ, -1 },
		{ MAP_SHARED, some, reads },
		{ 0, PROT_READ, reads },
		{ MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, some, -1 },
	};
	for (int i = 0; i < 4; i++) {
		errno = 0;
		mmap(memory, SOME, how[i][1], how[i][0] | MAP_FIXED, how[i][2], 0);
		errors[i] = errno;
	}
	/* What is not refused takes the place. */
	char *end = memory + SOME;
	mmap(end, PAGE, some, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	wrong += *end != 0;
	return 0;
}

static int pauses(void *unused)
{
	while (pause())
		;
	return 0;
}

static __attribute__((force_align_arg_pointer, noreturn)) void entry(void)
{
	step = 42;
	for (;;)
		syscall(SYS_exit, 5);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	size = (size_t)(argc > 2 ? atoi(argv[2]) : 1) << 20;
	int flags = CLONE_VM | SIGCHLD;
	if (strcmp(what, "calls") == 0) {
		int status = status_of(clone(calls, stack + STACK, flags | CLONE_VFORK, NULL));
		printf("%x, %d failed\n", status, failed);
	} else if (strcmp(what, "maps") == 0) {
		pid_t child = clone(maps, stack + STACK, flags, NULL);
		take_turns(1);
		printf("%x, %d wrong\n", status_of(child), wrong);
	} else if (strcmp(what, "fixed") == 0) {
		memory = map(2 * SOME);
		memset(memory, 7, 2 * SOME);
		int status = status_of(clone(fixed, stack + STACK, flags | CLONE_VFORK, NULL));
		for (int i = 0; i < SOME; i++)
			wrong += memory[i] != 7;
		printf("%x, errors %d %d %d %d, %d wrong\n", status, errors[0], errors[1], errors[2], errors[3], wrong);
	} else if (strcmp(what, "ends") == 0) {
		printf("%d\n", clone(pauses, stack + STACK, flags, NULL));
		fflush(stdout);
		uint64_t *words = map(size), random = 88172645463325252u;
		for (size_t i = 0; i < size / sizeof *words; i++) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			words[i] = random;
		}
	} else if (strcmp(what, "number") == 0) {
		uintptr_t *top = (uintptr_t *)(stack + STACK - 16);
		*top = (uintptr_t)entry;
		long none = syscall(SYS_clone, CLONE_VM | CLONE_THREAD, top, 0, 0, 0);
		int error = errno;
		struct { uint64_t word[8]; } args = { { CLONE_VM, 0, 0, 0, SIGCHLD, (uintptr_t)stack, STACK - 16, 0 } };
		printf("%x", status_of((pid_t)syscall(SYS_clone, flags, top, 0, 0, 0)));
		*top = (uintptr_t)entry;
		printf(", %x", status_of((pid_t)syscall(SYS_clone3, &args, sizeof args)));
		printf(", %ld, %d, %d\n", none, error, step);
	}
	return 0;
}
