/* Loaded before the C library: shifts the wall clock by the number of seconds in the file $WALL_CLOCK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*real)(clockid_t, struct timespec *);
	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	int result = real(clock, now);
	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		long long offset = 0;
		FILE *file = fopen(getenv("WALL_CLOCK"), "r");
		if (file && fscanf(file, "%lld", &offset) == 1)
			now->tv_sec += offset;
		if (file)
			fclose(file);
	}
	return result;
}
