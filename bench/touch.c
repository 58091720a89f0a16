/*
 * Touches memory in known ways and prints a checksum that depends on every page, so that a
 * page lost, stale or swapped with another changes the output.
 *
 *   touch SIZE_MIB [RANDOM_WORDS_PER_PAGE] [SEED] [THREADS]
 *
 * Phases, each timed by itself on stderr as "phase NAME us_per_page N":
 *
 *   fill   writes every page: RANDOM_WORDS (of 512) random words, then a short pattern. The default
 *          of 128 compresses about 3:1.
 *   seq1   reads one word of every page, in order.
 *   seq2   does the same again.
 *   rand   does as many read-modify-writes as there are pages, at random pages.
 *
 * A last pass folds words of every page into the checksum. Threads divide the memory; a phase
 * takes as long as its slowest thread.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE_BYTES 4096
#define PAGE_WORDS (PAGE_BYTES / sizeof(uint64_t))
#define PHASES 4

static const char *const phase_names[PHASES] = { "fill", "seq1", "seq2", "rand" };

struct share {
	uint64_t *memory;
	uint64_t pages;
	unsigned random_words;
	uint64_t random; /* xorshift state */
	uint64_t sum;
	double seconds[PHASES];
};

static pthread_barrier_t together;

static double seconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t draw(struct share *s)
{
	uint64_t x = s->random;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return s->random = x;
}

static void fill(struct share *s)
{
	for (uint64_t page = 0; page < s->pages; page++) {
		uint64_t *word = s->memory + page * PAGE_WORDS;
		for (unsigned i = 0; i < PAGE_WORDS; i++)
			word[i] = i < s->random_words ? draw(s) : page + i % 8;
	}
}

static void read_in_order(struct share *s, unsigned word)
{
	for (uint64_t page = 0; page < s->pages; page++)
		s->sum = s->sum * 31 + s->memory[page * PAGE_WORDS + word];
}

static void update_at_random(struct share *s)
{
	for (uint64_t i = 0; i < s->pages; i++) {
		uint64_t *page = s->memory + draw(s) % s->pages * PAGE_WORDS;
		s->sum += page[PAGE_WORDS - 1]++;
	}
}

static void *work(void *argument)
{
	struct share *s = argument;
	for (int phase = 0; phase < PHASES; phase++) {
		pthread_barrier_wait(&together);
		double start = seconds_now();
		switch (phase) {
		case 0: fill(s); break;
		case 1: read_in_order(s, 7); break;
		case 2: read_in_order(s, 14); break;
		case 3: update_at_random(s); break;
		}
		s->seconds[phase] = seconds_now() - start;
	}
	pthread_barrier_wait(&together);
	for (uint64_t page = 0; page < s->pages; page++)
		for (unsigned i = 0; i < PAGE_WORDS; i += 37)
			s->sum = s->sum * 31 + s->memory[page * PAGE_WORDS + i];
	return NULL;
}

static uint64_t argument(int argc, char **argv, int i, uint64_t otherwise)
{
	return i < argc ? strtoull(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
	uint64_t pages = argument(argc, argv, 1, 0) * (1 << 20) / PAGE_BYTES;
	unsigned random_words = (unsigned)argument(argc, argv, 2, 128);
	uint64_t seed = argument(argc, argv, 3, 1);
	uint64_t threads = argument(argc, argv, 4, 1);
	if (pages == 0 || threads == 0 || threads > pages || random_words > PAGE_WORDS) {
		fprintf(stderr, "usage: touch SIZE_MIB [RANDOM_WORDS_PER_PAGE] [SEED] [THREADS]\n");
		return 2;
	}
	uint64_t *memory = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct share *shares = calloc(threads, sizeof *shares);
	pthread_t *ids = calloc(threads, sizeof *ids);
	if (memory == MAP_FAILED || !shares || !ids) {
		perror("touch: memory");
		return 1;
	}
	pthread_barrier_init(&together, NULL, (unsigned)threads);
	for (uint64_t i = 0; i < threads; i++) {
		shares[i] = (struct share){
			.memory = memory + pages / threads * i * PAGE_WORDS,
			.pages = pages / threads,
			.random_words = random_words,
			.random = (seed + i) * 0x9e3779b97f4a7c15u + 88172645463325252u,
		};
		if (pthread_create(&ids[i], NULL, work, &shares[i]) != 0) {
			perror("touch: thread");
			return 1;
		}
	}
	uint64_t sum = 0;
	double slowest[PHASES] = { 0 };
	for (uint64_t i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		sum = sum * 1099511628211u + shares[i].sum;
		for (int phase = 0; phase < PHASES; phase++)
			if (shares[i].seconds[phase] > slowest[phase])
				slowest[phase] = shares[i].seconds[phase];
	}
	for (int phase = 0; phase < PHASES; phase++)
		fprintf(stderr, "phase %s us_per_page %.3f\n", phase_names[phase],
			slowest[phase] * 1e6 / (double)(pages / threads));
	printf("checksum %016llx\n", (unsigned long long)sum);
	return 0;
}
