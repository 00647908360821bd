/* kprobes EVENT... -- COMMAND...: run COMMAND and tell what kprobe events of the kernel, already
 * in kprobe_events, saw of its process from the fork on, through perf_event_open(2):
 *
 *   pid N                      of COMMAND
 *   event EVENT COUNT          for each that there is
 *   regs WORD WORD ...         each hit of the event called regs, in order of time: its arguments
 *
 * It ends with COMMAND's status, or 1 when the buffers were too small.  Each CPU has a buffer for
 * all events.  (perf's, not tracefs': see tests/vm/kprobe_events.py.) */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EVENTS_MAX = 1024, CPUS_MAX = 4, PAGE = 4096, BUFFER = 4096 * PAGE, SPARE = 65536 };
enum { COMMON = 8, PROBE_IP = 8 }; /* bytes of a raw record before the arguments */

struct sample {
    struct perf_event_header head;
    uint64_t event;
    uint32_t pid, tid;
    uint64_t time;
    uint32_t size; /* of the raw data behind it */
} __attribute__((packed));

struct event {
    const char *name;
    uint64_t ids[CPUS_MAX], hits;
};

static struct event events[EVENTS_MAX];
static int count, cpus;
static struct perf_event_mmap_page *buffers[CPUS_MAX];
static int owners[CPUS_MAX]; /* the events that have mapped the buffers */

static void die(const char *what)
{
    fprintf(stderr, "kprobes: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Follow an event on all CPUs, if there is one of this name. */
static void follow(const char *name)
{
    char path[256];
    struct perf_event_attr attr = {
        .type = PERF_TYPE_TRACEPOINT, .size = sizeof attr, .sample_period = 1,
        .sample_type =
            PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_RAW,
    };
    snprintf(path, sizeof path, "/sys/kernel/tracing/events/kprobes/%s/id", name);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    unsigned long id;
    if (fscanf(file, "%lu", &id) != 1 || count == EVENTS_MAX)
        die(path);
    fclose(file);
    attr.config = id;
    for (int cpu = 0; cpu < cpus; cpu++) {
        int fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
        if (fd < 0 || ioctl(fd, PERF_EVENT_IOC_ID, &events[count].ids[cpu]))
            die("perf_event_open");
        if (!buffers[cpu]) {
            owners[cpu] = fd;
            buffers[cpu] =
                mmap(NULL, PAGE + BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (buffers[cpu] == MAP_FAILED)
                die("mmap");
        } else if (ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, owners[cpu])) {
            die("PERF_EVENT_IOC_SET_OUTPUT");
        }
    }
    events[count++].name = name;
}

/* The next sample of this thread in a CPU's buffer from *at on, or NULL. */
static const struct sample *next(int cpu, uint64_t *at, uint32_t tid)
{
    if (!buffers[cpu])
        return NULL;
    while (*at < buffers[cpu]->data_head) {
        const struct sample *one = (const void *)((const char *)buffers[cpu] + PAGE + *at);
        if (one->head.type == PERF_RECORD_SAMPLE && one->tid == tid)
            return one;
        *at += one->head.size;
    }
    return NULL;
}

static void account(const struct sample *one, int cpu)
{
    struct event *event = events;
    while (event < events + count && event->ids[cpu] != one->event)
        event++;
    if (event == events + count)
        die("a sample of no event");
    event->hits++;
    if (strcmp(event->name, "regs"))
        return;
    printf("regs");
    for (uint32_t i = COMMON + PROBE_IP; i + 8 <= one->size; i += 8) {
        uint64_t word;
        memcpy(&word, (const char *)(one + 1) + i, sizeof word);
        printf(" %llx", (unsigned long long)word);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    int at = 1, status;
    struct rlimit files = {EVENTS_MAX * CPUS_MAX + 64, EVENTS_MAX * CPUS_MAX + 64};
    if (setrlimit(RLIMIT_NOFILE, &files))
        die("setrlimit");
    cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (cpus > CPUS_MAX)
        cpus = CPUS_MAX;
    for (; at < argc && strcmp(argv[at], "--"); at++)
        follow(argv[at]);
    if (at + 1 >= argc)
        die("kprobes EVENT... -- COMMAND...");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[at + 1], argv + at + 1);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        die("the command");
    printf("pid %d\n", (int)pid);
    uint64_t places[CPUS_MAX] = {0};
    for (;;) {
        const struct sample *first = NULL;
        int where = 0;
        for (int cpu = 0; cpu < cpus; cpu++) {
            const struct sample *one = next(cpu, &places[cpu], pid);
            if (one && (!first || one->time < first->time)) {
                first = one;
                where = cpu;
            }
        }
        if (!first)
            break;
        account(first, where);
        places[where] += first->head.size;
    }
    for (int cpu = 0; cpu < cpus; cpu++)
        if (buffers[cpu] && buffers[cpu]->data_head > BUFFER - SPARE)
            die("too many hits");
    for (int i = 0; i < count; i++)
        printf("event %s %llu\n", events[i].name, (unsigned long long)events[i].hits);
    return WEXITSTATUS(status);
}
