/* Private mappings of a file that may be written:
 *   file_copies MIB    writes to one before and one after MIB of other memory are filled, moves it, shares it with a
 *                      child, drops parts of it, maps other memory over it and unmaps the rest
 * Prints what is there, which is the same wherever it runs. On standard error: what may differ. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES ((size_t)12 << 8)
/* The file ends within the last page. */
#define SIZE ((PAGES - 1) * PAGE + 100)

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(2);
	}
}

static unsigned char of_file(size_t i)
{
	return i < SIZE ? i * 2654435761u >> 13 : 0;
}

static void noise(char *p, size_t len)
{
	unsigned long long state = (unsigned long long)len | 1;
	for (size_t i = 0; i < len; i += 8) {
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		memcpy(p + i, &state, 8);
	}
}

static char *anonymous(size_t mib)
{
	char *p = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(p != MAP_FAILED, "mmap");
	noise(p, mib << 20);
	return p;
}

/* Seven pages of eight are written. */
static int is_written(size_t page)
{
	return page % 8 != 3;
}

static void mark(char *p, size_t first, size_t end, size_t what)
{
	for (size_t i = first; i < end; i++) {
		size_t word = what + i;
		if (is_written(i))
			memcpy(p + i * PAGE + 40, &word, sizeof word);
	}
}

/* The pages that are neither the file's, nor the file's with the mark. With none of it (0) they are the file's. */
static size_t wrong(const char *p, size_t first, size_t end, size_t what)
{
	size_t bad = 0;
	for (size_t i = first; i < end; i++) {
		char want[PAGE];
		for (size_t k = 0; k < PAGE; k++)
			want[k] = of_file(i * PAGE + k);
		size_t word = what + i;
		if (what && is_written(i))
			memcpy(want + 40, &word, sizeof word);
		bad += memcmp(want, p + i * PAGE, PAGE) != 0;
	}
	return bad;
}

static size_t mappings_of_file(void)
{
	char line[4096];
	size_t count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	must(maps != NULL, "maps");
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "archive.bin") != NULL;
	fclose(maps);
	return count;
}

static int is_file_at(const char *p)
{
	char line[4096], start[32];
	int found = 0;
	snprintf(start, sizeof start, "%zx-", (size_t)p);
	FILE *maps = fopen("/proc/self/maps", "r");
	must(maps != NULL, "maps");
	while (fgets(line, sizeof line, maps))
		found |= strncmp(line, start, strlen(start)) == 0 && strstr(line, "archive.bin") != NULL;
	fclose(maps);
	return found;
}

static void in_child(char *p, size_t what)
{
	fflush(stdout);
	pid_t child = fork();
	must(child >= 0, "fork");
	if (child == 0) {
		size_t bad = wrong(p, 0, PAGES, what);
		mark(p, 0, PAGES, 77 << 20);
		must(madvise(p, 8 * PAGE, MADV_DONTNEED) == 0, "madvise in a child");
		bad += wrong(p, 0, 8, 0) + wrong(p, 8, PAGES, 77 << 20);
		_exit(bad > 0);
	}
	int status;
	must(waitpid(child, &status, 0) == child, "waitpid");
	printf("child: %d\n", status);
}

