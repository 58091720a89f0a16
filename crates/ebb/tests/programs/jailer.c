/*
 * A launcher that lets programs have the calls of every dynamic program alone: jailer. A filter ends whoever calls
 * process_vm_readv. Then it starts /bin/true by path, by name and by a spawn, and asks for a program at a bad address.
 * Where a name is looked for in PATH, the filter also ends who looks in the present directory. Last a file is written
 * beside memory below 4 GiB, and the filter ends who asks what its descriptor is. Prints how each ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void be_filtered(int by_name)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 6, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_readlinkat, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, by_name ? SYS_openat : SYS_process_vm_readv, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)AT_FDCWD, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_PATH, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		_exit(99);
}

static void start(int how)
{
	char *const args[] = { "true", NULL };
	const char *volatile nowhere = (const char *)16;
	pid_t child;
	int status = 0;
	be_filtered(how == 1 || how == 2);
	switch (how) {
	case 0:
		execv("/bin/true", args);
		break;
	case 1:
		execvp("true", args);
		break;
	case 2:
		if (posix_spawnp(&child, "true", NULL, NULL, args, environ) == 0 && waitpid(child, &status, 0) == child)
			_exit(status != 0);
		break;
	case 3:
		execve(nowhere, args, environ);
		_exit(errno == EFAULT ? 0 : 3);
	case 4:
		status = memfd_create("written", 0);
		_exit(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0) == MAP_FAILED
		      || pwrite(status, "1", 1, 8192) != 1);
	}
	_exit(98);
}

int main(void)
{
	for (int how = 0; how < 5; how++) {
		int status;
		pid_t child = fork();
		if (child == 0)
			start(how);
		waitpid(child, &status, 0);
		printf("%d: %x\n", how, status);
	}
	return 0;
}
