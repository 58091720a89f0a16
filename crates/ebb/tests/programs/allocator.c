/* A program with an allocator of its own, jemalloc, of which it uses more than the malloc family, and frees by
   the one what it has of the other. Fills the mebibytes that are asked for and checks them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 24 << 10, THREADS = 2 };

static void *(*mallocx)(size_t, int);
static void *(*rallocx)(void *, size_t, int);
static void (*dallocx)(void *, int);
static size_t (*sallocx)(const void *, int);
static int blocks;

static void *function(const char *name)
{
	void *at = dlsym(RTLD_DEFAULT, name);
	if (!at) {
		fprintf(stderr, "there is no %s\n", name);
		exit(2);
	}
	return at;
}

static void fill(unsigned char *block, unsigned seed)
{
	for (int i = 0; i < BLOCK; i += 8) {
		/* A quarter of each page is hard to compress. */
		uint64_t word = i % 4096 < 1024 ? (i + 1) * (seed + 1) * 0x9e3779b97f4a7c15 : seed;
		memcpy(block + i, &word, 8);
	}
}

static uint64_t sum(const unsigned char *block)
{
	uint64_t sum = 0, word;
	for (int i = 0; i < BLOCK; i += 8) {
		memcpy(&word, block + i, 8);
		sum = sum * 31 + word;
	}
	return sum;
}

static void *work(void *arg)
{
	uintptr_t seed = (uintptr_t)arg, total = 0;
	unsigned char **block = calloc(blocks, sizeof *block);
	for (int i = 0; i < blocks; i++) {
		void *small = i % 2 ? malloc(100) : mallocx(100, 0);
		if (malloc_usable_size(small) != sallocx(small, 0))
			abort();
		block[i] = i % 2 ? rallocx(small, BLOCK, 0) : realloc(small, BLOCK);
		if (malloc_usable_size(block[i]) < BLOCK)
			abort();
		fill(block[i], seed + i);
	}
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < blocks; i++)
			total = total * 31 + sum(block[i]);
	for (int i = 0; i < blocks; i++)
		if (i % 3)
			free(block[i]);
		else
			dallocx(block[i], 0);
	free(block);
	return (void *)total;
}

int main(int argc, char **argv)
{
	pthread_t thread[THREADS];
	mallocx = function("mallocx");
	rallocx = function("rallocx");
	dallocx = function("dallocx");
	sallocx = function("sallocx");
	blocks = (argc > 1 ? atoi(argv[1]) : 64) * 1024 / (BLOCK >> 10) / THREADS;
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i * 1000003));
	for (int i = 0; i < THREADS; i++) {
		void *total;
		pthread_join(thread[i], &total);
		printf("%lu\n", (unsigned long)total);
	}
	fflush(stdout);
	blocks /= 4;
	pid_t child = fork();
	if (!child) {
		printf("%lu\n", (unsigned long)work((void *)7));
		return 0;
	}
	int status;
	waitpid(child, &status, 0);
	return status ? 3 : 0;
}