/* Mappings of the file beside what the program maps and unmaps. */
static void beside(int fd)
{
	int prot = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;
	size_t len = PAGES * PAGE;
	/* A hole of the program's: what it maps there later is not the pager's. */
	char *hole = mmap(NULL, len, PROT_NONE, anon, -1, 0);
	must(hole != MAP_FAILED, "mmap");
	munmap(hole, len);
	char *file = mmap(NULL, len, prot, MAP_PRIVATE, fd, 0);
	must(file != MAP_FAILED, "mmap");
	char *inside = file == hole ? file : mmap(hole, len, prot, anon | MAP_FIXED_NOREPLACE, -1, 0);
	must(inside == hole, "mmap into a hole");
	mark(inside, 0, PAGES, 5 << 20);
	if (file != hole)
		munmap(file, len);
	size_t word;
	memcpy(&word, inside + 40, sizeof word);
	printf("in a hole: %zu\n", word >> 20);
	/* Over it, twice: it is in use, then it is a file. Another thread may see it at any moment: it is not copied. */
	for (int i = 0; i < 2; i++) {
		must(mmap(inside, len, prot, MAP_PRIVATE | MAP_FIXED, fd, 0) == inside, "mmap over it");
		printf("in use: %zu %d\n", wrong(inside, 0, PAGES, 0), is_file_at(inside));
	}
	munmap(inside, len);

	size_t odd = ((size_t)1 << 20) + 100;
	file = mmap(NULL, odd, prot, MAP_PRIVATE, fd, 0);
	must(file != MAP_FAILED, "mmap");
	printf("an odd length: %zu\n", wrong(file, 0, 257, 0));
	must(munmap(file, odd) == 0, "munmap");

	/* Neighbours, the first one mapped last; and in the other order. */
	size_t half = PAGES / 2 * PAGE;
	for (int first = 0; first < 2; first++) {
		char *both = mmap(NULL, 2 * half, PROT_NONE, anon, -1, 0);
		must(both != MAP_FAILED, "mmap");
		for (int i = 0; i < 2; i++) {
			size_t at = i == first ? 0 : half;
			must(mmap(both + at, half, prot, MAP_PRIVATE | MAP_FIXED, fd, half - at) == both + at, "mmap");
		}
		memset(both + half - PAGE, 1, 2 * PAGE);
		must(madvise(both + PAGE, 2 * half - 2 * PAGE, MADV_DONTNEED) == 0, "madvise");
		size_t bad = wrong(both + half, 0, PAGES / 2, 0);
		munmap(both + half, half);
		for (size_t k = 0; k < half; k++)
			bad += (unsigned char)both[k] != of_file(half + k);
		printf("neighbours: %zu\n", bad);
		munmap(both, half);
	}
}

