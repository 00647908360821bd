/* lateness MS: on each CPU, a real-time thread that wakes up each millisecond until standard input
 * ends.  Prints, for each CPU: "late CPU WAKES OVER LONGEST": how often it woke, how often more than
 * MS milliseconds late, and the longest that it was late, in microseconds.  Whoever holds a CPU for
 * longer than that without letting it do something else shows in it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static struct late {
    pthread_t thread;
    long wakes, over, longest;
    int cpu;
} all[MOST];
static long bar;
static volatile int ended;

static void *watch(void *argument)
{
    struct late *late = argument;
    struct sched_param fifo = {.sched_priority = 50};
    struct timespec at, now;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(late->cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, SCHED_FIFO, &fifo)) {
        perror("lateness");
        exit(1);
    }
    clock_gettime(CLOCK_MONOTONIC, &at);
    while (!ended) {
        at.tv_nsec += 1000000;
        if (at.tv_nsec >= 1000000000) {
            at.tv_nsec -= 1000000000;
            at.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        long us = (now.tv_sec - at.tv_sec) * 1000000 + (now.tv_nsec - at.tv_nsec) / 1000;
        late->wakes++;
        late->over += us > bar * 1000;
        if (us > late->longest)
            late->longest = us;
        if (us > 1000)
            at = now;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    char byte;

    bar = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    if (bar <= 0 || cpus > MOST) {
        fprintf(stderr, "usage: lateness MS (and at most %d CPUs)\n", MOST);
        return 2;
    }
    for (long i = 0; i < cpus; i++) {
        all[i].cpu = i;
        if (pthread_create(&all[i].thread, NULL, watch, all + i))
            return 1;
    }
    while (read(0, &byte, 1) > 0)
        ;
    ended = 1;
    for (long i = 0; i < cpus; i++) {
        pthread_join(all[i].thread, NULL);
        printf("late %ld %ld %ld %ld\n", i, all[i].wakes, all[i].over, all[i].longest);
    }
    return 0;
}
