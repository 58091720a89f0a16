/* The first thread ends, and another fills MIB. Prints how many pages it finds as it wrote them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096

static size_t pages;

static void *fill(void *arg)
{
	size_t good = 0;
	char *p = malloc(pages * PAGE);
	(void)arg;
	/* Until the first is gone. */
	usleep(200000);
	for (size_t i = 0; i < pages; i++) {
		memcpy(p + i * PAGE, &i, sizeof i);
		if (i % 256 == 0)
			usleep(1000);
	}
	for (size_t i = 0; i < pages; i++)
		good += !memcmp(p + i * PAGE, &i, sizeof i);
	printf("%zu good\n", good);
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	pthread_t id;
	pages = (size_t)atoi(argc > 1 ? argv[1] : "1") * (1048576 / PAGE);
	if (pthread_create(&id, NULL, fill, NULL))
		return 2;
	pthread_exit(NULL);
}
