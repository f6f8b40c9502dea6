/* Loaded before the C library: starts $PROGRAM if the caller asks for /proc/self/exe. Under valgrind, that is valgrind's program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>

static const char *own(const char *file)
{
	return strcmp(file, "/proc/self/exe") ? file : getenv("PROGRAM");
}

int execvp(const char *file, char *const arguments[])
{
	int (*real)(const char *, char *const[]) = (int (*)(const char *, char *const[]))dlsym(RTLD_NEXT, "execvp");
	return real(own(file), arguments);
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
		 char *const arguments[], char *const environment[])
{
	__typeof__(posix_spawnp) *real = (__typeof__(posix_spawnp) *)dlsym(RTLD_NEXT, "posix_spawnp");
	return real(pid, own(file), actions, attributes, arguments, environment);
}
