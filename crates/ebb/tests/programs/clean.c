/*
 * Scans memory again and again, and changes a page here and there in every way there is: clean SIZE_MIB
 * ROUNDS. The pages around it were only read since they came in. Every page is looked at in every round.
 * Prints how many changes there were of each kind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, UNIT = 16, RARE = 401 };
enum { MOVING = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP };
/* Nearly all addresses there are. */
#define ALL (((size_t)1 << 47) - UNIT * PAGE)
enum { STORE, READ, RECV, VM_WRITEV, DIRECT, PROTECT, MOVE, REFUSED, DROP, THREAD, FORK,
	WAYS };
static const char *const names[WAYS] = { "store", "read", "recv", "process_vm_writev",
	"O_DIRECT", "mprotect", "mremap", "mremap that fails", "MADV_DONTNEED", "thread", "fork" };

static uint64_t *memory, *elsewhere;
static uint32_t *version;
static size_t pages;
static int pipes[2], sockets[2], direct_file;

static uint64_t *at(size_t page) { return memory + page * WORDS; }

static uint64_t word(size_t page, uint32_t version, int i)
{
	return (page * 2654435761u + version) * (i < 100 ? (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u : 1);
}

static void fill(uint64_t *to, size_t page, uint32_t version)
{
	for (int i = 0; i < WORDS; i++)
		to[i] = word(page, version, i);
}

static void look(size_t page, const char *when)
{
	for (int i = 0; i < WORDS; i++)
		if (at(page)[i] != word(page, version[page], i)) {
			fprintf(stderr, "page %zu, word %d: %s, it is not what it was\n", page, i, when);
			exit(1);
		}
}

static void *store(void *page)
{
	fill(at((size_t)page), (size_t)page, version[(size_t)page]);
	return 0;
}

static void must(int good, const char *what);

/* mremap by a system call of its own: who has clean copies is not told that they are not protected now. */
static void moved(void *from, void *to, size_t bytes)
{
	register long flags __asm__("r10") = MOVING;
	register long target __asm__("r8") = (long)to;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_mremap), "D"(from), "S"(bytes), "d"(bytes), "r"(flags), "r"(target)
			 : "rcx", "r11", "memory");
	must(result == (long)to, "mremap without libc");
}

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void change(size_t page, int way)
{
	static _Alignas(PAGE) uint64_t content[WORDS];
	struct iovec from = { content, PAGE }, to = { at(page), PAGE };
	pthread_t thread;
	size_t unit = page / UNIT * UNIT, bytes = UNIT * PAGE;

	if (way == FORK) {
		pid_t child = fork();
		must(child >= 0, "fork");
		if (!child) {
			version[page]++;
			fill(at(page), page, version[page]);
			for (size_t p = unit; p < unit + UNIT; p++)
				look(p, "in a child");
			_exit(0);
		}
		int status;
		must(waitpid(child, &status, 0) == child && !status, "the child");
		look(page, "after a child wrote its own");
		return;
	}
	version[page]++;
	fill(content, page, version[page]);
	switch (way) {
	case STORE:
		store((void *)page);
		break;
	case READ:
		must(write(pipes[1], content, PAGE) == PAGE && read(pipes[0], at(page), PAGE) == PAGE, "read");
		break;
	case RECV:
		must(send(sockets[1], content, PAGE, 0) == PAGE && recv(sockets[0], at(page), PAGE, MSG_WAITALL) == PAGE, "recv");
		break;
	case VM_WRITEV:
		must(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == PAGE, "process_vm_writev");
		break;
	case DIRECT:
		must(pwrite(direct_file, content, PAGE, 0) == PAGE && pread(direct_file, at(page), PAGE, 0) == PAGE, "O_DIRECT");
		break;
	case PROTECT:
		must(!mprotect(at(unit), bytes, PROT_READ), "mprotect");
		must(!mprotect(at(unit), bytes, PROT_READ | PROT_WRITE), "mprotect");
		store((void *)page);
		break;
	case MOVE:
		/* Each place stays mapped, so that nobody else's memory comes to lie there. */
		must(mremap(at(unit), bytes, bytes, MOVING, elsewhere) == elsewhere, "mremap");
		fill(elsewhere + (page - unit) * WORDS, page, version[page]);
		must(mremap(elsewhere, bytes, bytes, MOVING, at(unit)) == at(unit), "mremap");
		break;
	case REFUSED:
		if (getenv("EBB_CHECK")) {
			/* It would be found out before the call puts it right. */
			store((void *)page);
			break;
		}
		/* A call that fails half way has moved pages forth and back. This one fails at once, so they are
		   moved by others before, without libc. */
		moved(at(unit), elsewhere, bytes);
		moved(elsewhere, at(unit), bytes);
		must(mremap(at(unit), bytes, ALL, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM, "mremap refused");
		store((void *)page);
		break;
	case DROP:
		must(!madvise(at(page), PAGE, MADV_DONTNEED), "madvise");
		for (int i = 0; i < WORDS; i++)
			must(at(page)[i] == 0, "a page that was dropped is not zero");
		store((void *)page);
		break;
	case THREAD:
		must(!pthread_create(&thread, 0, store, (void *)page) && !pthread_join(thread, 0), "a thread");
		break;
	}
}

int main(int argc, char **argv)
{
	pages = (size_t)(argc > 1 ? atoi(argv[1]) : 64) * 256;
	int rounds = argc > 2 ? atoi(argv[2]) : 4;
	int changes[WAYS] = { 0 };

	memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	elsewhere = mmap(0, UNIT * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	version = calloc(pages, sizeof *version);
	must(memory != MAP_FAILED && elsewhere != MAP_FAILED && version, "memory");
	must(!pipe(pipes) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), "pipes");
	direct_file = open("direct", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
	for (size_t page = 0; page < pages; page++)
		fill(at(page), page, 0);
	for (int round = 0; round < rounds; round++)
		for (size_t page = 0; page < pages; page++) {
			look(page, "in a walk");
			/* The page behind, which was read a moment ago, or one a unit behind. */
			size_t chosen = page - (page % 3 ? 1 : UNIT);
			if (page < UNIT || (page * 7 + (size_t)round * 13) % RARE)
				continue;
			int way = (int)((page * 7 + (size_t)round * 13) / RARE % WAYS);
			if (way == DIRECT && direct_file < 0)
				way = STORE;
			change(chosen, way);
			changes[way]++;
		}
	for (int way = 0; way < WAYS; way++)
		printf("%s %d\n", names[way], changes[way]);
	return 0;
}
