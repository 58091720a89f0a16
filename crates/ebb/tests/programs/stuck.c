// Waits for a page that nobody brings, with SIGTERM blocked.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        fd = device < 0 ? -1 : ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
    }
    struct uffdio_api api = {.api = UFFD_API};
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {
        .range = {.start = (unsigned long)page, .len = 4096},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    if (fd < 0 || page == MAP_FAILED || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range)) {
        perror("userfaultfd");
        return 1;
    }
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, 0);
    puts("ready");
    fflush(stdout);
    return page[0];
}
