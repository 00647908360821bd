/* hops N: read(2) one byte of /dev/zero, N times on each CPU that is online, all from one thread
 * that moves to the next CPU after every read; at the same time one thread for each CPU, which
 * stays there, does the same N times.  Prints: "hops CPUS READS", where READS is 2 * N * CPUS.
 * The C library's read() is not used, so that no other read(2) can be made for it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fd, cpus[1024], count;
static long n;

static void go_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        _exit(1);
    }
}

static void read_one(void)
{
    char byte;
    if (syscall(SYS_read, fd, &byte, 1) != 1) {
        perror("read");
        _exit(1);
    }
}

static void *stay(void *cpu)
{
    go_to(*(int *)cpu);
    for (long i = 0; i < n; i++)
        read_one();
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[1024];
    cpu_set_t set;
    n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    fd = open("/dev/zero", O_RDONLY);
    if (n <= 0 || fd < 0 || sched_getaffinity(0, sizeof set, &set)) {
        fprintf(stderr, "usage: hops N (and /dev/zero must open)\n");
        return 2;
    }
    for (int cpu = 0; cpu < 1024; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[count++] = cpu;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], 0, stay, &cpus[i]))
            return 1;
    for (long i = 0; i < n; i++)
        for (int k = 0; k < count; k++) {
            go_to(cpus[k]);
            read_one();
        }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    printf("hops %d %ld\n", count, 2 * n * count);
    return 0;
}
