/* workload SECONDS [WORKERS]: use the kernel's common paths from several processes at once.
 * Prints, when the time is over: "workload NAME COUNT" for each kind of call, counted over all
 * workers, then "workload done".  Any call that does not do what it must ends it with status 1
 * and says which on stderr, so a kernel that was broken by tracing does not go unnoticed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READ, OPEN, STAT, MMAP, FORK, EXEC, PIPE, SIGNAL, POLL, KINDS };
static const char *const names[KINDS] = {
    "read", "open", "stat", "mmap", "fork", "exec", "pipe", "signal", "poll",
};
static long *counts; /* shared by all workers */
static volatile sig_atomic_t signals_seen;

static void die(const char *what)
{
    fprintf(stderr, "workload: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void did(int kind, int ok)
{
    if (!ok)
        die(names[kind]);
    __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED);
}

static void on_signal(int number)
{
    (void)number;
    signals_seen++;
}

static int ended_well(pid_t child)
{
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static void use_files(const char *path)
{
    char block[4096], back[64];
    struct stat st;
    int zero = open("/dev/zero", O_RDONLY);
    did(OPEN, zero >= 0);
    for (int i = 0; i < 50; i++)
        did(READ, read(zero, block, sizeof block) == (ssize_t)sizeof block && block[99] == 0);
    close(zero);

    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    did(OPEN, file >= 0);
    if (write(file, "some text of the workload", 25) != 25)
        die("write");
    did(READ, pread(file, back, sizeof back, 5) == 20 && !memcmp(back, "text of", 7));
    for (int i = 0; i < 20; i++)
        did(STAT, stat(path, &st) == 0 && st.st_size == 25);
    did(STAT, fstat(file, &st) == 0 && st.st_size == 25);
    did(STAT, stat("/no/such/file", &st) == -1 && errno == ENOENT);

    char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    did(MMAP, mapped != MAP_FAILED && !memcmp(mapped, "some", 4));
    munmap(mapped, 4096);
    close(file);
    if (unlink(path))
        die("unlink");
}

static void use_memory(void)
{
    size_t size = 64 * 4096;
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    did(MMAP, mapped != MAP_FAILED);
    for (size_t at = 0; at < size; at += 4096)
        mapped[at] = (char)(at >> 12);
    for (size_t at = 0; at < size; at += 4096)
        if (mapped[at] != (char)(at >> 12))
            die("memory has changed");
    munmap(mapped, size);
}

static void use_processes(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    did(FORK, ended_well(child));
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "workload", "exec", (char *)NULL);
        _exit(127);
    }
    did(EXEC, ended_well(child));
}

static void use_pipe(void)
{
    int ends[2], more[2];
    char letter = 'k', got = 0;
    struct pollfd ready = {.events = POLLIN};
    if (pipe(ends) || pipe(more))
        die("pipe");
    pid_t child = fork();
    if (child == 0) { /* sends back what it gets, plus one, 20 times */
        for (int i = 0; i < 20; i++) {
            if (read(ends[0], &got, 1) != 1)
                _exit(1);
            got++;
            if (write(more[1], &got, 1) != 1)
                _exit(1);
        }
        _exit(0);
    }
    ready.fd = more[0];
    for (int i = 0; i < 20; i++) {
        if (write(ends[1], &letter, 1) != 1)
            die("pipe");
        did(POLL, poll(&ready, 1, 20000) == 1);
        did(PIPE, read(more[0], &got, 1) == 1 && got == letter + 1);
    }
    did(FORK, ended_well(child));
    close(ends[0]), close(ends[1]), close(more[0]), close(more[1]);
    did(POLL, poll(NULL, 0, 1) == 0);
}

static void use_signals(void)
{
    for (int i = 0; i < 10; i++) {
        int before = signals_seen;
        kill(getpid(), SIGUSR1);
        did(SIGNAL, signals_seen == before + 1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void work(double until)
{
    char path[64];
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    snprintf(path, sizeof path, "/tmp/workload.%d", (int)getpid());
    while (now() < until) {
        use_files(path);
        use_memory();
        use_processes();
        use_pipe();
        use_signals();
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "exec"))
        return 0;
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
    long workers = argc > 2 ? strtol(argv[2], NULL, 0) : 4;
    if (seconds <= 0 || workers <= 0) {
        fprintf(stderr, "usage: workload SECONDS [WORKERS]\n");
        return 2;
    }
    counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        die("mmap");
    double until = now() + seconds;
    int failed = 0;
    for (long i = 0; i < workers; i++) {
        pid_t child = fork();
        if (child == 0)
            work(until);
        if (child < 0)
            die("fork");
    }
    for (long i = 0; i < workers; i++) {
        int status;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
            failed = 1;
    }
    for (int kind = 0; kind < KINDS; kind++)
        printf("workload %s %ld\n", names[kind], counts[kind]);
    puts(failed ? "workload failed" : "workload done");
    return failed;
}
