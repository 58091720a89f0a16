/*
 * Filters of the program's own for calls that service makes too: filters HOW SIZE_MIB. HOW is one of refuse (EPERM),
 * trap (a handler refuses) and ask (another process lets them pass). For each call a child installs a filter, reads
 * memory that is out, makes memory calls, and forks a child that reads it too. Prints for each what was wrong, and how
 * both ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CALL(name) { #name, SYS_##name }
static const struct {
	const char *name;
	int number;
} calls[] = {
	CALL(mmap), CALL(madvise), CALL(ioctl), CALL(openat), CALL(pread64), CALL(prctl),
	CALL(getrandom), CALL(sched_getaffinity), CALL(process_vm_readv), CALL(gettid), CALL(rt_sigprocmask),
	CALL(io_submit), CALL(io_getevents), CALL(sched_getscheduler),
	CALL(ioprio_get), CALL(ioprio_set),
};

static uint64_t *memory;
static size_t words;

static size_t look(int fill)
{
	uint64_t x = 88172645463325252u;
	size_t wrong = 0;
	for (size_t i = 0; i < words; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		if (fill)
			memory[i] = x;
		wrong += memory[i] != x;
	}
	return wrong;
}

static void refuse(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

static int install(int number, unsigned action, unsigned flags)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/* Lets every call pass, until all processes under the filter have ended. A call whose thread is killed before it is
 * received is an error, too. */
static void let_pass(int listener)
{
	for (;;) {
		struct seccomp_notif asked = { 0 };
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) {
			struct pollfd over = { .fd = listener };
			if (listener < 0 || (poll(&over, 1, 0) == 1 && over.revents & (POLLHUP | POLLNVAL)))
				return;
			continue;
		}
		struct seccomp_notif_resp answer = { .id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	}
}

/* Under the filter. Writes its result to standard output by one call that no filter is for. */
static void work(const char *name)
{
	char line[128];
	size_t wrong = look(0);
	char *fresh = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int mapped = fresh != MAP_FAILED, dropped = 0;
	if (mapped) {
		memset(fresh, 1, 1 << 20);
		dropped = madvise(fresh, 1 << 20, MADV_DONTNEED) == 0;
		wrong += fresh[4711] != !dropped;
	}
	pid_t child = fork();
	if (child == 0)
		_exit(look(0) ? 77 : 0);
	int status = -1;
	waitpid(child, &status, 0);
	int length = snprintf(line, sizeof line, "%s: %zu wrong, mapped %d, dropped %d, child %x\n", name, wrong, mapped,
			      dropped, status);
	_exit(write(1, line, length) != length);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	char how = argv[1][0];
	words = strtoul(argv[2], NULL, 0) << 17;
	memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	look(1);
	struct sigaction handler = { .sa_sigaction = refuse, .sa_flags = SA_SIGINFO | SA_NODEFER };
	if (how == 't')
		sigaction(SIGSYS, &handler, NULL);
	const unsigned actions[] = { SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_TRAP, SECCOMP_RET_USER_NOTIF };
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		int told[2];
		if (pipe(told) != 0)
			return 2;
		pid_t worker = fork();
		if (worker == 0) {
			unsigned flags = how == 'a' ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0;
			int listener = install(calls[i].number, actions[how == 'r' ? 0 : how == 't' ? 1 : 2], flags);
			if (listener < 0 || write(told[1], &listener, sizeof listener) != sizeof listener)
				_exit(99);
			work(calls[i].name);
		}
		int listener = -1, status;
		close(told[1]);
		if (read(told[0], &listener, sizeof listener) == sizeof listener && how == 'a') {
			int process = (int)syscall(SYS_pidfd_open, worker, 0);
			let_pass((int)syscall(SYS_pidfd_getfd, process, listener, 0));
			close(process);
		}
		close(told[0]);
		waitpid(worker, &status, 0);
		if (status != 0) {
			printf("%s: ended by %d\n", calls[i].name, WTERMSIG(status));
			fflush(stdout);
		}
	}
	return 0;
}
