/*
 * Children that get signals at every moment of the call that makes them: signalled_forks WAY SIZE_MIB CHILDREN
 * [SECONDS], after which it is killed (50), with WAY one of
 *
 *   fork, _Fork, threads   call libc's functions; "threads" forks beside threads that read the same memory.
 *   clone                  puts the child's stack into memory that is managed, and mostly out.
 *   SYS_fork, SYS_clone, SYS_clone3   go by number.
 *
 * Another process signals the group all the time. In a child the handler looks at memory that was filled before
 * and writes a word, perhaps before the call has returned there. Prints how many children saw a wrong page or lost
 * a write. On stderr it says in how many the handler ran before the program's own code.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, STACKS = 64, STACK = 65536, READERS = 2 };
enum { QUIET, RIGHT, WRONG, LOST, OUTCOMES };

static uint64_t *memory, random_state = 88172645463325252u;
static size_t pages, written;
static pid_t parent;
static volatile sig_atomic_t ran, wrong, over;

static uint64_t word_of(size_t page, int i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * i * 0x2545f4914f6cdd1du;
}

static char *mapping(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		abort();
	return at;
}

static void handler(int signal)
{
	(void)signal;
	int error = errno;
	/* In the parent the same, but for the write. */
	for (int i = 0; i < 3; i++) {
		random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
		size_t page = random_state % pages;
		wrong |= memory[page * WORDS + 5] != word_of(page, 5);
	}
	if (getpid() != parent) {
		ran = 1;
		memory[written * WORDS + 7] = 42;
	}
	errno = error;
}

/* The program's first own code in a child. */
static int child(void *argument)
{
	(void)argument;
	int first = ran;
	uint64_t word = memory[written * WORDS + 7];
	uint64_t beside = memory[written * WORDS + 9];
	if (wrong || beside != word_of(written, 9))
		_exit(WRONG);
	if (!first)
		_exit(QUIET);
	_exit(word == 42 ? RIGHT : LOST);
}

static char *stacks;

static pid_t make(const char *way, int n)
{
	long made;
	if (!strcmp(way, "clone"))
		return clone(child, stacks + (n % STACKS + 1) * STACK, SIGCHLD, NULL);
	if (!strcmp(way, "SYS_fork")) {
		made = syscall(SYS_fork);
	} else if (!strcmp(way, "SYS_clone")) {
		made = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	} else if (!strcmp(way, "SYS_clone3")) {
		struct clone_args args = { .exit_signal = SIGCHLD };
		made = syscall(SYS_clone3, &args, sizeof args);
	} else {
		made = !strcmp(way, "_Fork") ? _Fork() : fork();
	}
	if (made == 0)
		child(NULL);
	return (pid_t)made;
}

static void *reader(void *argument)
{
	size_t *bad = argument;
	/* Only a handler of the parent's first thread is meant. */
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (size_t page = 0; !over; page = (page + 1) % pages)
		*bad += memory[page * WORDS + 9] != word_of(page, 9);
	return NULL;
}

/* Signals the group until its leader ends. */
static int kill_all_the_time(void)
{
	signal(SIGUSR1, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct timespec pause = { 0, 300000 };
	while (kill(0, SIGUSR1) == 0)
		nanosleep(&pause, NULL);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return kill_all_the_time();
	const char *way = argv[1];
	pages = strtoul(argv[2], NULL, 0) * 256;
	int children = atoi(argv[3]), outcomes[OUTCOMES] = { 0 }, others = 0;
	/* A group of its own is out of reach of whoever would end it. */
	alarm(argc > 4 ? atoi(argv[4]) : 50);
	setpgid(0, 0);
	parent = getpid();
	stacks = mapping(STACKS * STACK);
	memset(stacks, 1, STACKS * STACK);
	memory = (uint64_t *)mapping(pages * PAGE);
	for (size_t i = 0; i < pages * WORDS; i++)
		memory[i] = word_of(i / WORDS, (int)(i % WORDS));
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, NULL);
	size_t bad[READERS] = { 0 };
	pthread_t threads[READERS];
	int readers = strcmp(way, "threads") ? 0 : READERS;
	for (int i = 0; i < readers; i++)
		pthread_create(&threads[i], NULL, reader, &bad[i]);
	pid_t killer = vfork();
	if (killer == 0) {
		execl("/proc/self/exe", argv[0], (char *)NULL);
		_exit(9);
	}
	for (int n = 0; n < children; n++) {
		written = 1000 + n * 37;
		pid_t pid = make(way, n);
		int status = -1;
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (WIFEXITED(status) && WEXITSTATUS(status) < OUTCOMES)
			outcomes[WEXITSTATUS(status)]++;
		else
			others++;
	}
	kill(killer, SIGKILL);
	over = 1;
	for (int i = 0; i < readers; i++) {
		pthread_join(threads[i], NULL);
		others += bad[i] != 0;
	}
	printf("wrong %d, lost %d, other %d, parent %d\n", outcomes[WRONG], outcomes[LOST], others, wrong);
	fprintf(stderr, "handled early %d of %d\n", outcomes[RIGHT] + outcomes[LOST], children);
	return 0;
}
