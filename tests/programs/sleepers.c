/* sleepers SECONDS: processes that sleep in the kernel and are woken in many ways: pipes, sockets,
 * timers, signals, children that end, addresses that fault.  Each checks what it gets.  One sleeps
 * in read(2) all the time; its process id is printed at the start: "sleeps PID".  Prints at the
 * end "sleepers ROUNDS", the rounds of all together, or what was wrong. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 7 };
static volatile long *rounds; /* of each kind, and behind them: it is time to end */
static volatile sig_atomic_t alarms;
static void *volatile nowhere = (void *)8;

static void must(int good, const char *what)
{
    if (!good) {
        printf("wrong: %s: %s\n", what, strerror(errno));
        fflush(stdout);
        kill(0, SIGKILL);
    }
}

static void ring(int number)
{
    (void)number;
    alarms++;
}

static void echo(int from, int to, int first)
{
    unsigned char at = 0, got;
    for (long k = 0; !rounds[KINDS]; k++) {
        if (first)
            must(write(to, &at, 1) == 1, "write");
        must(read(from, &got, 1) == 1 && got == at, "what was read");
        must(first || write(to, &at, 1) == 1, "write back");
        at++;
        rounds[0]++;
    }
    _exit(0);
}

static void run(int kind)
{
    struct timespec nap = {0, 3000000};
    struct itimerval every = {{0, 7000}, {0, 7000}};
    int ends[2], epoll = epoll_create1(0), zero = open("/dev/zero", O_RDONLY);
    struct epoll_event wanted = {EPOLLIN, {0}};
    must(pipe(ends) == 0 && epoll >= 0 && zero >= 0, "pipe");
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &wanted) == 0, "epoll_ctl");
    for (; !rounds[KINDS]; rounds[kind]++) {
        struct pollfd asked = {ends[0], POLLIN, 0};
        struct timeval soon = {0, 4000};
        fd_set set;
        int status;
        pid_t child;
        FD_ZERO(&set);
        FD_SET(ends[0], &set);
        switch (kind) {
        case 1:
            must(poll(&asked, 1, 5) == 0, "poll");
            break;
        case 2:
            must(nanosleep(&nap, 0) == 0, "nanosleep");
            break;
        case 3:
            must(select(ends[0] + 1, &set, 0, 0, &soon) == 0, "select");
            must(epoll_wait(epoll, &wanted, 1, 2) == 0, "epoll_wait");
            break;
        case 4:
            child = fork();
            if (!child) {
                nanosleep(&nap, 0);
                _exit(7);
            }
            must(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "waitpid");
            break;
        case 5:
            sigaction(SIGALRM, &(struct sigaction){.sa_handler = ring}, 0);
            alarms = 0;
            setitimer(ITIMER_REAL, &every, 0);
            while (!alarms)
                must(read(ends[0], &status, 1) == -1 && errno == EINTR, "a signal while reading");
            memset(&every, 0, sizeof every);
            setitimer(ITIMER_REAL, &every, 0);
            every.it_value.tv_usec = every.it_interval.tv_usec = 7000;
            break;
        case 6:
            must(read(zero, nowhere, 8) == -1 && errno == EFAULT, "read to no memory");
            must(write(ends[1], nowhere, 8) == -1 && errno == EFAULT, "write of no memory");
            nanosleep(&nap, 0);
            break;
        }
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    long seconds = argc > 1 ? strtol(argv[1], NULL, 0) : 0, all = 0;
    int there[2], back[2], pair[2], never[2];
    must(seconds > 0, "usage: sleepers SECONDS");
    setpgid(0, 0);
    rounds = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(rounds != MAP_FAILED && pipe(there) == 0 && pipe(back) == 0 && pipe(never) == 0, "pipe");
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t sleeper = fork();
    if (!sleeper) {
        char got;
        must(read(never[0], &got, 1) == 1 && got == 'x', "what was waited for");
        _exit(0);
    }
    printf("sleeps %d\n", sleeper);
    fflush(stdout);
    pid_t children[4 + KINDS];
    int count = 0;
    for (int k = 0; k < 4; k++)
        if (!(children[count++] = fork())) {
            int sockets = k & 2, first = k & 1;
            echo(sockets ? pair[first] : first ? back[0] : there[0],
                 sockets ? pair[first] : first ? there[1] : back[1], first);
        }
    for (int kind = 1; kind < KINDS; kind++)
        if (!(children[count++] = fork()))
            run(kind);
    struct timespec end = {seconds, 0};
    nanosleep(&end, 0);
    rounds[KINDS] = 1;
    nanosleep(&(struct timespec){1, 0}, 0);
    for (int k = 0; k < count; k++)
        kill(children[k], SIGKILL);
    must(write(never[1], "x", 1) == 1, "write");
    int status;
    must(waitpid(sleeper, &status, 0) == sleeper && status == 0, "the sleeper");
    for (int kind = 0; kind < KINDS; kind++) {
        must(rounds[kind] > 0, "nothing was done");
        all += rounds[kind];
    }
    printf("sleepers %ld\n", all);
    return 0;
}
