/* threads COUNT UID: become user UID, then start COUNT threads; the k-th (from 0) binds itself to
 * CPU k % 2 and calls read(2) on /dev/zero 100 + k times.  None ends before all have read, so that
 * the kernel cannot give one's task_struct to the next.  Prints for each, when all are done:
 * "thread PID TID PPID UID CPU READS". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 16 };
static int zero;
static long tids[MOST];
static pthread_barrier_t all_read;

static void *work(void *argument)
{
    long k = (long)argument;
    char byte;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(k % 2, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus))
        exit(1);
    tids[k] = syscall(SYS_gettid);
    for (long i = 0; i < 100 + k; i++)
        if (syscall(SYS_read, zero, &byte, 1) != 1)
            exit(1);
    pthread_barrier_wait(&all_read);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[MOST];
    long count = argc > 2 ? strtol(argv[1], NULL, 0) : 0;
    long uid = argc > 2 ? strtol(argv[2], NULL, 0) : 0;
    zero = open("/dev/zero", O_RDONLY);
    if (count <= 0 || count > MOST || zero < 0 || setuid(uid)
        || pthread_barrier_init(&all_read, NULL, count)) {
        fprintf(stderr, "usage: threads COUNT UID (as root, at most 16)\n");
        return 2;
    }
    for (long k = 0; k < count; k++)
        if (pthread_create(&threads[k], NULL, work, (void *)k))
            return 1;
    for (long k = 0; k < count; k++)
        pthread_join(threads[k], NULL);
    for (long k = 0; k < count; k++)
        printf("thread %d %ld %d %d %ld %ld\n", getpid(), tids[k], getppid(), getuid(), k % 2,
               100 + k);
    return 0;
}
