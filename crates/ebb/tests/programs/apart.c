/*
 * Where memory lies that the program has not mapped itself: apart SIZE_MIB. A hole is made below a mapping that grows
 * down, before the memory is filled. Prints how many foreign mappings lie near the program's, in it and in a child,
 * and whether the mapping grew; to standard error, how many there are.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, NEAR = MIB, MANY = 512 };

struct range {
	uintptr_t start, end;
};

struct list {
	struct range ranges[MANY];
	int count;
};

static struct list known;

static void add(struct list *list, uintptr_t start, uintptr_t end)
{
	if (list->count == MANY)
		abort();
	list->ranges[list->count++] = (struct range){ start, end };
}

/* Nearer to a range of the list than that. */
static int near(const struct list *list, struct range range, uintptr_t distance)
{
	for (int i = 0; i < list->count; i++)
		if (range.start < list->ranges[i].end + distance && list->ranges[i].start < range.end + distance)
			return 1;
	return 0;
}

/* Without malloc: its memory is the program's too. */
static void mappings(struct list *list)
{
	static char text[1 << 18];
	size_t length = 0;
	ssize_t got;
	int fd = open("/proc/self/maps", O_RDONLY);
	while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
		length += got;
	close(fd);
	text[length] = 0;
	list->count = 0;
	for (char *line = text; *line; line = strchr(line, '\n') + 1) {
		uintptr_t start, end;
		int name = 0;
		sscanf(line, "%lx-%lx %*s %*s %*s %*s%n", &start, &end, &name);
		/* The kernel's own mapping for asynchronous reads lies where the kernel likes. */
		if (strncmp(line + name + strspn(line + name, " "), "/[aio]", 6) != 0)
			add(list, start, end);
	}
}

static int foreign_nearby(const char *who)
{
	static struct list now;
	int foreign = 0, nearby = 0;
	mappings(&now);
	for (int i = 0; i < now.count; i++) {
		if (near(&known, now.ranges[i], 0))
			continue;
		foreign++;
		nearby += near(&known, now.ranges[i], NEAR);
	}
	fprintf(stderr, "%s: %d foreign mappings\n", who, foreign);
	return nearby;
}

static uint64_t *fill(uint64_t *memory, size_t words, int check)
{
	uint64_t x = 88172645463325252u;
	for (size_t i = 0; i < words; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		if (check && memory[i] != x)
			puts("WRONG");
		memory[i] = x;
	}
	return memory;
}

static char *mapping(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		exit(2);
	return at;
}

int main(int argc, char **argv)
{
	static char out[4096];
	setvbuf(stdout, out, _IOLBF, sizeof out);
	size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20;
	mappings(&known);
	/* A heap that is there before. */
	free(malloc(100));
	char *memory = mapping(bytes);
	add(&known, (uintptr_t)memory, (uintptr_t)memory + bytes);
	/* Two holes. A mapping grows down into the first one, as far as the usual limit of a stack lets it (8 MiB). */
	size_t room = 16 * MIB, begins = 64 << 10, grown = 6 * MIB;
	char *low = mapping(room), *hole = mapping(room);
	munmap(low, room);
	munmap(hole, room);
	char *top = mmap(low + room - begins, begins, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN, -1, 0);
	top += begins;
	add(&known, (uintptr_t)low, (uintptr_t)low + room);
	add(&known, (uintptr_t)hole, (uintptr_t)hole + room);
	fill((uint64_t *)memory, bytes / 8, 0);
	fill((uint64_t *)memory, bytes / 8, 1);
	static struct list now;
	mappings(&now);
	int unasked = 0;
	for (int i = 0; i < now.count; i++)
		unasked += now.ranges[i].start >= (uintptr_t)hole && now.ranges[i].end <= (uintptr_t)hole + room;
	printf("%d in the hole, %d nearby\n", unasked, foreign_nearby("parent"));
	for (char *at = top - PAGE; at >= top - grown; at -= PAGE)
		*at = 1;
	puts("grown");
	if (fork() == 0) {
		fill((uint64_t *)memory, bytes / 8, 1);
		printf("%d nearby in a child\n", foreign_nearby("child"));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	return 0;
}
