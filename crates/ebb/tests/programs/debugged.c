/* Blocks under glibc's allocator for debugging (LD_PRELOAD=libc_malloc_debug.so.0), which stands upon `__libc_malloc`:
 *   debugged trace    what MALLOC_TRACE names gets a line for each
 *   debugged check    each has a header before it
 *   debugged none     as it comes
 * Prints what of them is right. */
#include <malloc.h>
#include <mcheck.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *thread(void *unused)
{
	(void)unused;
	free(strdup("of another thread"));
	return NULL;
}

/* Across all sizes at which blocks move from one kind of memory to another. */
static int blocks(void)
{
	const size_t sizes[] = {1, 100, 10 << 10, 3 << 20, 40 << 20, 2 << 20, 500 << 10, 20};
	unsigned char *block = calloc(3, 3), *aligned = aligned_alloc(4096, 10000);
	int right = block[8] == 0 && (size_t)aligned % 4096 == 0;
	block[0] = 7;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		block = realloc(block, sizes[i]);
		block[sizes[i] - 1] = 7;
		right &= block[0] == 7;
		unsigned char *other = malloc(sizes[i]);
		right &= malloc_usable_size(other) >= sizes[i] || sizes[i] > 1 << 20;
		memset(other, 1, sizes[i]);
		free(other);
	}
	memset(aligned, 1, 10000);
	free(aligned);
	free(block);
	pthread_t other;
	pthread_create(&other, NULL, thread, NULL);
	pthread_join(other, NULL);
	return right;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	if (strcmp(how, "check") == 0)
		printf("%d\n", mcheck(NULL));
	if (strcmp(how, "trace") == 0)
		mtrace();
	int right = blocks();
	muntrace();
	printf("right: %d\n", right);
	if (strcmp(how, "trace") == 0) {
		char line[256];
		int given = 0, taken = 0;
		FILE *log = fopen(getenv("MALLOC_TRACE"), "r");
		while (fgets(line, sizeof line, log)) {
			given += strstr(line, " + ") != NULL || strstr(line, " > ") != NULL;
			taken += strstr(line, " - ") != NULL || strstr(line, " < ") != NULL;
		}
		printf("given %d, taken %d\n", given, taken);
	}
	return 0;
}
