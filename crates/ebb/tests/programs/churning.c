/*
 * Twelve children that make memory calls in four threads each, for ever, beside memory that pages. Whenever they are
 * killed some are in the midst of one.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHILDREN = 12, THREADS = 4, BYTES = 8 << 20, PAGE = 4096 };
#define READ_WRITE (PROT_READ | PROT_WRITE)

static void *churn(void *nothing)
{
	for (;;) {
		size_t bytes = 16 * PAGE;
		char *part = mmap(NULL, bytes, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mprotect(part, PAGE, PROT_READ);
		mprotect(part, PAGE, READ_WRITE);
		munmap(part, bytes);
	}
	return nothing;
}

static void child(int number)
{
	char *memory = mmap(NULL, BYTES, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, number + 1, BYTES);
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;
		pthread_create(&thread, NULL, churn, NULL);
	}
	for (;;) {
		for (size_t at = 0; at < BYTES; at += PAGE)
			memory[at]++;
		usleep(1000);
	}
}

int main(void)
{
	for (int i = 0; i < CHILDREN; i++)
		if (fork() == 0)
			child(i);
	for (;;)
		pause();
}
