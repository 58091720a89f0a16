/*
 * Threads that allocate, fill, check, pass on and free blocks of many sizes, more in all than
 * the budget holds. Every block carries its own pattern; a wrong byte ends the program.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 4096, STEPS = 24000, MOST = 512 };

static int steps;

struct block {
	size_t words;
	uint64_t seed;
	uint64_t *memory;
};

static struct block shared[BLOCKS];
static pthread_mutex_t locks[BLOCKS];

static void check(const struct block *b)
{
	for (size_t i = 0; i < b->words; i++)
		if (b->memory[i] != b->seed * 31 + i % 50) {
			fprintf(stderr, "wrong word %zu of %zu\n", i, b->words);
			abort();
		}
}

static void *work(void *argument)
{
	uint64_t random = (uintptr_t)argument * 0x9e3779b97f4a7c15u + 1;
	uint64_t checked = 0;
	for (int step = 0; step < steps; step++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		struct block *b = &shared[random % BLOCKS];
		pthread_mutex_lock(&locks[random % BLOCKS]);
		if (b->memory) {
			check(b);
			checked++;
			free(b->memory);
		}
		/* Mostly small ones, now and then a large one with a mapping of its own. */
		b->words = random % 97 == 0 ? 40000 : 8 + (random >> 20) % 6000;
		b->seed = random;
		b->memory = malloc(b->words * 8);
		if (!b->memory)
			abort();
		for (size_t i = 0; i < b->words; i++)
			b->memory[i] = b->seed * 31 + i % 50;
		pthread_mutex_unlock(&locks[random % BLOCKS]);
	}
	return (void *)(uintptr_t)checked;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 4;
	pthread_t ids[MOST];
	/* The same in every order of the threads: each visit of a block but the first checks it. */
	uintptr_t checked = 0;
	if (threads < 1 || threads > MOST)
		return 2;
	steps = STEPS / threads;
	for (int i = 0; i < BLOCKS; i++)
		pthread_mutex_init(&locks[i], NULL);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)(i + 1)) != 0)
			return 1;
	for (int i = 0; i < threads; i++) {
		void *result;
		pthread_join(ids[i], &result);
		checked += (uintptr_t)result;
	}
	for (int i = 0; i < BLOCKS; i++)
		if (shared[i].memory)
			check(&shared[i]);
	printf("%d threads: %zu blocks were as they had been written\n", threads, (size_t)checked);
	return 0;
}
