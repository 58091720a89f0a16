/* Calls functions that wrapping.c stands before, and prints what they answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define IN_CHILD(call)                                        \
	do {                                                  \
		int status;                                   \
		pid_t child = vfork();                        \
		if (child == 0) {                             \
			call;                                 \
			_exit(9);                             \
		}                                             \
		waitpid(child, &status, 0);                   \
		printf("%s: %d\n", #call, WEXITSTATUS(status)); \
	} while (0)

int main(void)
{
	char *argv[] = {"sh", "-c", "exit 7", NULL}, name[16] = "", file[] = "/tmp/wrapped-XXXXXX";
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("setuid: %d\n", setuid(getuid()));
	printf("syscall: %d\n", syscall(SYS_getpid) == getpid());
	printf("syscall: %ld", syscall(SYS_close, -1));
	printf(", %d\n", errno == EBADF);
	/* Six arguments, the last of which is on the stack. */
	printf("syscall: %ld\n", syscall(SYS_futex, name, 5 /* FUTEX_WAKE_OP */, 1, 1, name, 0x0));
	printf("prctl: %d", prctl(PR_SET_NAME, "a name", 0, 0, 0));
	printf(", %d", prctl(PR_GET_NAME, name, 0, 0, 0));
	printf(" %s\n", name);
	int fd = mkstemp(file);
	printf("pwrite64: %d\n", (int)pwrite64(fd, "abc", 3, 1));
	printf("pwrite: %d\n", (int)pwrite(fd, "abc", 3, 4));
	unlink(file);
	IN_CHILD(execv("/bin/sh", argv));
	IN_CHILD(execvp("sh", argv));
	IN_CHILD(execlp("sh", "sh", "-c", "exit 6", NULL));
	IN_CHILD(execl("/bin/sh", "sh", "-c", "exit 5", NULL));
	IN_CHILD(execv("/no/such/file", argv));
	return 0;
}
