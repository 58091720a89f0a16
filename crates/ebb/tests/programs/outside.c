/*
 * A program with one thread, which pages, looks for signs of its service: outside SIZE_MIB WHAT, with WHAT
 *
 *   alone     counts its threads and children, and makes a user namespace.
 *   numbers   is user 5 of group 7 in a user namespace of its own, and changes to what it is. On stderr it says who
 *             its helper is there.
 *   data      reads the data of all libraries, as collectors of garbage do that look for pointers in it.
 *   filter    sets a seccomp filter for all of its threads, which forbids the calls of service.
 *   written   writes memory that is out to /dev/null, a page at a time.
 *   waits     writes the address of a variable that is out, for observers, until it is told to stop
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t *memory;
static size_t pages;

static uint64_t word_of(size_t page, int i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * i * 0x2545f4914f6cdd1du;
}

static size_t wrong(void)
{
	size_t count = 0;
	for (size_t i = 0; i < pages * WORDS; i++)
		count += memory[i] != word_of(i / WORDS, (int)(i % WORDS));
	return count;
}

static int threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *entry; (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

static int alone(void)
{
	struct stat links;
	stat("/proc/self/task", &links);
	printf("%d threads, %d links\n", threads(), (int)links.st_nlink);
	for (int options = 0; options < 3; options++) {
		int status, kinds[] = { 0, __WALL, __WCLONE };
		pid_t child = waitpid(-1, &status, kinds[options] | WNOHANG);
		printf("wait %d: %s\n", child, strerror(errno));
	}
	siginfo_t info;
	printf("waitid %d\n", waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | __WALL));
	int made = unshare(CLONE_NEWUSER);
	printf("user namespace %d %s\n", made, made ? strerror(errno) : "");
	printf("%zu wrong\n", wrong());
	pid_t child = fork();
	if (child == 0)
		_exit(wrong() == 0 && threads() == 1 ? 5 : 6);
	int status = 0;
	printf("its child: %d", waitpid(-1, &status, __WALL) == child);
	printf(" %d %d\n", WEXITSTATUS(status), WTERMSIG(status));
	return 0;
}

static void put(const char *file, const char *format, unsigned number)
{
	char text[64];
	int len = snprintf(text, sizeof text, format, number);
	int fd = open(file, O_WRONLY);
	printf("%s: %d\n", file, write(fd, text, len) == len);
	close(fd);
}

/* The helpers of this program's supervisor: there is one. */
static void tell_helpers(void)
{
	DIR *all = opendir("/proc");
	for (struct dirent *entry; (entry = readdir(all));) {
		char path[300], line[256], name[32] = "";
		unsigned parent = 0, user[3];
		snprintf(path, sizeof path, "/proc/%s/status", entry->d_name);
		FILE *status = fopen(path, "r");
		while (status && fgets(line, sizeof line, status)) {
			sscanf(line, "Name: %31s", name);
			sscanf(line, "PPid: %u", &parent);
			if (sscanf(line, "Uid: %u %u %u", user, user + 1, user + 2) == 3)
				if (strcmp(name, "ebb-helper") == 0 && parent == (unsigned)getppid())
					fprintf(stderr, "helper is %u %u %u\n", user[0], user[1], user[2]);
		}
		if (status)
			fclose(status);
	}
	closedir(all);
}

static int numbers(void)
{
	unsigned user = getuid(), group = getgid();
	printf("user namespace %d\n", unshare(CLONE_NEWUSER));
	put("/proc/self/setgroups", "deny", 0);
	put("/proc/self/gid_map", "7 %u 1", group);
	put("/proc/self/uid_map", "5 %u 1", user);
	printf("group %d, user %d\n", setgid(7), setuid(5));
	printf("%u %u\n", getuid(), getgid());
	tell_helpers();
	printf("%zu wrong\n", wrong());
	return 0;
}

/* All that our service does but for the program's own calls. */
static int filtered(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
		perror("seccomp");
		return 2;
	}
	printf("%zu wrong under the filter\n", wrong());
	return 0;
}

static int out(size_t page)
{
	uint64_t word = 1ull << 63;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	if (fd >= 0 && pread(fd, &word, 8, (off_t)(((uintptr_t)memory / PAGE + page) * 8)) != 8)
		word = 1ull << 63;
	close(fd);
	return !(word >> 63);
}

static int written(void)
{
	int fd = open("/dev/null", O_WRONLY);
	long bytes = 0;
	for (size_t page = 0; page < 200; page++)
		bytes += write(fd, &memory[page * WORDS + 3], 8);
	printf("%ld bytes\n", bytes);
	return 0;
}

/* The file PLACES has its number, then lines of an address and what is there. */
static int waits(const char *places, const char *stop)
{
	char new[4096];
	snprintf(new, sizeof new, "%s.new", places);
	FILE *file = fopen(new, "w");
	if (!file)
		return 2;
	fprintf(file, "%d\n", (int)getpid());
	int found = 0;
	for (size_t page = 0; page < pages && found < 16; page += 61)
		if (out(page)) {
			fprintf(file, "%#lx %#lx\n", (unsigned long)&memory[page * WORDS + 3], word_of(page, 3));
			found++;
		}
	fclose(file);
	rename(new, places);
	for (int i = 0; i < 4000 && access(stop, F_OK) != 0; i++)
		usleep(10000);
	printf("%zu wrong\n", wrong());
	return 0;
}

static int read_data(struct dl_phdr_info *module, size_t size, void *sum)
{
	(void)size;
	for (int i = 0; i < module->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &module->dlpi_phdr[i];
		volatile const char *at = (const char *)(module->dlpi_addr + part->p_vaddr);
		if (part->p_type != PT_LOAD || !(part->p_flags & PF_W))
			continue;
		for (size_t j = 0; j < part->p_memsz; j += 8)
			*(size_t *)sum += at[j];
	}
	return 0;
}

static int read_all_data(void)
{
	size_t sum = 0;
	dl_iterate_phdr(read_data, &sum);
	printf("read\n%zu wrong\n", wrong());
	return sum == 1;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	pages = strtoul(argv[1], NULL, 0) * 256;
	alarm(55);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < pages * WORDS; i++)
		memory[i] = word_of(i / WORDS, (int)(i % WORDS));
	switch (argv[2][0]) {
	case 'a':
		return alone();
	case 'd':
		return read_all_data();
	case 'n':
		return numbers();
	case 'f':
		return filtered();
	default:
		if (argv[2][1] == 'r')
			return written();
		return argc < 5 ? 2 : waits(argv[3], argv[4]);
	}
}
