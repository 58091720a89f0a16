/*
 * Pages of which the program says with MADV_FREE that it needs them no more. Says how many read as zeros at once.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 64 };

int main(void)
{
	char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int zeros = 0;
	if (memory == MAP_FAILED)
		return 1;
	memset(memory, 7, PAGES * PAGE);
	if (madvise(memory, PAGES * PAGE, MADV_FREE))
		return 1;
	for (int page = 0; page < PAGES; page++)
		zeros += memory[page * PAGE] == 0;
	printf("%d\n", zeros);
	return 0;
}
