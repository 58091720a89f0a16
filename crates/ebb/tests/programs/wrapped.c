/* Calls functions that wrapping.c stands before. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("setuid: %d\n", setuid(getuid()));
	return 0;
}
