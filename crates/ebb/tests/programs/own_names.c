/* A program with functions of its own that are named as libc's, which ISO C allows:
 *   own_names MIB    fills MIB of memory, looks at it, and grows a block until it has to move
 * Prints whether all of it is right, and whether a `realloc` that succeeded left its error. */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

static volatile size_t calls;

/* Nobody means these. */
ssize_t read(int fd, void *buffer, size_t bytes)
{
	(void)fd, (void)buffer, (void)bytes;
	calls++;
	return 0;
}

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	(void)fds, (void)count, (void)timeout;
	calls++;
	return 0;
}

ssize_t send(int fd, const void *bytes, size_t len, int flags)
{
	(void)fd, (void)bytes, (void)len, (void)flags;
	calls++;
	return 0;
}

/* As fakeroot has it. */
int getresuid(uid_t *real, uid_t *effective, uid_t *saved)
{
	*real = *effective = *saved = 54321;
	calls++;
	return 0;
}

int main(int argc, char **argv)
{
	size_t words = ((argc > 1 ? strtoul(argv[1], NULL, 0) : 96) << 20) / 8, wrong = 0;
	uint64_t *memory = malloc(words * 8), x = 88172645463325252u;
	for (size_t i = 0; i < words; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		memory[i] = x;
	}
	x = 88172645463325252u;
	for (size_t i = 0; i < words; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		wrong += memory[i] != x;
	}
	printf("wrong: %zu, calls of its own functions: %zu\n", wrong, calls);
	errno = 0;
	char *block = NULL, *behind[32];
	for (size_t i = 0; i < 32; i++) {
		block = realloc(block, (i + 1) << 18);
		/* What the next one finds in its way. */
		behind[i] = malloc(2 << 20);
		memset(block, 1, (i + 1) << 18);
	}
	printf("out of memory: %d\n", errno == ENOMEM);
	for (size_t i = 0; i < 32; i++)
		free(behind[i]);
	free(block);
	return wrong != 0;
}
