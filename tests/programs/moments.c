/* moments N MS: N times, read the clocks, call read(2) on /dev/zero, sleep for MS milliseconds.
 * Prints, when all is done, for each: "moment MONOTONIC REALTIME" in ns, just before the read. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1000 };

static long long clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
    static long long monotonic[MOST], real[MOST];
    long n = argc > 2 ? strtol(argv[1], NULL, 0) : 0;
    long ms = argc > 2 ? strtol(argv[2], NULL, 0) : 0;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    int zero = open("/dev/zero", O_RDONLY);
    char byte;
    if (n <= 0 || n > MOST || ms <= 0 || zero < 0) {
        fprintf(stderr, "usage: moments N MS (at most 1000)\n");
        return 2;
    }
    for (long i = 0; i < n; i++) {
        real[i] = clock_ns(CLOCK_REALTIME);
        monotonic[i] = clock_ns(CLOCK_MONOTONIC);
        if (syscall(SYS_read, zero, &byte, 1) != 1)
            return 1;
        nanosleep(&pause, NULL);
    }
    for (long i = 0; i < n; i++)
        printf("moment %lld %lld\n", monotonic[i], real[i]);
    return 0;
}
