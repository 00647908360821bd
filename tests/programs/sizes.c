/* sizes N: open /dev/zero and call read(2) N times, for 1 + (i * 7919) % 5000 bytes the i-th time
 * (from 0), nothing else in between.  Prints "sizes N".  No read() of the C library's. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[5000];
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    int fd = open("/dev/zero", O_RDONLY);
    if (n <= 0 || fd < 0) {
        fprintf(stderr, "usage: sizes N (and /dev/zero must open)\n");
        return 2;
    }
    for (long i = 0; i < n; i++) {
        long size = 1 + i * 7919 % 5000;
        if (syscall(SYS_read, fd, block, size) != size) {
            perror("read");
            return 1;
        }
    }
    printf("sizes %ld\n", n);
    return 0;
}
