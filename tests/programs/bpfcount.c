/* bpfcount FUNCTION OFFSET... -- COMMAND...: run COMMAND while a BPF program on a kprobe counts
 * at each FUNCTION+OFFSET, then print "bpfcount N" with the hits on all CPUs, all offsets.
 *
 * The program is what bpftrace makes of `kprobe:FUNCTION+OFFSET { @ = count(); }`: look key 0 up
 * in a per-CPU hash map, add one to its value, or insert 1 (bpf(2), perf_event_open(2)).
 * An offset that the kernel refuses is left out and named on stderr.
 *
 * bpfcount tracepoint:SUBSYSTEM:NAME -- COMMAND...: the same for a tracepoint's event, as bpftrace's
 * `tracepoint:SUBSYSTEM:NAME { @ = count(); }`.  rawtracepoint:NAME is bpftrace's of that name.
 * perf:SUBSYSTEM:NAME has no program: each CPU's perf event counts, as in `perf stat -a -e`. */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CPUS_MAX = 64, PROBES_MAX = 1024 };
#define INSN(c, d, s, o, i) \
    ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)})

static int bpf(int command, union bpf_attr *attr)
{
    return syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int make_map(void)
{
    union bpf_attr a = {.map_type = BPF_MAP_TYPE_PERCPU_HASH};
    a.key_size = 8, a.value_size = 8, a.max_entries = 4096;
    return bpf(BPF_MAP_CREATE, &a);
}

static int load(int map, int type)
{
    struct bpf_insn code[] = {
        INSN(BPF_ST | BPF_MEM | BPF_DW, 10, 0, -8, 0),           /* key = 0 */
        INSN(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map),
        INSN(0, 0, 0, 0, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -8),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem),
        INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 4, 0),
        INSN(BPF_LDX | BPF_MEM | BPF_DW, 1, 0, 0, 0),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, 1, 0, 0, 1),
        INSN(BPF_STX | BPF_MEM | BPF_DW, 0, 1, 0, 0),
        INSN(BPF_JMP | BPF_JA, 0, 0, 9, 0),
        INSN(BPF_ST | BPF_MEM | BPF_DW, 10, 0, -16, 1),          /* value = 1 */
        INSN(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map),
        INSN(0, 0, 0, 0, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -8),
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 3, 10, 0, 0),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, 3, 0, 0, -16),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 4, 0, 0, 0),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_update_elem),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr a = {.prog_type = type};
    a.insns = (uintptr_t)code, a.insn_cnt = sizeof code / sizeof *code;
    a.license = (uintptr_t) "GPL";
    return bpf(BPF_PROG_LOAD, &a);
}

static int kprobe_type(void)
{
    FILE *file = fopen("/sys/bus/event_source/devices/kprobe/type", "r");
    int type = -1;
    if (file && fscanf(file, "%d", &type) != 1)
        type = -1;
    return type;
}

static int attach(const char *function, long offset, int type, int program)
{
    struct perf_event_attr a = {.size = sizeof a, .type = type};
    a.kprobe_func = (uintptr_t)function, a.probe_offset = offset, a.sample_period = 1;
    int fd = syscall(SYS_perf_event_open, &a, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        return -1;
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Open a tracepoint's event on a CPU, for a program or, if there is none, for counting. */
static int attach_event(const char *event, int cpu, int program)
{
    char path[300], subsystem[128], name[128];
    struct perf_event_attr a = {.size = sizeof a, .type = PERF_TYPE_TRACEPOINT};
    if (sscanf(event, "%127[^:]:%127s", subsystem, name) != 2)
        return -1;
    snprintf(path, sizeof path, "/sys/kernel/tracing/events/%s/%s/id", subsystem, name);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%llu", &a.config) != 1)
        return -1;
    fclose(file);
    if (program >= 0)
        a.sample_period = 1;
    int fd = syscall(SYS_perf_event_open, &a, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd >= 0 && ((program >= 0 && ioctl(fd, PERF_EVENT_IOC_SET_BPF, program)) ||
                    ioctl(fd, PERF_EVENT_IOC_ENABLE, 0)))
        return -1;
    return fd;
}

static int attach_raw(const char *name, int program)
{
    union bpf_attr a = {0};
    a.raw_tracepoint.name = (uintptr_t)name, a.raw_tracepoint.prog_fd = program;
    return bpf(BPF_RAW_TRACEPOINT_OPEN, &a);
}

static int events[CPUS_MAX], event_count; /* perf events that count without a program */

static long long total(int map)
{
    uint64_t key = 0, values[CPUS_MAX] = {0};
    long long sum = 0;
    if (event_count) {
        for (int i = 0; i < event_count; i++)
            if (read(events[i], values, sizeof *values) == sizeof *values)
                sum += values[0];
        return sum;
    }
    union bpf_attr a = {.map_fd = map};
    a.key = (uintptr_t)&key, a.value = (uintptr_t)values;
    if (bpf(BPF_MAP_LOOKUP_ELEM, &a) == 0)
        for (int i = 0; i < CPUS_MAX; i++)
            sum += values[i];
    return sum;
}

/* If `what` names an event, attach to it and return 1; -1 if that fails; 0 if it names a function. */
static int attach_named(const char *what, int map)
{
    int fd = -1;
    if (!strncmp(what, "tracepoint:", 11)) {
        fd = attach_event(what + 11, 0, load(map, BPF_PROG_TYPE_TRACEPOINT));
    } else if (!strncmp(what, "rawtracepoint:", 14)) {
        fd = attach_raw(what + 14, load(map, BPF_PROG_TYPE_RAW_TRACEPOINT));
    } else if (!strncmp(what, "perf:", 5)) {
        while (event_count < CPUS_MAX && (fd = attach_event(what + 5, event_count, -1)) >= 0)
            events[event_count++] = fd;
        fd = event_count ? 0 : -1;
    } else {
        return 0;
    }
    return fd < 0 ? -1 : 1;
}

int main(int argc, char **argv)
{
    int at = 2, attached = 0, map = make_map(), named = argc < 4 ? -1 : attach_named(argv[1], map);
    if (named) {
        attached = named > 0;
    } else {
        int type = kprobe_type(), program = load(map, BPF_PROG_TYPE_KPROBE);
        if (type < 0 || map < 0 || program < 0) {
            fprintf(stderr, "bpfcount: cannot set up (type %d, map %d, program %d): %s\n", type,
                    map, program, strerror(errno));
            return 2;
        }
        for (; at < argc && strcmp(argv[at], "--"); at++) {
            if (attached < PROBES_MAX &&
                attach(argv[1], strtol(argv[at], NULL, 0), type, program) >= 0)
                attached++;
            else
                fprintf(stderr, "bpfcount: %s+%s: %s\n", argv[1], argv[at], strerror(errno));
        }
    }
    if (at + 1 >= argc || !attached) {
        fprintf(stderr, "bpfcount: nothing to count: %s\n", strerror(errno));
        return 2;
    }
    usleep(300000); /* the kernel optimises kprobes a moment later */
    long long before = total(map);
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[at + 1], argv + at + 1);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("bpfcount %lld\n", total(map) - before);
    return status ? 1 : 0;
}
