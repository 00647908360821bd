/* deeds: calls of many kinds, each a fixed number of times, for the checks of examples/.
 * Reads: 16 of 1 byte, 32 of 100 and 64 of 4096 from /dev/zero, 3 of 20 from /etc/passwd, 10 of
 * 1 from a pipe.  Writes: 40 of 512 to /dev/null, 10 of 1 to the pipe (by a child), and one at
 * the end.  7 opens fail; the other calls and their numbers are plain to see below.  It ends with
 * status 1 when a call does not do what it must. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

static void ignore(int number) { (void)number; }

static void files(void)
{
    static char block[4096];
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    must(zero >= 0 && null >= 0, "open");
    for (int i = 0; i < 16; i++)
        must(read(zero, block, 1) == 1, "read");
    for (int i = 0; i < 32; i++)
        must(read(zero, block, 100) == 100, "read");
    for (int i = 0; i < 64; i++)
        must(read(zero, block, 4096) == 4096, "read");
    for (int i = 0; i < 40; i++)
        must(write(null, block, 512) == 512, "write");
    for (int i = 0; i < 3; i++) {
        int fd = open("/etc/passwd", O_RDONLY);
        must(fd >= 0 && read(fd, block, 20) == 20, "passwd");
        for (int k = 0; k < 4; k++)
            must(lseek(fd, k, SEEK_SET) == k, "lseek");
        close(fd);
    }
    for (int i = 0; i < 7; i++)
        must(open("/no/such/file", O_RDONLY) < 0, "no such file");
    for (int i = 1; i <= 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "/tmp/deed.%d", i);
        int fd = open(name, O_RDWR | O_CREAT, 0600);
        must(fd >= 0 && ftruncate(fd, 4096) == 0, "create");
        close(fd);
        must(unlink(name) == 0, "unlink");
    }
    must(mkdir("/tmp/deed.d", 0700) == 0 && mkdir("/tmp/deed.d/x", 0700) == 0, "mkdir");
    must(rename("/tmp/deed.d/x", "/tmp/deed.d/y") == 0, "rename");
    must(rmdir("/tmp/deed.d/y") == 0 && rmdir("/tmp/deed.d") == 0, "rmdir");
    struct stat st;
    for (int i = 0; i < 5; i++)
        must(stat("/etc/passwd", &st) == 0, "stat");
    for (int i = 0; i < 3; i++)
        close(dup(zero));
    close(zero);
    close(null);
}

static void processes(char *self)
{
    for (int i = 1; i <= 4; i++) {
        char number[8];
        int status;
        snprintf(number, sizeof number, "%d", i);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", self, number, (char *)NULL);
            _exit(99);
        }
        must(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == i, "child");
    }
    int ends[2];
    char byte;
    must(pipe(ends) == 0, "pipe");
    if (fork() == 0) {
        for (int i = 0; i < 10; i++) {
            must(write(ends[1], "x", 1) == 1, "write");
            usleep(2000);
        }
        _exit(0);
    }
    for (int i = 0; i < 10; i++)
        must(read(ends[0], &byte, 1) == 1, "pipe");
    must(wait(NULL) > 0, "wait");
}

static void memory(void)
{
    char *area = mmap(NULL, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(area != MAP_FAILED, "mmap");
    for (int i = 0; i < 64; i++)
        area[i * 4096] = 1;
    munmap(area, 64 * 4096);
}

static void network(void)
{
    char block[64] = "hello";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7777)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
    must(bind(in, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    for (int i = 0; i < 9; i++) {
        must(sendto(out, block, 64, 0, (struct sockaddr *)&at, sizeof at) == 64, "sendto");
        must(recv(in, block, 64, 0) == 64, "recv");
    }
    close(in);
    close(out);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        _exit(atoi(argv[1])); /* a child of processes() */
    files();
    processes(argv[0]);
    memory();
    network();
    signal(SIGUSR1, ignore);
    for (int i = 0; i < 6; i++)
        kill(getpid(), SIGUSR1);
    for (int i = 0; i < 5; i++) {
        struct timespec t = {0, 10000000};
        nanosleep(&t, NULL);
    }
    for (int i = 0; i < 25; i++)
        syscall(SYS_getppid);
    must(write(1, "deeds done\n", 11) == 11, "write");
    _exit(0);
}
