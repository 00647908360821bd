/* warn: make the kernel warn (WARN_ON_ONCE) that memory of a size that it never has is asked for:
 * sendmsg(2) copies control messages into one piece, up to net.core.optmem_max bytes of them.
 * Prints "warn ok" when the call failed as it must. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { SIZE = 16 << 20 }; /* more than any page allocator gives at once */

int main(void)
{
    int sockets[2];
    char byte = 0, *control = calloc(1, SIZE);
    FILE *limit = fopen("/proc/sys/net/core/optmem_max", "w");
    if (!limit || fprintf(limit, "%d\n", 4 * SIZE) < 0 || fclose(limit)) {
        perror("net.core.optmem_max");
        return 1;
    }
    if (!control || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets)) {
        perror("socketpair");
        return 1;
    }
    struct iovec piece = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = SIZE,
    };
    if (sendmsg(sockets[0], &message, 0) != -1 || errno != ENOBUFS) {
        perror("sendmsg");
        return 1;
    }
    puts("warn ok");
    return 0;
}
