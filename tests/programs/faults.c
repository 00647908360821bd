/* faults N: N times each, read(2) of /dev/zero to an address where nothing can be, and write(2)
 * into a pipe from there.  Each must fail with EFAULT.  Then both once with good memory.
 * Prints: "faults N ok", or what was wrong. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    long count = argc > 1 ? strtol(argv[1], NULL, 0) : 1;
    int zero = open("/dev/zero", O_RDONLY), pipes[2];
    char byte = 1;
    if (zero < 0 || pipe(pipes))
        return 2;
    for (long i = 0; i < count; i++) {
        errno = 0;
        if (syscall(SYS_read, zero, 16L, 64L) != -1 || errno != EFAULT) {
            printf("read %ld: errno %d\n", i, errno);
            return 1;
        }
        errno = 0;
        if (syscall(SYS_write, pipes[1], 16L, 64L) != -1 || errno != EFAULT) {
            printf("write %ld: errno %d\n", i, errno);
            return 1;
        }
    }
    if (syscall(SYS_read, zero, &byte, 1L) != 1 || byte || write(pipes[1], "x", 1) != 1) {
        printf("good memory: errno %d\n", errno);
        return 1;
    }
    printf("faults %ld ok\n", count);
    return 0;
}
