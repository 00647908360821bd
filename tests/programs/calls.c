/* calls: system calls that end in every way, for comparison with strace's log of them: calls that
 * succeed and fail, that a signal interrupts and that then go on (SA_RESTART) or do not, by children
 * of fork, vfork and clone, by a program that execve replaces, and by a thread.  It ends with status
 * 1 when a call does not do what it must.  With an argument, it only calls getppid(2) that often. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int ends[2];

static void must(int ok)
{
    if (!ok)
        _exit(1);
}

/* The signal that lets an interrupted read(2) go on has a byte for it to read. */
static void arrived(int number)
{
    must(number == SIGUSR1 || write(ends[1], "x", 1) == 1);
}

static void interrupt(int number, int flags, int milliseconds)
{
    struct sigaction how = {.sa_handler = arrived, .sa_flags = flags};
    struct itimerval soon = {.it_value = {milliseconds / 1000, milliseconds % 1000 * 1000}};
    must(sigaction(number, &how, NULL) == 0);
    if (number == SIGALRM)
        must(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    else
        must(kill(getpid(), number) == 0);
}

static void *other(void *unused)
{
    for (int k = 0; k < 3; k++)
        syscall(SYS_getppid);
    return unused;
}

static void await(pid_t child, int status)
{
    int got;
    must(waitpid(child, &got, 0) == child && WIFEXITED(got) && WEXITSTATUS(got) == status);
}

int main(int argc, char **argv)
{
    char block[512], byte;
    struct stat about;
    if (argc > 1) {
        for (int k = atoi(argv[1]); k; k--)
            syscall(SYS_getppid);
        return 5;
    }
    int zero = open("/dev/zero", O_RDWR);
    must(zero >= 0 && pipe(ends) == 0);
    for (int k = 0; k < 20; k++)
        must(read(zero, block, k) == k && write(zero, block, 2 * k) == 2 * k);
    must(open("/no/such/file", O_RDONLY) < 0 && errno == ENOENT);
    must(read(-1, block, 3) < 0 && errno == EBADF);
    must(syscall(1 << 20, 1, 2, 3) < 0 && errno == ENOSYS);
    must(lseek(ends[0], 7, SEEK_SET) < 0 && errno == ESPIPE);
    must(fstat(zero, &about) == 0 && stat("/dev/zero", &about) == 0 && access("/", R_OK) == 0);
    char *page = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(page != MAP_FAILED && mprotect(page, 4096, PROT_READ) == 0 && munmap(page, 8192) == 0);
    must(socket(AF_UNIX, 77, 0) < 0 && dup2(zero, 60) == 60 && close(60) == 0);
    interrupt(SIGUSR1, 0, 0);
    interrupt(SIGALRM, SA_RESTART, 50); /* this read is entered twice */
    must(read(ends[0], &byte, 1) == 1);
    /* This one fails, unless the signal came before it. */
    for (int wait = 50, got = 1; got == 1; wait *= 2) {
        interrupt(SIGALRM, 0, wait);
        got = read(ends[0], &byte, 1);
        must(got == 1 || errno == EINTR);
    }
    struct timespec brief = {0, 1000000};
    must(nanosleep(&brief, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "4", (char *)NULL);
        _exit(9);
    }
    await(child, 5);
    if ((child = vfork()) == 0)
        _exit(6);
    await(child, 6);
    pthread_t thread;
    must(pthread_create(&thread, NULL, other, NULL) == 0 && pthread_join(thread, NULL) == 0);
    return 0;
}
