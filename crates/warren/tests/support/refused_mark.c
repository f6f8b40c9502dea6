/* Loaded before the C library: the program may not mark sockets. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

int setsockopt(int descriptor, int level, int name, const void *value, socklen_t length) {
    static int (*real)(int, int, int, const void *, socklen_t);
    if (level == SOL_SOCKET && name == SO_MARK) {
        errno = EPERM;
        return -1;
    }
    if (!real) {
        real = dlsym(RTLD_NEXT, "setsockopt");
    }
    return real(descriptor, level, name, value, length);
}
