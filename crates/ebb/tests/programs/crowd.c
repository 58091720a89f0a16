/*
 * Many threads that fill memory at the same time, once a line has been read: by a process that had enough before
 * to be known to the supervisor. Each block holds what it should at the end.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 64, BLOCKS = 48, BYTES = 64 << 10 };

static unsigned char *blocks[THREADS][BLOCKS];

static void *fill(void *number)
{
	uintptr_t thread = (uintptr_t)number;
	for (int b = 0; b < BLOCKS; b++) {
		blocks[thread][b] = malloc(BYTES);
		if (!blocks[thread][b])
			exit(1);
		memset(blocks[thread][b], thread + b + 1, BYTES);
		for (int i = 0; i < BYTES; i += 64)
			*(uint32_t *)(blocks[thread][b] + i) = thread * 1000003 + b * 10007 + i;
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	char *some = malloc(4 << 20);
	if (!some)
		return 1;
	memset(some, 1, 4 << 20);
	usleep(300000);
	printf("%d\n", (int)getpid());
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	for (uintptr_t t = 0; t < THREADS; t++)
		if (pthread_create(&threads[t], NULL, fill, (void *)t))
			return 1;
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	unsigned right = 0;
	for (int t = 0; t < THREADS; t++)
		for (int b = 0; b < BLOCKS; b++)
			right += blocks[t][b][63] == (unsigned char)(t + b + 1)
				&& *(uint32_t *)(blocks[t][b] + 6400) == (uint32_t)t * 1000003 + b * 10007 + 6400;
	printf("%u\n", right + some[right] - 1);
	return 0;
}
