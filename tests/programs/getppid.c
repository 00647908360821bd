/* getppid N: call getppid(2) exactly N times.
 * Prints: "getppid N ns NS" with the mean time of one call in ns, two decimals. */
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
    if (n <= 0) {
        fprintf(stderr, "usage: getppid N\n");
        return 2;
    }
    double start = now_ns();
    for (long i = 0; i < n; i++)
        syscall(SYS_getppid);
    double end = now_ns();
    printf("getppid %ld ns %.2f\n", n, (end - start) / n);
    return 0;
}
