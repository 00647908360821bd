"""The syscall provider, against strace(1)'s log of the same run and against the guest's own
tracepoints."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tiers import ISAS, of_kernel_versions
from tests.vm.command import guest_script, kinst
from tests.vm.system_call_events import is_of_c, numbers_in

pytestmark = pytest.mark.vm

OF_PROGRAM = '/execname == "calls" || execname == "exe"/'  # the second by /proc/self/exe
ENTRY = f"""syscall:vmlinux::entry {OF_PROGRAM} {{
    printf("%d %d > %s %x %x %x %x %x %x\\n", timestamp, tid, probefunc,
        arg0, arg1, arg2, arg3, arg4, arg5);
}}"""
RETURN = f"""syscall:vmlinux::return {OF_PROGRAM} {{
    printf("%d %d < %s %d %d %d\\n", timestamp, tid, probefunc, arg0, arg1, errno);
}}"""
LOG = (
    "sh -c 'cd /tmp && strace -ff -o log -e raw=all {program} && "
    'for f in log.*; do echo "thread ${{f#log.}}"; cat $f; done\''
)
LOW = (1 << 32) - 1
O_CREAT = 0o100
_LINE = re.compile(r"(\w+)\((.*?)\) += (-?\w+|\?)(?: (\w+))?")
# As in the kernel's include/linux/errno.h: no program sees these.
RESTART = {"ERESTARTSYS": 512, "ERESTARTNOINTR": 513, "ERESTART_RESTARTBLOCK": 516}
WITHOUT_RETURN = {"exit", "exit_group", "rt_sigreturn"}


@dataclass(frozen=True)
class Call:
    """A system call in a log.

    Attributes:
        arguments: low 32 bits of each argument.
        result: low 32 bits of the result; None if there is none.
        error: name or number of the error, "" if there is none.
    """

    name: str
    arguments: tuple[int, ...]
    result: int | None
    error: str


def strace_log(text: str) -> dict[int, list[Call]]:
    """Return the calls of each thread, in order."""
    threads: dict[int, list[Call]] = {}
    for line in text.splitlines():
        if line.startswith("thread "):
            calls = threads.setdefault(int(line.split()[1]), [])
        elif found := _LINE.match(line):
            name, words, result, error = found.groups()
            arguments = tuple(int(word, 0) & LOW for word in words.split(", ") if word)
            number = None if result == "?" else int(result, 0) & LOW
            calls.append(Call(name, arguments, number, error or ""))
    return threads


def kinst_log(text: str) -> Mapping[int, list[tuple[str, str, list[str]]]]:
    """Return (direction, name, numbers) of each thread's records, in order."""
    lines = sorted((line.split() for line in text.splitlines() if line.strip()),
                   key=lambda words: int(words[0]))  # fmt: skip
    threads = defaultdict(list)
    for _, thread, way, name, *numbers in lines:
        threads[int(thread)].append((way, name, numbers))
    return threads


