/* reads N: open /dev/zero and call read(2) of one byte exactly N times, nothing else in between.
 * Prints: "reads N ns NS" with the mean time of one call in ns, two decimals.  The C library's
 * read() is not used, so that no other read(2) can be made for it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    int fd = open("/dev/zero", O_RDONLY);
    char byte;
    if (n <= 0 || fd < 0) {
        fprintf(stderr, "usage: reads N (and /dev/zero must open)\n");
        return 2;
    }
    double start = now_ns();
    for (long i = 0; i < n; i++) {
        if (syscall(SYS_read, fd, &byte, 1) != 1) {
            perror("read");
            return 1;
        }
    }
    double end = now_ns();
    printf("reads %ld ns %.2f\n", n, (end - start) / n);
    return 0;
}
