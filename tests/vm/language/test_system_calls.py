"""The syscall provider, against strace(1)'s log of the same run and against the guest's own
tracepoints."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm.command import kinst

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


def test_calls_and_results_are_those_of_strace(guest_program: Callable[[str], Path]) -> None:
    """Each call of each thread, its arguments, its result and its error.

    The program's threads and strace run in the guest on the host's files.
    """
    program = guest_program("calls")
    done = kinst(
        "-q", "--root", "/", "-n", ENTRY + RETURN, "-c", LOG.format(program=program)
    ).good()
    theirs, ours = named(strace_log(done.guest)), kinst_log(done.out)
    assert len(theirs) == 4 and set(theirs) == set(ours), done
    every = [call for calls in theirs.values() for call in calls]
    assert len(every) > 100 and {call.error for call in every} >= {"ENOENT", "EBADF", "ERESTARTSYS"}
    wrong = [one for thread in theirs for one in differences(theirs[thread], ours[thread])]
    assert not wrong, "\n".join(wrong)
