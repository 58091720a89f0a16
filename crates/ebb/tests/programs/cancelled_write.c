/*
 * Threads that are cancelled in pwrite and pwrite64: cancelled_write. Their handlers run. Prints what came of each.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static int file;

static void handler(void *name)
{
	printf("%s: the handler runs\n", (char *)name);
}

static void *thread(void *name)
{
	pthread_cleanup_push(handler, name);
	pthread_cancel(pthread_self());
	if (*(char *)name == '6')
		(void)!pwrite64(file, "x", 1, 0);
	else
		(void)!pwrite(file, "x", 1, 0);
	puts("not cancelled");
	pthread_cleanup_pop(0);
	return NULL;
}

int main(void)
{
	char *names[] = { "pwrite", "64" };
	file = memfd_create("written", 0);
	for (int i = 0; i < 2; i++) {
		pthread_t id;
		void *result = NULL;
		if (pthread_create(&id, NULL, thread, names[i]) != 0 || pthread_join(id, &result) != 0)
			return 1;
		printf("%s: %s\n", names[i], result == PTHREAD_CANCELED ? "cancelled" : "ended");
	}
	return 0;
}
