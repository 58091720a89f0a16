/*
 * A library of its own with handlers of pthread_atfork, which use memory that is out: atfork SIZE_MIB. They
 * run around a fork of a process in which another thread uses the same memory. Prints what each saw.
 */
#define _GNU_SOURCE
#include <netdb.h>
#include <pthread.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, FORKS = 12 };

static uint64_t *memory;
static size_t pages;
static volatile int over;
static size_t wrong[3], written[3];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t word_of(size_t page, int i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * i * 0x2545f4914f6cdd1du;
}

/* Reads pages all over the memory, writes a word to each, and allocates. */
static void use(int who)
{
	for (size_t page = who; page < pages; page += 997) {
		wrong[who] += memory[page * WORDS + 5] != word_of(page, 5);
		memory[page * WORDS + 8 + who] = ++written[who];
	}
	char *more = malloc(300000);
	memset(more, who, 300000);
	free(more);
}

static void prepare(void)
{
	pthread_mutex_lock(&lock);
	use(0);
}

static void in_parent(void)
{
	use(1);
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	use(2);
	pthread_mutex_unlock(&lock);
}

static void *beside(void *argument)
{
	size_t *bad = argument;
	for (size_t page = 0; !over; page = (page + 7) % pages) {
		*bad += memory[page * WORDS + 9 + 8] != word_of(page, 17);
		if (page % 64 == 0) {
			pthread_mutex_lock(&lock);
			free(malloc(page * 100));
			pthread_mutex_unlock(&lock);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pages = (argc > 1 ? strtoul(argv[1], NULL, 0) : 96) * 256;
	alarm(50);
	/* libc keeps what it read of its configuration in memory from malloc, and looks at it in a fork. */
	printf("root is %d\n", getpwnam("root") ? (int)getpwnam("root")->pw_uid : -1);
	getservbyname("http", "tcp");
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < pages * WORDS; i++)
		memory[i] = word_of(i / WORDS, (int)(i % WORDS));
	pthread_atfork(prepare, in_parent, in_child);
	size_t bad = 0;
	pthread_t thread;
	pthread_create(&thread, NULL, beside, &bad);
	int status, failed = 0;
	for (int i = 0; i < FORKS; i++) {
		pid_t child = fork();
		if (child == 0) {
			size_t lost = 0;
			for (size_t page = 2; page < pages; page += 997)
				lost += memory[page * WORDS + 10] == word_of(page, 10);
			_exit(wrong[2] || lost || !getpwnam("root"));
		}
		waitpid(child, &status, 0);
		failed += child < 0 || status != 0;
	}
	over = 1;
	pthread_join(thread, NULL);
	size_t lost = 0;
	for (int who = 0; who < 2; who++) {
		size_t count = written[who] / FORKS * (FORKS - 1);
		for (size_t page = who; page < pages; page += 997)
			lost += memory[page * WORDS + 8 + who] != ++count;
	}
	printf("prepare %zu, parent %zu, thread %zu wrong; %zu lost; %d children failed\n", wrong[0], wrong[1], bad,
	       lost, failed);
	return 0;
}
