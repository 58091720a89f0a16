/*
 * Instructions that each need four pages of data at once: eight bytes across the end of a page are copied
 * to a place across the end of another. Locked memory leaves little room for that.
 *
 *     spans LOCKED_KIB THREADS ROUNDS
 *
 * Each thread has a region of its own, and knows what is to be where. Prints "as it should be" in the end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ENDS = 1024, MOST = 16 };

struct job {
	char *base;
	/* Whose word lies at each end. */
	uint16_t *from;
	unsigned long rounds;
	uint64_t seed;
};

static uint64_t word(unsigned end)
{
	return (end + 1) * 0x9e3779b97f4a7c15u;
}

static char *end_of(struct job *job, unsigned end)
{
	return job->base + (size_t)(end + 1) * PAGE - 4;
}

static unsigned some(struct job *job)
{
	job->seed = job->seed * 6364136223846793005u + 1442695040888963407u;
	return (job->seed >> 33) % ENDS;
}

static void copy(void *to, const void *from)
{
	__asm__ volatile(
#ifdef __x86_64__
		"movsq"
		: "+D"(to), "+S"(from)
		:
		: "memory"
#else
		""
		:
		: "r"(memcpy(to, from, 8))
		: "memory"
#endif
	);
}

static void *run(void *argument)
{
	struct job *job = argument;
	for (unsigned end = 0; end < ENDS; end++) {
		uint64_t content = word(end);
		memcpy(end_of(job, end), &content, 8);
		job->from[end] = end;
	}
	for (unsigned long round = 0; round < job->rounds; round++) {
		unsigned from = some(job), to = some(job);
		copy(end_of(job, to), end_of(job, from));
		job->from[to] = job->from[from];
	}
	for (unsigned end = 0; end < ENDS; end++) {
		uint64_t content = word(job->from[end]);
		if (memcmp(end_of(job, end), &content, 8)) {
			printf("end %u does not hold what it should\n", end);
			exit(1);
		}
	}
	return NULL;
}

static void *memory(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		exit(2);
	return at;
}

int main(int argc, char **argv)
{
	size_t locked = strtoul(argv[1], NULL, 10) << 10;
	unsigned threads = atoi(argv[2]);
	static uint16_t from[MOST][ENDS];
	struct job jobs[MOST];
	pthread_t ids[MOST];
	if (argc < 4 || threads < 1 || threads > MOST)
		return 2;
	if (locked && mlock(memory(locked), locked))
		return 3;
	for (unsigned i = 0; i < threads; i++) {
		char *base = memory((size_t)(ENDS + 1) * PAGE);
		/* Noise, so that it does not compress. */
		uint64_t noise = i + 1;
		for (size_t at = 0; at < (size_t)(ENDS + 1) * PAGE; at += 8) {
			noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
			memcpy(base + at, &noise, 8);
		}
		jobs[i] = (struct job){base, from[i], strtoul(argv[3], NULL, 10), i + 1};
		if (pthread_create(&ids[i], NULL, run, &jobs[i]))
			return 2;
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	puts("as it should be");
	return 0;
}
