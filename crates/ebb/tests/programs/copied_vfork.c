/*
 * Children of clone with CLONE_VFORK and a copy of the memory: copied_vfork SIZE_MIB. Each waits for what another thread
 * of its parent does, with memory calls, malloc and a fork. Its parent goes on when the child execs or ends, no earlier
 * and no later, and neither has a descriptor too many. First before there is much memory, then while most of it is
 * out. Prints what came of each.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
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

enum { PAGE = 4096, SOME = 8 << 20, STACK = 65536 };

static uint64_t *memory;
static size_t words;

/* Asks the thread; its answer; what the child says last; what lets children of the child, or its program, end. */
static int asked[2], answered[2], said[2], ends[2];
/* Lines of a listing of descriptors, less 8: what a shell's is told as. */
static int had;

static uint64_t word(uint64_t n)
{
	return (n + 1) * 0x9e3779b97f4a7c15u;
}

static uint64_t wrong(void)
{
	uint64_t n = 0;
	for (size_t w = 0; w < words; w += PAGE / 8)
		n += memory[w] != word(w);
	return n;
}

static void *works(void *unused)
{
	char c;
	while (read(asked[0], &c, 1) == 1) {
		char *some = mmap(NULL, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(some, 1, SOME);
		munmap(some, SOME);
		some = malloc(SOME);
		memset(some, 1, SOME);
		free(some);
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		int status = 1;
		if (waitpid(child, &status, 0) != child || status)
			abort();
		if (write(answered[1], &c, 1) != 1)
			abort();
	}
	return unused;
}

static int descriptors(void)
{
	int n = 0;
	DIR *all = opendir("/proc/self/fd");
	while (readdir(all))
		n++;
	closedir(all);
	return n;
}

static int child(void *how)
{
	char c = 'x';
	if (write(asked[1], &c, 1) != 1 || read(answered[0], &c, 1) != 1)
		return 1;
	/* The parent would be seen to go on before. */
	usleep(30000);
	if (write(said[1], &c, 1) != 1)
		return 1;
	if (!strcmp(how, "killed"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "leaves a child") && fork() == 0)
		_exit(read(ends[0], &c, 1) == 1 ? 0 : 1);
	if (!strcmp(how, "execs")) {
		char script[200];
		snprintf(script, sizeof script, "n=$(ls /proc/self/fd | wc -l); head -c 1 <&%d >/dev/null; exit $((n - %d))", ends[0], had);
		execl("/bin/sh", "sh", "-c", script, NULL);
	}
	return 5;
}

static char aside[STACK] __attribute__((aligned(16)));

static pid_t made(const char *by, const char *how)
{
	if (!strcmp(by, "clone"))
		return clone(child, aside + STACK, CLONE_VFORK | SIGCHLD, (void *)how);
	struct clone_args args = { .flags = CLONE_VFORK, .exit_signal = SIGCHLD };
	long pid = strcmp(by, "SYS_clone") ? syscall(SYS_clone3, &args, sizeof args)
					   : syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(child((void *)how));
	return (pid_t)pid;
}

static void tries(const char *by, const char *how)
{
	char c = 0;
	int status, before = descriptors();
	had = before - 8;
	fflush(stdout);
	pid_t pid = made(by, how);
	int over = read(said[0], &c, 1) == 1;
	/* The child's program is there still. */
	int lives = strcmp(how, "execs") || waitpid(pid, &status, WNOHANG) == 0;
	/* Its own child, too: nobody else would let it end. */
	if ((!strcmp(how, "execs") || !strcmp(how, "leaves a child")) && write(ends[1], &c, 1) != 1)
		abort();
	if (lives && waitpid(pid, &status, 0) != pid)
		abort();
	int more = descriptors() - before;
	printf("%s, %s: %s, %s, status %x, %d more descriptors, %lu wrong\n", by, how, over ? "in order" : "EARLY",
	       lives ? "in time" : "LATE", status, more, (unsigned long)wrong());
}

int main(int argc, char **argv)
{
	static const char *const by[] = { "clone", "SYS_clone", "SYS_clone3" };
	static const char *const how[] = { "ends", "killed", "leaves a child", "execs" };
	size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	pthread_t thread;
	alarm(50);
	if (pipe(asked) || pipe(answered) || pipe2(said, O_NONBLOCK) || pipe(ends))
		return 1;
	if (pthread_create(&thread, NULL, works, NULL))
		return 1;
	for (int round = 0; round < 2; round++) {
		for (size_t b = 0; b < sizeof by / sizeof *by; b++)
			for (size_t h = 0; h < sizeof how / sizeof *how; h++)
				tries(by[b], how[h]);
		if (round)
			break;
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			return 1;
		words = bytes / 8;
		for (size_t w = 0; w < words; w++)
			memory[w] = word(w);
	}
	return 0;
}
