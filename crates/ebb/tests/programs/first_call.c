/*
 * A program's first call of the allocator, which may be any of them.
 *
 *   first_call NUMBER
 */
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	void *block = NULL;
	switch (atoi(argv[1])) {
	case 0: free(NULL); break;
	case 1: block = realloc(NULL, 100); break;
	case 2: if (malloc_usable_size(NULL) != 0) return 9; break;
	case 3: block = calloc(10, 10); break;
	case 4: block = aligned_alloc(64, 128); break;
	case 5: if (posix_memalign(&block, 64, 100) != 0) return 8; break;
	case 6: block = reallocarray(NULL, 10, 10); break;
	case 7: block = realloc(NULL, 0); break;
	case 8: block = malloc(0); break;
	case 9: block = memalign(4096, 10); break;
	case 10: block = valloc(100); break;
	case 11: block = realloc(NULL, 300000); break;
	case 12: block = malloc(10 << 20); break;
	}
	if (block != NULL) {
		*(char *)block = 1;
		block = realloc(block, 5000);
	}
	free(block);
	return write(1, "right\n", 6) == 6 ? 0 : 1;
}