def paired(log: list[tuple[str, str, list[str]]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (name, numbers at entry, numbers at return) of each call; [] for no such record."""
    at = 0
    while at < len(log):
        way, name, numbers = log[at]
        after = log[at + 1] if at + 1 < len(log) else ("", "", [])
        if way == "<":
            yield name, [], numbers
        elif after[:2] == ("<", name):
            yield name, numbers, after[2]
            at += 1
        else:
            yield name, numbers, []
        at += 1


def differences(theirs: list[Call], ours: list[tuple[str, str, list[str]]]) -> list[str]:
    """Return what is wrong with kinst's log of a thread, by strace's."""
    wrong, pairs = [], list(paired(ours))
    if len(theirs) != len(pairs):
        wrong.append(f"{len(theirs)} calls, not {len(pairs)}")
    for call, (name, entered, returned) in zip(theirs, pairs, strict=False):
        if name != call.name:
            return [*wrong, f"{call}: kinst has {name} {entered} {returned}"]
        told = tuple(int(word, 16) & LOW for word in entered)[: len(call.arguments)]
        if entered and told != call.arguments:
            wrong.append(f"{call}: arguments {told}")
        if not returned:
            if name not in WITHOUT_RETURN:
                wrong.append(f"{call}: no return")
            continue
        first, second, error = map(int, returned)
        if first != second:
            wrong.append(f"{call}: arg0 {first}, arg1 {second}")
        if call.error in RESTART:
            good = error == RESTART[call.error] == -first
        elif call.error:
            good = error == -first > 0 and call.result == LOW
        else:
            good = error == 0 and call.result == first & LOW
        if not good:
            wrong.append(f"{call}: returned {returned}")
    return wrong


def named(log: Mapping[int, list[Call]]) -> dict[int, list[Call]]:
    """Return the calls without those whose number means no system call."""
    return {
        thread: [call for call in calls if not call.name.startswith("syscall_0x")]
        for thread, calls in log.items()
    }


@pytest.mark.parametrize(
    "kernel", ["", *(pytest.param(one, marks=pytest.mark.slow) for one in ("5.10", "6.12", "7.3"))]
)
def test_calls_and_results_are_those_of_strace(
    kernel: str, guest_program: Callable[[str], Path]
) -> None:
    """Each call of each thread, its arguments, its result and its error.

    The program's threads and strace run in the guest on the host's files.
    """
    program = guest_program("calls")
    chosen = ("--kernel", kernel) if kernel else ()
    done = kinst(
        *chosen, "-q", "--root", "/", "-n", ENTRY + RETURN, "-c", LOG.format(program=program)
    ).good()
    theirs, ours = named(strace_log(done.guest)), kinst_log(done.out)
    assert len(theirs) == 4 and set(theirs) == set(ours), done
    every = [call for calls in theirs.values() for call in calls]
    assert len(every) > 100 and {call.error for call in every} >= {"ENOENT", "EBADF", "ERESTARTSYS"}
    wrong = [one for thread in theirs for one in differences(theirs[thread], ours[thread])]
    assert not wrong, "\n".join(wrong)


# Prints the kernel's own trace of the system calls of one program.
EVENTS = """
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
cd /sys/kernel/tracing
echo 8192 > buffer_size_kb
echo 1 > events/syscalls/enable
deeds
echo 0 > events/syscalls/enable
cat trace
"""
# A line of the trace: thread, name, and arguments or result.
_EVENT = re.compile(r" *(?:deeds|exe)-(\d+) .*?: sys_(\w+)(?:\((.*)\)| -> (0x[0-9a-f]+))$")
# Names of the kernel's events that are not those of programs (asm-generic/unistd.h).
NAMES = {"newfstat": "fstat", "newuname": "uname", "newstat": "stat", "newlstat": "lstat"}
EVENT_PROGRAM = """
syscall:vmlinux::entry {
    printf("%d %d > %s %x %x %x %x %x %x\\n", timestamp, tid, probefunc,
        arg0, arg1, arg2, arg3, arg4, arg5);
}
syscall:vmlinux::return { printf("%d %d < %s %x\\n", timestamp, tid, probefunc, arg1); }"""
Event = tuple[str, str, tuple[int, ...]]  # direction, name, arguments or the result


def events(trace: str) -> dict[int, list[Event]]:
    """Return the kernel's own events of each thread, in order."""
    of_c = is_of_c(trace)
    threads: dict[int, list[Event]] = {}
    for line in trace.splitlines():
        if found := _EVENT.fullmatch(line):
            thread, name, words, result = found.groups()
            values = [int(result, 16)] if result else numbers_in(words or "", of_c=of_c)
            numbers = tuple(value & LOW for value in values)
            event = "<" if result else ">", NAMES.get(name, name), numbers
            threads.setdefault(int(thread), []).append(without_mode(event))
    return threads


def without_mode(event: Event) -> Event:
    """Return an event without the mode that an open has for a new file only: since Linux 7, the
    kernel's events do not have it otherwise."""
    way, name, numbers = event
    flags = {"open": 1, "openat": 2}.get(name)
    if way == "<" or flags is None or numbers[flags] & O_CREAT:
        return event
    return way, name, numbers[: flags + 1]


def of_kinst(out: str, thread: int, theirs: list[Event]) -> list[Event]:
    """Return kinst's records of a thread, with as many arguments as the kernel's events have."""
    counts: Counter[str] = Counter()
    for way, name, numbers in theirs:
        if way == ">":
            counts[name] = max(counts[name], len(numbers))
    events: list[Event] = []
    for way, name, words in kinst_log(out)[thread]:
        count = counts.get(name) if way == ">" else 1
        values = tuple(int(n, 16) & LOW for n in words)[:count]
        events.append(without_mode((way, name, values)))
    return events


OTHERS = [("amd64", "5.10"), ("amd64", "6.12"), ("amd64", "7.3"), ("arm64", "5.10"),
          ("arm64", "6.12"), ("arm64", "7.3"), ("riscv64", "7.2")]  # fmt: skip


@pytest.mark.parametrize(("isa", "kernel"), of_kernel_versions(ISAS, OTHERS))
def test_calls_and_results_are_those_of_the_kernel_s_own_events(
    isa: str, kernel: str, program_for: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Each call of each thread and its arguments, and each result.

    The program's children are called exe.  The kernel's events have a return of rt_sigreturn(2),
    too (by the name of the interrupted call on riscv64, which restores the number), and the returns
    of new processes.
    """
    files = [program_for("deeds", isa), guest_script(tmp_path, "events", EVENTS)]
    chosen = (f"--vm={isa}", *(("--kernel", kernel) if kernel else ()))
    done = kinst(
        *chosen, "-q", "-x", "bufsize=8m", "-n", EVENT_PROGRAM, "-c", "events", copy=files
    ).good()  # fmt: skip
    threads = events(done.guest)
    assert len(threads) == 6, done.guest[:2000]
    for thread, theirs in threads.items():
        started = next(k for k, event in enumerate(theirs) if event[0] == ">")
        theirs = [
            event
            for before, event in pairwise([("", "", ()), *theirs[started:]])
            if not (before[:2] == (">", "rt_sigreturn") and event[0] == "<")
        ]
        ours = of_kinst(done.out, thread, theirs)
        assert ours == theirs, thread
    every = [event for theirs in threads.values() for event in theirs]
    assert len(every) > 500 and sum(e[:2] == (">", "getppid") for e in every) == 25


def test_returns_of_all_calls_are_one_jump() -> None:
    """As -l -v lists them, at one instruction."""
    words = ("-n", "syscall:vmlinux:read:", "-n", "syscall:vmlinux:getppid:return")
    lines = kinst("-l", "-v", *words).good().out.splitlines()
    shown = {
        line.split(None, 4)[-1]: below
        for line, below in pairwise(lines)
        if line.split()[1:2] == ["syscall"]
    }
    assert set(shown) == {"entry", "return"} and len(lines) > 6, lines
    ways = [re.findall(r" (jump|trap|stop|refused)\b", below) for below in shown.values()]
    assert ways == [["jump"], ["jump"]], lines
