/*
 * Many processes at a time: slots N KIB forks N, each of which fills so much and waits. Once a line comes they look
 * whether they have it all, one after the other. The parent itself is too small to be managed.
 *
 * slots refused: forks children that wait until no more can be, in both ways, spawns a program then, and forks again once
 * one of them has ended.
 *
 * slots in-turn N: one after the other, by a process that pages, in a network namespace in which nobody listens.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static unsigned char *filled(size_t bytes, uint64_t seed)
{
	unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		abort();
	for (size_t page = 0; page < bytes / PAGE; page++)
		for (int word = 0; word < 64; word++)
			((uint64_t *)(at + page * PAGE))[word] = (seed << 32 | page << 8 | word) * 0x9e3779b97f4a7c15u;
	return at;
}

static int right(const unsigned char *at, size_t bytes, uint64_t seed)
{
	for (size_t page = 0; page < bytes / PAGE; page++)
		for (int word = 0; word < 64; word++)
			if (((uint64_t *)(at + page * PAGE))[word] != (seed << 32 | page << 8 | word) * 0x9e3779b97f4a7c15u)
				return 0;
	return 1;
}

static int in_turn(int children)
{
	const size_t bytes = 40 << 20;
	unsigned char *at = filled(bytes, 1);
	if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET))
		return 90;
	int good = 0;
	for (int i = 0; i < children; i++) {
		pid_t pid = fork();
		if (pid < 0)
			return 1;
		if (pid == 0) {
			/* One page of its own, and one that is out perhaps. */
			at[(size_t)i * PAGE] += 1;
			size_t there = (size_t)(i * 7919 % 10240) * PAGE;
			uint64_t word = (uint64_t)1 << 32 | there / PAGE << 8 | 1;
			_exit(*(uint64_t *)(at + there + 8) != word * 0x9e3779b97f4a7c15u);
		}
		int status;
		waitpid(pid, &status, 0);
		good += status == 0;
	}
	printf("%d good, %s\n", good, right(at, bytes, 1) ? "intact" : "damaged");
	return 0;
}

extern char **environ;

/* A child that waits for a signal. */
static pid_t waiting(int by_number)
{
	pid_t pid = by_number ? syscall(SYS_fork) : fork();
	if (pid == 0) {
		pause();
		_exit(1);
	}
	return pid;
}

static int refused(void)
{
	static pid_t children[1024];
	const size_t bytes = 1 << 20;
	unsigned char *at = filled(bytes, 1);
	int count = 0, status;
	for (; count < 1024; count++) {
		children[count] = waiting(0);
		if (children[count] < 0)
			break;
	}
	int refused = count < 1024 && errno == EAGAIN;
	pid_t late = waiting(1);
	refused += late < 0 && errno == EAGAIN;
	if (late > 0)
		kill(late, SIGKILL);
	char *argv[] = { "true", NULL };
	pid_t spawned;
	int spawns = !posix_spawnp(&spawned, "true", NULL, NULL, argv, environ);
	spawns = spawns && waitpid(spawned, &status, 0) == spawned && status == 0;
	pid_t again = -1;
	for (int i = 0; i < count; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], &status, 0);
		if (i == 0)
			again = waiting(0);
	}
	if (again > 0)
		kill(again, SIGKILL);
	printf("%d forked, %d refused, %d spawned, %d again, ", count, refused, spawns, again > 0);
	printf("%s\n", right(at, bytes, 1) ? "intact" : "damaged");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "refused"))
		return refused();
	if (argc == 3 && !strcmp(argv[1], "in-turn"))
		return in_turn(atoi(argv[2]));
	if (argc != 3)
		return 2;
	int children = atoi(argv[1]), ready[2], go[2];
	size_t bytes = (size_t)atoi(argv[2]) << 10;
	if (pipe(ready) || pipe(go))
		return 1;
	for (int i = 0; i < children; i++) {
		pid_t pid = fork();
		if (pid < 0)
			return 1;
		if (pid == 0) {
			char token;
			unsigned char *at = filled(bytes, i + 2);
			if (write(ready[1], "r", 1) != 1 || read(go[0], &token, 1) != 1)
				_exit(1);
			int is_right = right(at, bytes, i + 2);
			if (write(go[1], "g", 1) != 1)
				_exit(1);
			_exit(!is_right);
		}
	}
	for (int i = 0; i < children; i++) {
		char byte;
		if (read(ready[0], &byte, 1) != 1)
			return 1;
	}
	printf("%d ready\n", (int)getpid());
	fflush(stdout);
	if (getchar() == EOF || write(go[1], "g", 1) != 1)
		return 1;
	int good = 0;
	for (int i = 0; i < children; i++) {
		int status;
		wait(&status);
		good += status == 0;
	}
	printf("%d right\n", good);
	return 0;
}
