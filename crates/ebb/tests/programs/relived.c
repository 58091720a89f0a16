/*
 * A program that executes itself with the same arguments: relived MIB LIVES. Each life fills memory, as soon as it can.
 * Prints after each whether it stayed below three quarters of that in RAM.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A descriptor that lives on, and counts: arguments and environment have to stay. */
#define COUNTER 9

static long resident(void)
{
	long size = 0, there = 0;
	FILE *statm = fopen("/proc/self/statm", "r");
	if (statm == NULL || fscanf(statm, "%ld %ld", &size, &there) != 2)
		exit(2);
	fclose(statm);
	return there >> 8;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	long mib = atol(argv[1]);
	int life = 0;
	if (fcntl(COUNTER, F_GETFD) < 0 && dup2(memfd_create("lives", 0), COUNTER) != COUNTER)
		return 2;
	pread(COUNTER, &life, sizeof life, 0);
	unsigned char *memory =
		mmap(NULL, (size_t)mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 1 + life, (size_t)mib << 20);
	printf("life %d: %s\n", life, resident() < mib / 4 * 3 ? "paged" : "all in RAM");
	fflush(stdout);
	if (++life == atoi(argv[2]))
		return 0;
	if (pwrite(COUNTER, &life, sizeof life, 0) != sizeof life)
		return 2;
	execv("/proc/self/exe", argv);
	return 3;
}
