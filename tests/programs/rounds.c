/* rounds CALLS ROUNDS [getppid|switch]: ROUNDS times, call read(2) of one byte of /dev/zero exactly CALLS times, or
 * getppid(2).  A call of `switch` yields the CPU to another thread of the process, which yields it back: the kernel
 * switches threads twice.  Both are real-time threads of one priority (root only), so that they alternate, and have one
 * address space, so that an emulator keeps its translations.  Prints "rounds CALLS ns NS NS ...": the mean time of one
 * call in each round, in ns.  A short round fits between two interruptions of a busy machine.
 *
 * rounds CALLS ROUNDS [getppid|switch] paired: call getuid(2) as often before and after the calls of each round (PACE times
 * at least).  Prints "paired CALLS ns NS times T T ...": the least mean time of one getuid, and how many getuid one
 * call took in each round, or 0 if the getuid before and after differ.  A call that takes very long is compared with
 * the least getuid.  These numbers stay the same if the processor runs at half its speed for a while.
 *
 * rounds serve: leave a process running, on one CPU, that runs the rounds of
 * rounds ask CALLS ROUNDS [getppid|switch] [paired], which prints what that process measured.  All such rounds can be
 * compared, since they have the same stacks at the same addresses: an emulator finds memory in tables of addresses,
 * and each exec decides anew which addresses meet there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHARED "/tmp/rounds.shared"
#define MOST 4096 /* rounds of one request */
#define ALIKE 1.08 /* two paces that differ by less than this factor are the same */
#define PACE 150 /* getuid(2) before and after a round, at least */
#define LONG 100 /* times a getuid: such calls outlast changes of the pace, and are compared with the least one */

struct request {
    pid_t server, client;
    long calls, rounds;
    int getppid_only, switches, paired, failed;
    double took[MOST], least; /* least: ns of a getuid(2) */
};

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double getuid_ns(long calls)
{
    double start = now_ns();
    for (long i = 0; i < calls; i++)
        syscall(SYS_getuid);
    return (now_ns() - start) / calls;
}

static int to_partner[2];
static volatile int yields;

/* Yield the CPU back while `yields`; otherwise wait for a byte. */
static void *partner(void *unused)
{
    char byte;
    while (read(to_partner[0], &byte, 1) == 1)
        while (yields)
            sched_yield();
    return unused;
}

/* Make this thread one of real time, and wake its partner on the same CPU, which is started the first time. */
static int begin_switches(void)
{
    pthread_t thread;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) || sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}))
        return 1;
    if (!to_partner[1] && (pipe(to_partner) || pthread_create(&thread, NULL, partner, NULL)))
        return 1;
    yields = 1;
    return write(to_partner[1], "", 1) != 1;
}

static void end_switches(void)
{
    yields = 0;
    sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
}

static int run(int fd, struct request *request)
{
    char byte;
    if (request->switches && begin_switches())
        return 1;
    long pace = request->calls > PACE ? request->calls : PACE;
    request->least = 1e18;
    for (long r = 0; r < request->rounds; r++) {
        double before = request->paired ? getuid_ns(pace) : 0;
        double start = now_ns();
        for (long i = 0; i < request->calls; i++) {
            if (request->getppid_only)
                syscall(SYS_getppid);
            else if (request->switches ? sched_yield() : syscall(SYS_read, fd, &byte, 1) != 1)
                return 1;
        }
        request->took[r] = (now_ns() - start) / request->calls;
        if (request->paired) {
            getuid_ns(PACE / 3); /* the first calls after a stop of the machine are slower than its pace */
            double after = getuid_ns(pace), mean = (before + after) / 2;
            request->least = mean < request->least ? mean : request->least;
            int alike = before < ALIKE * after && after < ALIKE * before;
            double pace_ns = request->took[r] > LONG * mean ? request->least : mean;
            request->took[r] = alike || pace_ns != mean ? request->took[r] / pace_ns : 0;
        }
    }
    if (request->switches)
        end_switches();
    return 0;
}

static struct request *shared(int flags)
{
    int fd = open(SHARED, O_RDWR | flags, 0600);
    if (fd < 0 || (flags && ftruncate(fd, sizeof(struct request))))
        return NULL;
    void *at = mmap(NULL, sizeof(struct request), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static int serve(int fd, const sigset_t *wake)
{
    struct request *request = shared(O_CREAT);
    if (!request)
        return 1;
    if (request->server)
        kill(request->server, SIGKILL); /* there is one at a time */
    pid_t child = fork();
    if (child) {
        request->server = child;
        return child < 0;
    }
    setsid();
    for (int n = 0; n < 3; n++)
        dup2(fd, n); /* the shell waits until its pipe has no writers left */
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    for (int signal;;) {
        sigwait(wake, &signal);
        request->failed = run(fd, request);
        kill(request->client, SIGUSR1);
    }
}

int main(int argc, char **argv)
{
    const char *usage = "usage: rounds [ask] CALLS ROUNDS [getppid|switch] [paired], rounds serve (and /dev/zero must open)\n";
    int fd = open("/dev/zero", O_RDONLY), asks = argc > 1 && !strcmp(argv[1], "ask"), signal;
    sigset_t wake;
    sigemptyset(&wake);
    sigaddset(&wake, SIGUSR1);
    sigprocmask(SIG_BLOCK, &wake, NULL);
    if (argc == 2 && !strcmp(argv[1], "serve") && fd >= 0)
        return serve(fd, &wake);
    argc -= asks, argv += asks;
    struct request *request = asks ? shared(0) : calloc(1, sizeof *request);
    if (!request) {
        fprintf(stderr, "rounds: no memory, or no `rounds serve` runs\n");
        return 1;
    }
    request->calls = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    request->rounds = argc > 2 ? strtol(argv[2], NULL, 0) : 1;
    request->getppid_only = argc > 3 && !strcmp(argv[3], "getppid");
    request->switches = argc > 3 && !strcmp(argv[3], "switch");
    request->paired = argc > 3 && !strcmp(argv[argc - 1], "paired");
    if (request->calls <= 0 || request->rounds <= 0 || request->rounds > MOST || fd < 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (asks) {
        request->client = getpid();
        if (kill(request->server, SIGUSR1)) {
            perror("rounds: the server");
            return 1;
        }
        sigwait(&wake, &signal);
    } else {
        request->failed = run(fd, request);
    }
    if (request->failed) {
        fprintf(stderr, "rounds: read failed\n");
        return 1;
    }
    if (request->paired)
        printf("paired %ld ns %.1f times", request->calls, request->least);
    else
        printf("rounds %ld ns", request->calls);
    for (long r = 0; r < request->rounds; r++)
        printf(request->paired ? " %.4f" : " %.1f", request->took[r]);
    printf("\n");
    return 0;
}
