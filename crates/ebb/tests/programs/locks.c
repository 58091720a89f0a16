/*
 * Locks memory as a user who may lock 64 KiB. More is refused, and leaves as any other memory does.
 * Locked memory stays, and leaves once it is unlocked.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, FEW = 4 };

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	return p;
}

static int there(char *start)
{
	unsigned char pages[FEW];
	int n = 0;
	mincore(start, FEW * PAGE, pages);
	for (int i = 0; i < FEW; i++)
		n += pages[i] & 1;
	return n;
}

static void touch(char *start, size_t len)
{
	for (size_t i = 0; i < len; i += PAGE)
		start[i]++;
}

static void say(const char *what, long result)
{
	printf("%s: %ld errno %d\n", what, result, result < 0 ? errno : 0);
}

int main(int argc, char **argv)
{
	size_t len = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[2];
	const struct rlimit limit = {64 << 10, 64 << 10};
	syscall(SYS_capget, &header, caps);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	if (syscall(SYS_capset, &header, caps) != 0 || setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		return 3;

	char *large = map(len), *more = map(len);
	char *kept = map(FEW * PAGE), *back = map(FEW * PAGE), *later = map(FEW * PAGE);
	touch(large, len);
	touch(kept, FEW * PAGE);
	touch(back, FEW * PAGE);
	say("mlock of too much", mlock(large, len));
	say("mlock2 of too much", mlock2(large, len, MLOCK_ONFAULT));
	say("by number", syscall(SYS_mlock, large, len));
	/* Up to a hole. */
	munmap(back + (FEW - 1) * PAGE, PAGE);
	say("with a hole", mlock(back, FEW * PAGE));
	say("kept", mlock(kept, FEW * PAGE));
	say("later", mlock2(later, FEW * PAGE, MLOCK_ONFAULT));
	printf("%d there\n", there(later));
	touch(later, FEW * PAGE);
	int private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED;
	char *mapped = mmap(NULL, FEW * PAGE, PROT_READ | PROT_WRITE, private, -1, 0);
	printf("mapped locked: %d there\n", there(mapped));
	say("too much", (long)mmap(NULL, len, PROT_READ | PROT_WRITE, private, -1, 0));
	touch(mapped, FEW * PAGE);
	touch(more, len);
	touch(large, len);
	touch(more, len);
	printf("locked: %d, %d and %d there\n", there(kept), there(later), there(mapped));
	say("unlock all", munlockall());
	/* New memory: what walks bring back makes little leave but itself. */
	touch(map(len), len);
	touch(map(len), len);
	/* On standard error: alone, all of it stays. */
	fprintf(stderr, "unlocked: %d, %d and %d there, of the refused %d\n", there(kept), there(later),
		there(mapped), there(more));
	for (size_t i = 0; i < len; i += PAGE)
		if (large[i] != 2 || more[i] != 2)
			return 4;
	printf("%d %d %d\n", kept[0], later[PAGE], mapped[PAGE]);
	return 0;
}
