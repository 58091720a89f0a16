/*
 * A child of vfork that outlives its parent, most of whose memory is swapped out. It ends its parent. Then it
 * looks at all of the memory, by system calls and by itself, and writes to the pages that it finds. Every page
 * must be as it was, or lost (EFAULT, SIGBUS). Pages that cannot be moved (ENOMEM) stay. In the end it forks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 24000, OTHERS = 2000, WORDS = 512 };

static uint64_t *memory, *others;
static sigjmp_buf back;

static void lost_page(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static uint64_t word(uint64_t page, int w)
{
	return w < 100 ? page * 2654435761u + w + 1 : page + 1;
}

static int is_right(const uint64_t *data, uint64_t page)
{
	for (int w = 0; w < WORDS; w++)
		if (data[w] != word(page, w))
			return 0;
	return 1;
}

__attribute__((noreturn, noinline)) static void outlive(pid_t parent, int out)
{
	volatile unsigned right = 0, lost = 0, wrong = 0, refused = 0;
	uint64_t copy[WORDS];
	int file = memfd_create("copy", 0);
	kill(parent, SIGKILL);
	while (getppid() == parent)
		usleep(1000);
	signal(SIGBUS, lost_page);
	/* In the way of itself, so that it has to move to become more; and nobody has touched it yet. */
	uint64_t *moved = mremap(others, OTHERS * 4096, (OTHERS + 1) * 4096, MREMAP_MAYMOVE);
	for (volatile uint64_t p = 0; moved != MAP_FAILED && p < OTHERS; p++)
		if (!sigsetjmp(back, 1))
			wrong += !is_right(moved + p * WORDS, p);
	for (volatile uint64_t p = 0; p < PAGES; p++) {
		uint64_t *page = memory + p * WORDS;
		if (p % 2) {
			ssize_t n = pwrite(file, page, sizeof copy, 0);
			if (n == sizeof copy)
				wrong += pread(file, copy, sizeof copy, 0) != sizeof copy || !is_right(copy, p);
			else
				refused += n < 0 && errno == EFAULT;
		}
		if (sigsetjmp(back, 1)) {
			lost++;
			continue;
		}
		if (is_right(page, p)) {
			page[7] = p;
			right += page[7] == p;
		} else {
			wrong++;
		}
	}
	/* What malloc knows may be lost, too. */
	signal(SIGBUS, SIG_DFL);
	char line[100];
	int n = snprintf(line, sizeof line, "right %u lost %u refused %u wrong %u\n", right, lost, refused, wrong);
	if (write(out, line, n) == n)
		fork();
	_exit(1);
}

int main(void)
{
	int ends[2];
	char line[200];
	if (pipe(ends))
		return 1;
	if (fork() == 0) {
		close(ends[0]);
		pid_t me = getpid();
		others = mmap(0, (OTHERS + 1) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memory = malloc((size_t)PAGES * WORDS * 8);
		if (!memory || others == MAP_FAILED)
			_exit(1);
		for (uint64_t p = 0; p < OTHERS; p++)
			for (int w = 0; w < WORDS; w++)
				others[p * WORDS + w] = word(p, w);
		for (uint64_t p = 0; p < PAGES; p++)
			for (int w = 0; w < WORDS; w++)
				memory[p * WORDS + w] = word(p, w);
		/* Some come back, and are there with their copies. */
		for (uint64_t p = 0; p < PAGES / 4; p++)
			if (memory[p * WORDS] == 0)
				_exit(1);
		if (vfork() == 0)
			outlive(me, ends[1]);
		_exit(1);
	}
	close(ends[1]);
	ssize_t n = read(ends[0], line, sizeof line);
	int status = 0;
	wait(&status);
	/* Until the child has ended, too: what it is told comes before this program's end. */
	char more;
	while (read(ends[0], &more, 1) > 0)
		;
	printf("parent %s\n", WIFSIGNALED(status) ? "killed" : "ended");
	printf("%.*s", n > 0 ? (int)n : 0, line);
	return 0;
}
