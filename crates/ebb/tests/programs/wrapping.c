/* A library to be preloaded. Its functions are named as libc's: they say that they are called, and go on to libc's by a
 * handle, as uid_wrapper's do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void *libcs(const char *name)
{
	return dlsym(dlopen("libc.so.6", RTLD_LAZY), name);
}

/* Looked up before a child of vfork needs it. */
static int (*libcs_execv)(const char *, char *const *), (*libcs_execvp)(const char *, char *const *);

__attribute__((constructor)) static void start(void)
{
	libcs_execv = libcs("execv");
	libcs_execvp = libcs("execvp");
}

static void say(const char *name)
{
	char line[64] = "wrapped ";
	strcat(strcat(line, name), "\n");
	if (write(1, line, strlen(line)) < 0)
		_exit(3);
}

int setuid(uid_t user)
{
	say("setuid");
	return ((int (*)(uid_t))libcs("setuid"))(user);
}

long syscall(long number, ...)
{
	long a[6];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	say("syscall");
	return ((long (*)(long, ...))libcs("syscall"))(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int prctl(int option, ...)
{
	unsigned long a[4];
	va_list list;
	va_start(list, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(list, unsigned long);
	va_end(list);
	say("prctl");
	return ((int (*)(int, ...))libcs("prctl"))(option, a[0], a[1], a[2], a[3]);
}

ssize_t pwrite64(int fd, const void *from, size_t len, off64_t at)
{
	say("pwrite64");
	return ((ssize_t (*)(int, const void *, size_t, off64_t))libcs("pwrite64"))(fd, from, len, at);
}

int execv(const char *path, char *const argv[])
{
	say("execv");
	return libcs_execv(path, argv);
}

int execvp(const char *file, char *const argv[])
{
	say("execvp");
	return libcs_execvp(file, argv);
}

/* As fakechroot gathers them. */
int execlp(const char *file, const char *first, ...)
{
	char *argv[8] = {(char *)first};
	va_list list;
	va_start(list, first);
	for (int i = 0; argv[i] != NULL && i < 7; i++)
		argv[i + 1] = va_arg(list, char *);
	va_end(list);
	return execvp(file, argv);
}