/* Pages that are written through /proc/self/mem, and dropped later. */
static void through_mem(int fd, const char *when)
{
	size_t pages = 2 << 8;
	char *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	must(p != MAP_FAILED, "mmap");
	mark(p, 100, 200, 6 << 20);
	int mem = open("/proc/self/mem", O_RDWR);
	must(mem >= 0, "/proc/self/mem");
	for (size_t i = 0; i < 100; i++) {
		size_t word = (6 << 20) + i;
		off_t at = (off_t)(size_t)(p + i * PAGE + 40);
		if (is_written(i))
			must(pwrite(mem, &word, sizeof word, at) == sizeof word, "pwrite");
	}
	close(mem);
	printf("%s, through mem: %zu\n", when, wrong(p, 0, 200, 6 << 20) + wrong(p, 200, pages, 0));
	must(madvise(p + 2 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0, "madvise");
	printf("dropped: %zu\n", wrong(p, 0, 2, 6 << 20) + wrong(p, 2, 10, 0) + wrong(p, 10, 200, 6 << 20));
	munmap(p, pages * PAGE);
}

/* Guards (MADV_GUARD_INSTALL and _REMOVE, 102 and 103), which drop pages. Files may have them since Linux 6.15. */
static void guards(int fd)
{
	size_t pages = 2 << 8;
	char *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	must(p != MAP_FAILED, "mmap");
	mark(p, 0, 200, 8 << 20);
	printf("no guard: %d\n", madvise(p + 300 * PAGE, PAGE, 103));
	int installed = madvise(p + 10 * PAGE, 8 * PAGE, 102) == 0;
	int ends[2];
	must(pipe(ends) == 0, "pipe");
	printf("guarded: %d\n", installed);
	for (int i = 8; i < 20; i += 4)
		printf("%zd ", write(ends[1], p + i * PAGE, 1));
	printf("unguarded: %d\n", madvise(p, pages * PAGE, 103));
	size_t end = installed ? 18 : 10;
	size_t bad = wrong(p, 0, 10, 8 << 20) + wrong(p, 10, end, 0) + wrong(p, end, 200, 8 << 20);
	printf("without guards: %zu\n", bad + wrong(p, 200, pages, 0));
	close(ends[0]);
	close(ends[1]);
	munmap(p, pages * PAGE);
}

int main(int argc, char **argv)
{
	size_t mib = argc > 1 ? atoi(argv[1]) : 48;
	int fd = open("archive.bin", O_RDWR | O_CREAT | O_TRUNC, 0600);
	must(fd >= 0, "open");
	for (size_t i = 0; i < SIZE;) {
		char some[PAGE];
		size_t len = SIZE - i < PAGE ? SIZE - i : PAGE;
		for (size_t k = 0; k < len; k++)
			some[k] = of_file(i + k);
		must(write(fd, some, len) == (ssize_t)len, "write");
		i += len;
	}
	through_mem(fd, "early");
	/* Over memory that was reserved, as Java has it. */
	char *reserved = mmap(NULL, (PAGES + 64) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(reserved != MAP_FAILED, "reserve");
	int prot = PROT_READ | PROT_WRITE;
	char *early = mmap(reserved + PAGE, PAGES * PAGE, prot, MAP_PRIVATE | MAP_FIXED, fd, 0);
	must(early == reserved + PAGE, "mmap over it");
	printf("early: %zu\n", wrong(early, 0, PAGES, 0));
	mark(early, 0, PAGES, 1 << 20);
	char *other = anonymous(mib);
	printf("early, written: %zu\n", wrong(early, 0, PAGES, 1 << 20));

	char *late = mmap(NULL, PAGES * PAGE, prot, MAP_PRIVATE, fd, 0);
	must(late != MAP_FAILED, "mmap");
	beside(fd);
	through_mem(fd, "late");
	guards(fd);
	close(fd);
	printf("late: %zu\n", wrong(late, 0, PAGES, 0));
	mark(late, 0, PAGES, 2 << 20);
	noise(other, mib << 20);
	printf("late, written: %zu\n", wrong(late, 0, PAGES, 2 << 20));
	printf("early, still: %zu\n", wrong(early, 0, PAGES, 1 << 20));
	in_child(early, 1 << 20);
	in_child(late, 2 << 20);

	char *place = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(place != MAP_FAILED, "mmap");
	char *moved = mremap(late, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	must(moved == place, "mremap");
	printf("moved: %zu\n", wrong(moved, 0, PAGES, 2 << 20));

	char *grown = mremap(moved, PAGES * PAGE, (PAGES + 16) * PAGE, MREMAP_MAYMOVE);
	if (grown == MAP_FAILED)
		fprintf(stderr, "grown: %s\n", strerror(errno));
	else
		moved = grown;
	if (madvise(moved, PAGE, MADV_FREE))
		fprintf(stderr, "freed: %s\n", strerror(errno));
	printf("still: %zu\n", wrong(moved, 0, PAGES, 2 << 20));

	must(mprotect(moved + 100 * PAGE, 50 * PAGE, PROT_READ) == 0, "mprotect");
	for (int i = 0; i < 2; i++) {
		must(madvise(moved + 80 * PAGE, 400 * PAGE, MADV_DONTNEED) == 0, "madvise");
		printf("dropped: %zu\n", wrong(moved, 80, 480, 0));
		mark(moved, 80, 100, 3 << 20);
		mark(moved, 150, 480, 3 << 20);
		noise(other, mib << 20);
		printf("written again: %zu\n", wrong(moved, 80, 100, 3 << 20) + wrong(moved, 150, 480, 3 << 20));
		printf("read only: %zu\n", wrong(moved, 100, 150, 0));
		printf("around: %zu\n", wrong(moved, 0, 80, 2 << 20) + wrong(moved, 480, PAGES, 2 << 20));
	}
	must(mprotect(moved + 100 * PAGE, 50 * PAGE, prot) == 0, "mprotect");

	must(mlock(early, 16 * PAGE) == 0, "mlock");
	printf("locked: %d\n", madvise(early, 8 * PAGE, MADV_DONTNEED));
	must(madvise(early, 8 * PAGE, 24 /* MADV_DONTNEED_LOCKED */) == 0, "madvise of locked memory");
	printf("dropped: %zu\n", wrong(early, 0, 8, 0) + wrong(early, 8, 16, 1 << 20));
	munlock(early, 16 * PAGE);
	mark(early, 0, 8, 1 << 20);
	printf("wiped: %d\n", madvise(early, PAGE, MADV_WIPEONFORK));
	must(mmap(early + 200 * PAGE, 8 * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED, "over");
	size_t zeros = 0;
	for (size_t i = 0; i < 8 * PAGE; i++)
		zeros += early[200 * PAGE + i] == 0;
	printf("mapped over: %zu\n", 8 * PAGE - zeros);
	printf("beside: %zu\n", wrong(early, 0, 200, 1 << 20) + wrong(early, 208, PAGES, 1 << 20));

	munmap(early, 100 * PAGE);
	printf("the rest: %zu\n", wrong(early, 208, PAGES, 1 << 20));
	munmap(early + 100 * PAGE, (PAGES - 100) * PAGE);
	munmap(moved, (PAGES + 16) * PAGE);
	printf("mappings left: %zu\n", mappings_of_file());
	unlink("archive.bin");
	return 0;
}
