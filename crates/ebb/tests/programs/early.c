/*
 * A program with a sigaction of its own, as clang's sanitizers have one: early. It is ready once the program has begun.
 * Prints how often it was called before that.
 */
#include <signal.h>
#include <stdio.h>

static int calls;

int sigaction(int signal, const struct sigaction *action, struct sigaction *before)
{
	(void)signal, (void)action, (void)before;
	calls++;
	return -1;
}

int main(void)
{
	printf("%d calls before it began\n", calls);
	return 0;
}
