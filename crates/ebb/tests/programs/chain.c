/* chain MIB FORKS: a chain of forks, each process the parent of the next and gone soon after. Each changes
 * some pages of what it inherited before it forks; the last looks at all of it. Prints what it found. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 512
#define CHANGED 24

static unsigned long long mix(unsigned long long x)
{
	x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
	x = (x ^ x >> 27) * 0x81dadef4bc2dd44dull;
	return x ^ x >> 33;
}

/* What process `by` of the chain writes to a page: half of it does not compress. */
static void fill(unsigned long long *page, long n, long by)
{
	for (long i = 0; i < WORDS; i++)
		page[i] = i % 2 ? (unsigned long long)by : mix(n * WORDS + i + by * 1000003ull);
}

static int is(const unsigned long long *page, long n, long by)
{
	for (long i = 0; i < WORDS; i++)
		if (page[i] != (i % 2 ? (unsigned long long)by : mix(n * WORDS + i + by * 1000003ull)))
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	long pages = atol(argv[1]) * 256, forks = atol(argv[2]);
	unsigned long long *memory = malloc(pages * 4096);
	/* Who wrote each page last; small, and changed alike in all. */
	int *by = calloc(pages, sizeof *by);
	int result[2];
	if (!memory || !by || pipe(result))
		return 2;
	for (long n = 0; n < pages; n++)
		fill(memory + n * WORDS, n, 0);
	pid_t first = fork();
	if (first < 0)
		return 2;
	if (first) {
		long wrong = -1;
		close(result[1]);
		waitpid(first, NULL, 0);
		if (read(result[0], &wrong, sizeof wrong) != sizeof wrong)
			return puts("the chain broke"), 1;
		printf("%ld forks, %ld pages wrong\n", forks, wrong);
		return wrong != 0;
	}
	for (long k = 1; k < forks; k++) {
		for (long i = 0; i < CHANGED; i++) {
			long n = mix(k * CHANGED + i) % pages;
			if (!is(memory + n * WORDS, n, by[n]))
				_exit(3);
			fill(memory + n * WORDS, n, k);
			by[n] = k;
		}
		pid_t next = fork();
		if (next < 0)
			_exit(4);
		if (next)
			_exit(0);
	}
	long wrong = 0;
	for (long n = 0; n < pages; n++)
		wrong += !is(memory + n * WORDS, n, by[n]);
	return write(result[1], &wrong, sizeof wrong) != sizeof wrong;
}
