/*
 * Children made by calls whose arguments lie in memory that is managed and out, or nowhere: clone_words SIZE_MIB.
 * Words that the kernel stores for parent and child, the structure of clone3, numbers asked for, stacks.
 * Prints what came of each; on stderr which of them were out when the call began.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, APART = 48 * PAGE, STACK = 65536 };

static char *memory;
static size_t bytes, next_place;

static void fill(char *at, size_t length)
{
	uint64_t x = 88172645463325252u;
	for (size_t i = 0; i < length / 8; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		((uint64_t *)at)[i] = x;
	}
}

static int present(void *at)
{
	uint64_t word = 1ull << 63;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	if (fd >= 0 && pread(fd, &word, 8, (off_t)((uintptr_t)at / PAGE * 8)) != 8)
		word = 1ull << 63;
	close(fd);
	return (int)(word >> 63);
}

/* A place in the first half of the memory, written with this, or else used by nobody since it was filled. */
static void *place(const char *what, const void *value, size_t size)
{
	char *at = memory + next_place + 64;
	next_place += APART;
	if (next_place > bytes / 2)
		abort();
	if (size) {
		memcpy(at, value, size);
		fill(memory + bytes / 2, bytes / 2);
		fill(memory + bytes / 2, bytes / 2);
		/* What a walk brings leaves first, and something else may stay: so in no order, too. */
		size_t pages = bytes / 2 / PAGE;
		for (size_t i = 0; i < 4 * pages && present(at); i++)
			for (int once = 0; once < 64; once++, i++)
				memory[bytes / 2 + i * 40501 % pages * PAGE]++;
	}
	fprintf(stderr, "%s %s\n", what, present(at) ? "was in" : "was out");
	return at;
}

static int ended(pid_t child)
{
	int status = -1;
	while (waitpid(child, &status, __WALL) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static int seven(void *argument)
{
	return argument ? *(int *)argument : 7;
}

static pid_t *own;
static int is_own(void *argument)
{
	(void)argument;
	return *own == getpid() ? 0 : 1;
}

static char aside[STACK] __attribute__((aligned(16)));
#define TOP (aside + STACK)

static void by_clone(void)
{
	char *stack = place("stack", NULL, 0);
	stack += STACK - 64;
	printf("stack: %d\n", ended(clone(seven, stack, SIGCHLD, NULL)));
	int *argument = place("argument", NULL, 0);
	int status = ended(clone(seven, TOP, SIGCHLD, argument));
	printf("argument: %d\n", status == (*argument & 255));
	pid_t *named = place("parent_tid", NULL, 0);
	pid_t child = clone(seven, TOP, CLONE_PARENT_SETTID | SIGCHLD, NULL, named);
	printf("parent_tid: %d\n", *named == child && ended(child) == 7);
	own = place("child_tid", NULL, 0);
	printf("child_tid: %d", ended(clone(is_own, TOP, CLONE_CHILD_SETTID | SIGCHLD, NULL, NULL, NULL, own)));
	printf(", here %d\n", *own != getpid());
	int *pidfd = place("pidfd", NULL, 0);
	child = clone(seven, TOP, CLONE_PIDFD | SIGCHLD, NULL, pidfd);
	siginfo_t info;
	int waited = waitid(P_PIDFD, *pidfd, &info, WEXITED);
	printf("pidfd: %d %d\n", waited, info.si_pid == child && info.si_status == 7);
	close(*pidfd);
	/* Nowhere: the kernel looks at the last alone. */
	child = clone(seven, TOP, CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, NULL, (void *)8, NULL, (void *)8);
	printf("nowhere: %d\n", ended(child));
	child = clone(seven, TOP, CLONE_PIDFD | SIGCHLD, NULL, (void *)8);
	printf("pidfd nowhere: %d %s\n", child, strerror(errno));
}

static void clone3_with(const char *what, void *args, size_t size)
{
	errno = 0;
	long child = syscall(SYS_clone3, args, size);
	int error = errno;
	if (child == 0)
		_exit(memory[1] == memory[1 + APART] ? 3 : 4);
	printf("clone3 %s: ", what);
	if (child < 0)
		printf("%s\n", strerror(error));
	else
		printf("%d\n", ended((pid_t)child) == (memory[1] == memory[1 + APART] ? 3 : 4));
	fflush(stdout);
}

static void by_clone3(void)
{
	struct clone_args plain = { .exit_signal = SIGCHLD }, args = plain;
	clone3_with("in managed memory", place("clone3", &plain, sizeof plain), sizeof args);
	clone3_with("nowhere", NULL, sizeof args);
	clone3_with("at 8", (void *)8, sizeof args);
	clone3_with("in the kernel", (void *)-4096l, sizeof args);
	clone3_with("too short", &args, 32);
	clone3_with("shortest", &args, 64);
	char longer[256] = { 0 };
	memcpy(longer, &plain, sizeof plain);
	clone3_with("longer", longer, sizeof longer);
	longer[200] = 1;
	clone3_with("longer, of a later kernel", longer, sizeof longer);
	clone3_with("beyond all", longer, 1 << 20);
	args.flags = CLONE_PIDFD;
	args.pidfd = 8;
	clone3_with("pidfd nowhere", &args, sizeof args);
	args = plain;
	args.flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID;
	args.parent_tid = args.child_tid = 8;
	clone3_with("words nowhere", &args, sizeof args);
	args = plain;
	args.flags = CLONE_SIGHAND;
	clone3_with("with flags that do not go together", &args, sizeof args);
	args = plain;
	args.set_tid_size = 1;
	args.set_tid = 8;
	clone3_with("number nowhere", &args, sizeof args);
	args.set_tid_size = 40;
	clone3_with("numbers too many", &args, sizeof args);
	pid_t number = getpid();
	args.set_tid = (uintptr_t)place("set_tid", &number, sizeof number);
	args.set_tid_size = 1;
	clone3_with("number that is taken", &args, sizeof args);
}

static volatile int go;

static int thread(void *argument)
{
	(void)argument;
	while (!go)
		usleep(1000);
	syscall(SYS_exit, 0);
	return 0;
}

/* The kernel clears it and wakes who waits when there is no thread any more that could wait for a page. */
static void cleared(void)
{
	int value = 1234, *word = place("cleared", &value, sizeof value);
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	if (clone(thread, TOP, flags | CLONE_CHILD_CLEARTID, NULL, NULL, NULL, word) < 0)
		abort();
	fill(memory + bytes / 2, bytes / 2);
	fill(memory + bytes / 2, bytes / 2);
	go = 1;
	struct timespec patience = { 5, 0 };
	while (*(volatile int *)word == 1234)
		if (syscall(SYS_futex, word, FUTEX_WAIT, 1234, &patience, NULL, 0) != 0 && errno == ETIMEDOUT)
			break;
	printf("cleared: %d\n", *word);
}

int main(int argc, char **argv)
{
	bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	alarm(50);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	fill(memory, bytes);
	fill(memory + bytes / 2, bytes / 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	by_clone();
	by_clone3();
	cleared();
	return 0;
}
