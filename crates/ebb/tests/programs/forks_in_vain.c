// MIB TIMES: fills memory, then a thread of it forks so often in vain, then it forks for good.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;

// From here on this thread, and none else, makes no process that copies its memory.
static int refuse_forks(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_VM, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void *fork_in_vain(void *times) {
    if (refuse_forks()) {
        perror("seccomp");
        exit(1);
    }
    for (int i = 0; i < *(int *)times; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(1);
        failed += pid < 0 && errno == EAGAIN;
    }
    return 0;
}

int main(int argc, char **argv) {
    // Under a parent that is of the same image and has little.
    pid_t self = fork();
    int status = 0;
    if (self) {
        waitpid(self, &status, 0);
        return WEXITSTATUS(status);
    }
    size_t bytes = (size_t)atoi(argv[1]) << 20;
    unsigned char *big = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 4096) memset(big + i, i >> 12 & 0xff, 4096);
    int times = atoi(argv[2]);
    pthread_t thread;
    pthread_create(&thread, 0, fork_in_vain, &times);
    pthread_join(thread, 0);
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t i = 0; i < bytes; i += 4096)
            if (big[i] != (i >> 12 & 0xff)) _exit(1);
        _exit(5);
    }
    waitpid(pid, &status, 0);
    printf("%d failed, the last ended with %d\n", failed, WEXITSTATUS(status));
    return 0;
}
