/* Loaded before the C library: simulates a kernel before 6.2, whose TUN has no UDP segmentation offload. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/if_tun.h>
#include <stdarg.h>
#include <sys/ioctl.h>

/* TUN_F_USO4 and TUN_F_USO6, which older kernel headers lack. */
#define USO (0x20 | 0x40)

int ioctl(int descriptor, unsigned long request, ...) {
    static int (*real)(int, unsigned long, unsigned long);
    va_list arguments;
    va_start(arguments, request);
    unsigned long argument = va_arg(arguments, unsigned long);
    va_end(arguments);
    if (request == TUNSETOFFLOAD && (argument & USO)) {
        errno = EINVAL;
        return -1;
    }
    if (!real) {
        real = dlsym(RTLD_NEXT, "ioctl");
    }
    return real(descriptor, request, argument);
}
