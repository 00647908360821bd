/* leaders exit N: the first thread ends, and another one calls read(2) exactly N times after that.
 * leaders exec N: another thread than the first executes /bin/reads N.
 * By either the process goes on without its first thread.  No other read(2) is made. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char **arguments;

static void *other(void *unused)
{
    struct timespec wait = {0, 100 * 1000 * 1000};
    char byte;
    nanosleep(&wait, NULL);
    if (!strcmp(arguments[1], "exec")) {
        execl("/bin/reads", "reads", arguments[2], (char *)NULL);
        _exit(3);
    }
    int fd = open("/dev/zero", O_RDONLY);
    for (long i = strtol(arguments[2], NULL, 0); i > 0; i--)
        if (syscall(SYS_read, fd, &byte, 1) != 1)
            _exit(1);
    _exit(5);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc != 3)
        return 2;
    arguments = argv;
    if (pthread_create(&thread, NULL, other, NULL))
        return 2;
    if (!strcmp(argv[1], "exit"))
        syscall(SYS_exit, 0);
    pthread_join(thread, NULL);
    return 4;
}
