/* usertext N: call write(2) on /dev/null N times with what it then prints as "before TEXT": the
 * text of the whole buffer.  Prints the buffer again afterwards ("after TEXT"), because a tracer
 * may have written to it, and its process ids ("ids PID PPID").  No write() of the C library's. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char text[64] = "a text of the traced program";
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    int fd = open("/dev/null", O_WRONLY);
    if (n <= 0 || fd < 0) {
        fprintf(stderr, "usage: usertext N (and /dev/null must open)\n");
        return 2;
    }
    printf("before %s\n", text);
    fflush(stdout);
    for (long i = 0; i < n; i++) {
        /* The length is one that no other write(2) has. */
        if (syscall(SYS_write, fd, text, 61) != 61) {
            perror("write");
            return 1;
        }
    }
    printf("after %s\n", text);
    printf("ids %d %d\n", getpid(), getppid());
    return 0;
}
