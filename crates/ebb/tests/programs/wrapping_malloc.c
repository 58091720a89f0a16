/* An allocator to be preloaded, upon `__libc_malloc` and its kin: a word of its own lies before each block. A block
 * that it has not given, or that is freed without it, is found out. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

#define WORD 0x5eed5eed5eed5eedu

/* Before the block: how long it is, how far it lies in the other, and the word. */
struct before {
	size_t size, offset;
	uint64_t word, unused;
};

static struct before *before(void *at)
{
	struct before *before = (struct before *)at - 1;
	if (before->word != WORD)
		abort();
	return before;
}

static void *within(unsigned char *block, size_t offset, size_t size)
{
	if (!block)
		return NULL;
	((struct before *)(block + offset))[-1] = (struct before){size, offset, WORD, 0};
	return block + offset;
}

static void *inner(void *at)
{
	struct before *found = before(at);
	found->word = 0;
	return (unsigned char *)at - found->offset;
}

void *malloc(size_t size)
{
	return within(__libc_malloc(size + sizeof(struct before)), sizeof(struct before), size);
}

void *calloc(size_t count, size_t size)
{
	void *at = malloc(count * size);
	return at ? memset(at, 0, count * size) : NULL;
}

void free(void *at)
{
	if (at)
		__libc_free(inner(at));
}

void *realloc(void *at, size_t size)
{
	void *moved = malloc(size);
	if (at && moved) {
		size_t old = before(at)->size;
		memcpy(moved, at, old < size ? old : size);
		free(at);
	}
	return moved;
}

int posix_memalign(void **out, size_t align, size_t size)
{
	size_t offset = align < sizeof(struct before) ? sizeof(struct before) : align;
	*out = within(__libc_memalign(align, size + offset), offset, size);
	return *out ? 0 : ENOMEM;
}

void *aligned_alloc(size_t align, size_t size)
{
	void *at = NULL;
	posix_memalign(&at, align, size);
	return at;
}

size_t malloc_usable_size(void *at)
{
	return at ? before(at)->size : 0;
}
