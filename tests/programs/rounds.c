/* rounds CALLS ROUNDS [getppid]: ROUNDS times, call read(2) of one byte of /dev/zero exactly CALLS
 * times, or getppid(2).  Prints: "rounds CALLS ns NS NS ..." with the mean time of one call in each round in ns.
 * Short rounds are for busy machines: one of them fits between two interruptions. */
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
    long calls = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    long rounds = argc > 2 ? strtol(argv[2], NULL, 0) : 1;
    int fd = open("/dev/zero", O_RDONLY);
    char byte;
    int getppid_only = argc > 3;
    if (calls <= 0 || rounds <= 0 || fd < 0) {
        fprintf(stderr, "usage: rounds CALLS ROUNDS [getppid] (and /dev/zero must open)\n");
        return 2;
    }
    double *took = calloc(rounds, sizeof *took);
    if (!took)
        return 1;
    for (long r = 0; r < rounds; r++) {
        double start = now_ns();
        for (long i = 0; i < calls; i++) {
            if (getppid_only) {
                syscall(SYS_getppid);
            } else if (syscall(SYS_read, fd, &byte, 1) != 1) {
                perror("read");
                return 1;
            }
        }
        took[r] = (now_ns() - start) / calls;
    }
    printf("rounds %ld ns", calls);
    for (long r = 0; r < rounds; r++)
        printf(" %.1f", took[r]);
    printf("\n");
    return 0;
}
