/* busy N [ticks]: what programs ask of a kernel, N times over, as one thread that does the same each time.
 * Only meanwhile is it called "at work" (prctl(PR_SET_NAME)); all its memory has been touched before,
 * and a round of the same was run, so that what a round does is the same in each.  It stays on one CPU.
 * Prints: "busy N ns NS" (or "busy N ticks ns NS"), with the mean time of a round.
 *
 * ticks: wait for the kernel's coarse clock to move before each call that may change a file's times. It
 * changes them only then, so that otherwise a quick round goes other ways than a slow one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;

static void count(int number)
{
    (void)number;
    signals++;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void must(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static int waits;

static void tick(void)
{
    struct timespec then, now;
    clock_gettime(CLOCK_REALTIME_COARSE, &then);
    do
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
    while (waits && now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec);
}

static int zero, null, file, ends[2], pair[2], event, epoll;
static char bytes[64], *page;
static void *volatile nowhere = (void *)8;

static void once(void)
{
    struct stat about;
    struct timespec now;
    struct rusage used;
    struct iovec parts[2] = {{bytes, 8}, {bytes + 8, 8}};
    struct pollfd asked[2] = {{ends[0], POLLIN, 0}, {pair[1], POLLIN | POLLOUT, 0}};
    struct epoll_event seen;
    unsigned long one = 1;
    sigset_t set;

    must(syscall(SYS_getppid) > 0, "getppid");
    must(syscall(SYS_getuid) == 0, "getuid");
    must(syscall(SYS_read, zero, bytes, 1) == 1, "read");
    must(read(zero, bytes, sizeof bytes) == sizeof bytes, "read");
    must(readv(zero, parts, 2) == 16, "readv");
    must(write(null, bytes, 16) == 16, "write");
    must(writev(null, parts, 2) == 16, "writev");
    tick();
    must(write(ends[1], bytes, 8) == 8, "write to a pipe");
    must(poll(asked, 2, 0) == 2, "poll");
    tick();
    must(read(ends[0], bytes, 8) == 8, "read from a pipe");
    must(send(pair[0], bytes, 8, 0) == 8, "send");
    must(epoll_wait(epoll, &seen, 1, 0) == 1, "epoll_wait");
    must(recv(pair[1], bytes, 8, 0) == 8, "recv");
    must(write(event, &one, 8) == 8 && read(event, &one, 8) == 8, "eventfd");
    tick();
    must(pwrite(file, bytes, 32, 0) == 32, "write to a file");
    tick();
    must(pread(file, bytes, 32, 0) == 32, "read from a file");
    must(lseek(file, 0, SEEK_SET) == 0 && fstat(file, &about) == 0, "fstat");
    tick();
    must(stat("/proc/self", &about) == 0 && stat("/tmp/busy.file", &about) == 0, "stat");
    must(access("/tmp/nothing", F_OK) == -1 && errno == ENOENT, "access");
    must(faccessat(AT_FDCWD, "/tmp/busy.file", R_OK, 0) == 0, "faccessat");
    must(fcntl(file, F_GETFL) >= 0, "fcntl");
    int again = open("/tmp/busy.file", O_RDONLY);
    must(again >= 0, "open");
    int other = dup(again);
    must(other >= 0 && close(other) == 0 && close(again) == 0, "dup and close");
    must(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0, "clock_gettime");
    must(getrusage(RUSAGE_SELF, &used) == 0, "getrusage");
    must(mprotect(page, 4096, PROT_READ) == 0, "mprotect");
    must(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0, "mprotect");
    page[0]++;
    must(write(null, nowhere, 8) == 8, "write of no memory to where nobody looks");
    must(read(zero, nowhere, 8) == -1 && errno == EFAULT, "read to no memory");
    must(write(ends[1], nowhere, 8) == -1 && errno == EFAULT, "write from no memory");
    sigemptyset(&set);
    must(sigprocmask(SIG_BLOCK, &set, 0) == 0, "sigprocmask");
    must(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1) == 0, "tgkill");
    must(syscall(SYS_sched_yield) == 0, "sched_yield");
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    struct epoll_event wanted = {EPOLLIN, {0}};
    if (n <= 0) {
        fprintf(stderr, "usage: busy N [ticks]\n");
        return 2;
    }
    waits = argc > 2 && !strcmp(argv[2], "ticks");
    if (argc < 4) {
        /* Memory that only one CPU has used is flushed in other ways than what two have. */
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        must(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity");
        execl("/proc/self/exe", "busy", argv[1], waits ? "ticks" : "", "on one CPU", (char *)0);
        must(0, "exec");
    }
    must(signal(SIGUSR1, count) != SIG_ERR, "signal");
    page = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(page != MAP_FAILED, "mmap");
    memset(page, 1, 1 << 16);
    zero = open("/dev/zero", O_RDONLY);
    null = open("/dev/null", O_WRONLY);
    file = open("/tmp/busy.file", O_RDWR | O_CREAT, 0600);
    event = eventfd(0, 0);
    epoll = epoll_create1(0);
    must(zero >= 0 && null >= 0 && file >= 0 && event >= 0 && epoll >= 0, "open");
    must(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "pipe");
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &wanted) == 0, "epoll_ctl");
    mlockall(MCL_CURRENT);
    for (int k = 0; k < 20; k++)
        once();
    prctl(PR_SET_NAME, "at work");
    double start = now_ns();
    for (long k = 0; k < n; k++)
        once();
    double end = now_ns();
    prctl(PR_SET_NAME, "busy");
    must(signals == n + 20, "signals");
    printf("busy %ld%s ns %.0f\n", n, waits ? " ticks" : "", (end - start) / n);
    return 0;
}
