"""Words of other tracers and debuggers, and what D has for them.

Users of bpftrace, perf, trace-cmd, SystemTap or gdb type the words that they know. The checker
looks an unknown name up here before it compares the name's spelling with D's names: `comm` is not a
misspelt `cpu`. The tables only supply hints for error messages. Two forms of probe descriptions are
also accepted: FUNCTION+OFFSET and FILE:FUNCTION:LINE. docs/coming-from.md has the same tables for
users.

Sources: bpftrace's language reference (0.23), perf-probe(1), the kernel's Documentation/trace/
kprobetrace.rst, SystemTap's tapset reference, gdb's manual ("Registers"), FreeBSD's sys/sys/proc.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from kinst.core.probe import ProbePattern

# What to type in D instead of a variable of another tracer (gdb's and perf's without their $).
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        # bpftrace
        "comm": "execname", "nsecs": "timestamp", "elapsed": "timestamp, less one kept in BEGIN",
        "kstack": "stack()", "func": "probefunc", "probe": "probename, or probefunc",
        "retval": "arg1, at fbt::FUNCTION:return", "curtask": "curthread", "rand": "rand()",
        "username": "uid", "cpid": "$target", "sarg0": "arg6",
        "sarg1": "arg7", "sarg2": "arg8",
        # perf probe, trace-cmd
        "stack": "stack()", "ustack": "ustack()", "stack0": "arg6",
        "arg10": "arg0 to arg9; locals->NAME has a function's variables",
        # gdb
        "bt": "stack()", "backtrace": "stack()",
    }
)  # fmt: skip

# What to type in D instead of a function of another tracer.
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        # bpftrace
        "hist": "quantize(VALUE)", "lhist": "lquantize(VALUE, LOW, HIGH, STEP)",
        "tseries": "count() by a time as its key, printed by tick-1s",
        "hexdump": "tracemem(POINTER, SIZE)",
        "stats": "@n = count(); @average = avg(VALUE); @total = sum(VALUE)",
        "str": "stringof(POINTER) in the kernel, copyinstr(POINTER) in a process",
        "kstr": "stringof(POINTER)", "buf": "tracemem(POINTER, SIZE)", "kstack": "stack()",
        "ksym": "func(ADDRESS)", "kaddr": "&`NAME",
        "reg": "regs[R_NAME]", "ntop": "inet_ntop(FAMILY, POINTER)",
        "time": 'printf("%Y", walltimestamp)', "strftime": 'printf("%Y", walltimestamp)',
        "nsecs": "timestamp", "zero": "clear(@NAME)", "delete": "NAME[KEY] = 0",
        "path": "d_path(POINTER)", "tuple": "a variable for each value",
        "override": "return(VALUE), with -w", "signal": "raise(NUMBER)",
        "kptr": "the pointer itself", "uptr": "copyin(POINTER, SIZE)",
        "macaddr": "six bytes by printf()", "bswap": "htonl() and its like", "len": "strlen()",
        "strncmp": "substr(STRING, 0, LENGTH) == STRING", "strcmp": "==, which compares strings",
        "strcontains": "strstr()", "join": "printf()",
        "println": "printf()", "has_key": "NAME[KEY] != 0",
        # SystemTap
        "log": "printf()", "pid": "pid", "tid": "tid", "ppid": "ppid", "uid": "uid", "cpu": "cpu",
        "execname": "execname", "probefunc": "probefunc", "pp": "probename", "target": "$target",
        "gettimeofday_ns": "walltimestamp", "gettimeofday_us": "walltimestamp / 1000",
        "gettimeofday_ms": "walltimestamp / 1000000",
        "gettimeofday_s": "walltimestamp / 1000000000",
        "ktime_get_ns": "timestamp", "local_clock_ns": "timestamp", "get_cycles": "timestamp",
        "print_backtrace": "stack()", "print_ubacktrace": "ustack()",
        "kernel_string": "stringof(POINTER)", "user_string": "copyinstr(POINTER)",
        "user_string_quoted": "copyinstr(POINTER)", "thread_indent": "-F, which indents",
        "symname": "func(ADDRESS)", "register": "regs[R_NAME]", "u_register": "uregs[R_NAME]",
        "task_current": "curthread", "isinstr": "strstr()", "sprintf": "printf()",
        "kernel_int": "*(int *)POINTER", "kernel_long": "*(long *)POINTER", "tokenize": "strtok()",
        "stringat": "STRING[INDEX]", "print_regs": "trace(regs[R_NAME])",
        "printregs": "trace(regs[R_NAME])", "puts": "printf()",
    }
)  # fmt: skip

# What to type in D for Linux instead of a member of FreeBSD's threads and processes.
MEMBERS: Mapping[str, str] = MappingProxyType(
    {
        "td_name": "execname, or curthread->comm", "td_tid": "tid, or curthread->pid",
        "td_proc": "curthread->group_leader", "p_comm": "execname, or curthread->comm",
        "p_pid": "pid, or curthread->tgid", "bio_length": "b_bcount", "bio_bcount": "b_bcount",
        "bio_cmd": "b_flags", "bio_offset": "b_blkno, in blocks",
    }
)  # fmt: skip

_IN_D = "in D: "
_TICKS = {"s": "s", "ms": "ms", "us": "us", "hz": "hz"}
_PROBE_WORDS = frozenset({"kprobe", "k", "p", "kretprobe", "r"})
_NAME = r"([\w.*?\[\]-]+)"
_USERLAND = (
    "kinst only counts in programs: pid$target:a.out:FUNCTION:entry { @ = count(); }, with"
    " --process -c CMD"
)
# What perf and tracefs call the parts of the kernel that have tracepoints.
_SUBSYSTEMS = """
alarmtimer block bpf_trace cgroup clk compaction cpuhp devlink dma_fence ext4 exceptions fib
filelock filemap fs_dax gpio i2c io_uring iomap iommu irq irq_vectors jbd2 kmem kvm libata mce
migrate mmap mmap_lock module mptcp msr napi neigh net netlink nmi oom page_isolation page_pool
percpu power qdisc random ras raw_syscalls rcu regmap regulator rpm rseq rtc sched scsi
signal skb sock spi sunrpc swiotlb task tcp thermal timer tlb udp vmscan workqueue writeback xdp
xfs
"""


def _ticks(match: re.Match[str]) -> str:
    unit = _TICKS.get(match[1])
    return f"in D: tick-{match[2]}{unit}" if unit else ""


def _system_call(match: re.Match[str]) -> str:
    name = {"enter": "entry", "exit": "return"}[match[1]]
    return f"in D: syscall::{match[2] or ''}:{name}"


def _tracepoint(match: re.Match[str]) -> str:
    subsystem, name = match[1] or "", match[2]
    return f"in D: sdt:{subsystem.replace('*', '')}::{name}"


# Patterns of whole probe descriptions of other languages, each with its hint or a function that
# makes the hint.
_PROBES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (rf"(?:kprobe|k):(?:\w+:)?{_NAME}\+(\w+)", r"in D: kinst::\1:\2"),
    (rf"(?:kprobe|k):(?:\w+:)?{_NAME}@(?:[-\w./]*/)?([-\w.]+):(\d+)", r"in D: kinst::\1:@\2@\3"),
    (rf"(?:kprobe|k|fentry|kfunc|f):(?:\w+:)?{_NAME}", r"in D: fbt::\1:entry"),
    (rf"(?:kretprobe|kr|fexit|kretfunc|fr):(?:\w+:)?{_NAME}", r"in D: fbt::\1:return"),
    (rf"p:(?:\w+/)?(?:\w+:)?{_NAME}", r"in D: fbt::\1:entry"),
    (rf"r:(?:\w+/)?(?:\w+:)?{_NAME}", r"in D: fbt::\1:return"),
    (r"(?:(?:tracepoint|t|rawtracepoint|rt):(?:\w+:)?|(?:raw_)?syscalls:)sys_(enter|exit)"
     r"(?:_([\w*?]+))?", _system_call),
    (rf"(?:tracepoint|t|rawtracepoint|rt):(?:([\w*]+):)?{_NAME}", _tracepoint),
    (rf"({'|'.join(_SUBSYSTEMS.split())}):{_NAME}", _tracepoint),
    (r"(?:interval|i):(\w+):(\d+)", _ticks),
    (r"(?:profile|p):hz:(\d+)", r"in D: profile-\1"),
    (r"(?:profile|p):(s|ms|us):(\d+)", r"in D: profile-\2\1"),
    (r"(?:uprobe|uretprobe|usdt|u|ur|U|process|python|java|php|ruby|plockstat):.*",
     _USERLAND),
    # Functions of programs, which no kernel has.
    (r"(?:main|malloc|calloc|realloc|pthread_\w+)(?::entry|:return)?", _USERLAND),
    (r"(?:software|hardware|watchpoint|asyncwatchpoint|iter|perf|bench):.*",
     "kinst has no such probes; profile-97 samples, fbt and kinst name code"),
    (r"syscall:(?:freebsd|linux)\w*:([\w*?\[\]-]*):(entry|return)", r"in D: syscall::\1:\2"),
    (r"(\w+):kernel:(.*)", r"in D: \1:vmlinux:\2"),
    (r"(?:begin|end|Begin|End)", "BEGIN and END are in capitals"),
    (r"(?:sched|proc|io|ip|tcp|udp|udplite|sctp|fsinfo|vminfo|sysinfo|vfs|nfs\w*|lockstat|mib"
     r"|cpc):.*",
     "kinst has no such provider; fbt::FUNCTION:entry names the kernel's functions"),
)  # fmt: skip
# The forms in which kernels and other tools print an instruction.
_PLUS_OFFSET = re.compile(
    r"(?P<before>(?:[^:]*:)*)(?P<function>[^:+]+):?\+(?P<offset>\w+)(?:/\w+)?"
)
_IN_FILE = re.compile(
    r"(?:kinst)?:*(?P<file>[-\w./]+\.[chS]):(?:(?P<function>[\w.@]+):|\*?:)?(?P<line>[0-9]+)"
)


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]:
    return tuple((re.compile(form), hint) for form, hint in _PROBES)


def probe_hint(pattern: ProbePattern) -> str:
    """Return a hint that says what to type in D instead of a probe description of another language;
    "" for any other description.
    """
    return _hint(str(pattern).strip(":"))


def description_in_d(written: str) -> str:
    """Return the probe description of D for one of another language; "" if there is no single
    one."""
    if written.lower() in ("begin", "end"):
        return written.upper()
    meant = _hint(written)
    return meant.removeprefix(_IN_D) if meant.startswith(_IN_D) else ""


def _hint(written: str) -> str:
    for form, hint in _compiled():
        if match := form.fullmatch(written):
            return match.expand(hint) if isinstance(hint, str) else hint(match)
    return ""


_REGISTER = re.compile(
    r"(?:[re]?[abcd]x|[re]?[sd]i|[re]?[sbi]p|r[0-9]+|[xast][0-9]+|pc|lr|ra)", re.I
)


def macro_hint(name: str) -> str:
    """Return a hint that says what D has for $NAME of gdb or perf probe; "" for any other name."""
    if name == "arg1":
        return "in D: arg0, the first argument"
    if re.fullmatch(r"arg[2-9]|arg10", name):
        return f"in D: arg{int(name[3:]) - 1}, counted from 0"
    if _REGISTER.fullmatch(name):
        return f"in D: regs[R_{name.upper()}]"
    return variable_hint(name)


def plain_description(text: str) -> str:
    """Rewrite a probe description of the form FUNCTION+OFFSET, FILE:FUNCTION:LINE or FILE:LINE as D
    writes it; return any other description unchanged. FUNCTION:+OFFSET, and
    FUNCTION+0xOFFSET/0xSIZE, the form of a kernel's stack traces, are rewritten as well.

    Args:
        text: the description, with macros already expanded.
    """
    if match := _IN_FILE.fullmatch(text):
        if match["function"] is None:
            return f"kinst::{match['file']}@{match['line']}:"
        file = match["file"].rpartition("/")[2]
        return f"kinst::{match['function']}:@{file}@{match['line']}"
    if match := _PLUS_OFFSET.fullmatch(text):
        *words, _ = match["before"].split(":")
        if not set(words) - {"kinst", ""}:
            return f"kinst::{match['function']}:{match['offset']}"
        if words[:-1] in ([], ["kinst"], [""]) and words[-1] not in _PROBE_WORDS:
            return f"kinst:{words[-1]}:{match['function']}:{match['offset']}"
    return text


def variable_hint(name: str) -> str:
    """Return a hint that says what D has for a variable of another language; "" for any
    other name.
    """
    meant = VARIABLES.get(name)
    return f"in D: {meant}" if meant else ""


def function_hint(name: str) -> str:
    """Return a hint that says what D has for a function of another language; "" for any
    other name.
    """
    meant = FUNCTIONS.get(name)
    return f"in D: {meant}" if meant else ""


def member_hint(name: str) -> str:
    """Return a hint that says what D has for a member of FreeBSD's threads and processes; "" for
    any other name.
    """
    meant = MEMBERS.get(name)
    return f"Linux: {meant}" if meant else ""
