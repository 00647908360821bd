"""Runs of kinst in which one call raises an error or is interrupted by a signal.

The call is one of those to the traced machine, to the guardian, to files or to processes.

    python -m tests.vm.attach.hurt

serves runs: it reads each as a line of JSON (Run) from standard input, and answers with a line
(Outcome) when kinst and its guardian have both ended.  Each run is a fork of this process, which
has loaded all of kinst, so that a run takes no longer than the trace itself.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from kinst.cli.command import main as command
from kinst.core.errors import TargetError
from kinst.machines.attach.changes import Changes
from kinst.machines.attach.journal import Journal
from kinst.wire.companion import Channel, Companion
from kinst.wire.memory import ForeignMemory
from kinst.wire.other_process import OtherProcess
from kinst.wire.ptrace import InjectedCalls
from kinst.wire.rsp import Rsp
from tests import ROOT

# Methods that can be hurt, by class.
CALLS: dict[type, tuple[str, ...]] = {
    Rsp: (
        "_receive", "_send_all", "ask", "interrupt", "read_memory", "resume", "select_request",
        "threads", "wait_stop", "write_memory",
    ),
    OtherProcess: ("descriptor_of", "mappings", "open_memory", "read", "write"),
    InjectedCalls: (
        "call", "close_file", "let_go", "make_memory", "map_anonymous", "map_file", "prepare",
    ),
    Channel: ("receive", "send"),
    Journal: ("_note", "begin", "over", "read"),
    Changes: ("note_text", "restored"),
    ForeignMemory: ("__init__", "close"),
}  # fmt: skip
NAMES = tuple(f"{kind.__name__}.{name}" for kind, names in CALLS.items() for name in names)
WHO = ("kinst", "guardian")


class TornError(Exception):
    """An exception that no code of kinst expects."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "TargetError": lambda: TargetError("the line is broken"),
    "EIO": lambda: OSError(errno.EIO, "Input/output error"),
    "EMFILE": lambda: OSError(errno.EMFILE, "Too many open files"),
    "ENOMEM": lambda: OSError(errno.ENOMEM, "Cannot allocate memory"),
    "MemoryError": MemoryError,
    "TornError": lambda: TornError("a defect"),
}
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
BOTH = "SIGKILL both"  # kinst and its guardian
MOST_SECONDS = 300.0  # of a run


@dataclass(frozen=True)
class Hurt:
    """The call of a run that is hurt.

    Attributes:
        number: the number'th call (from 1) of this name by this process.
        after: hurt it after the call has been made, instead of making it.
        late: a signal arrives so many seconds after the call was begun.
    """

    who: str
    name: str
    number: int
    what: str
    after: bool = False
    late: float = 0.0


@dataclass(frozen=True)
class Run:
    """One run of kinst.

    Attributes:
        words: of kinst's command line.
        err: file for its messages.
        signal: sent `seconds` after the start; "" for none.
    """

    words: Sequence[str]
    out: str
    err: str
    hurt: Hurt | None = None
    signal: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        status: exit status; below 0 the signal that ended kinst.
        seconds: until kinst had ended.
        calls: how many calls of each name were made, by process.
        happened: the run was hurt.
        hangs: the processes that had to be killed.
    """

    status: int
    seconds: float
    calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    happened: bool = False
    hangs: str = ""


class Runs:
    """The serving process, as a test uses it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.vm.attach.hurt"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def run(self, run: Run) -> Outcome:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(run)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the serving process has ended"
        return Outcome(**json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Board:
    """Memory shared by the processes of one run: counts of calls, and process ids."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * (2 * len(NAMES) + 3))
        self._words = memoryview(self._memory).cast("Q")

    def count(self, who: int, name: int) -> int:
        at = who * len(NAMES) + name
        self._words[at] += 1
        return self._words[at]

    def counts(self, who: int) -> dict[str, int]:
        at = who * len(NAMES)
        return {name: self._words[at + k] for k, name in enumerate(NAMES)}

    def process(self, who: int) -> int:
        return self._words[2 * len(NAMES) + who]

    def be(self, who: int, pid: int) -> None:
        self._words[2 * len(NAMES) + who] = pid

    @property
    def happened(self) -> bool:
        return bool(self._words[2 * len(NAMES) + 2])

    def happens(self) -> None:
        self._words[2 * len(NAMES) + 2] = 1


def patch(board: Board, hurt: Hurt | None) -> None:
    """Count the calls, and have one of them fail, in this process and its guardian."""
    number = 0
    for kind, names in CALLS.items():
        for name in names:
            setattr(kind, name, _patched(getattr(kind, name), number, board, hurt))
            number += 1
    begin = Companion.__init__

    def begin_companion(companion: Companion, *arguments: Any, **named: Any) -> None:
        begin(companion, *arguments, **named)
        board.be(1, companion.pid)

    Companion.__init__ = begin_companion  # type: ignore[method-assign]


def _patched(
    call: Callable[..., Any], index: int, board: Board, hurt: Hurt | None
) -> Callable[..., Any]:
    def patched(*arguments: Any, **named: Any) -> Any:
        who = 0 if os.getpid() == board.process(0) else 1
        count = board.count(who, index)
        if hurt is None or (WHO[who], NAMES[index], count) != (hurt.who, hurt.name, hurt.number):
            return call(*arguments, **named)
        board.happens()
        if hurt.late:
            send = partial(os.kill, os.getpid(), signal.Signals[hurt.what])
            threading.Timer(hurt.late, send).start()
            return call(*arguments, **named)
        value = call(*arguments, **named) if hurt.after else None
        _happen(hurt.what, board)
        return value if hurt.after else call(*arguments, **named)  # after a signal

    return patched


def _happen(what: str, board: Board) -> None:
    if what == BOTH:
        for who in (0, 1):
            if (pid := board.process(who)) != os.getpid() and pid:
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif what in SIGNALS:
        os.kill(os.getpid(), signal.Signals[what])
    else:
        raise ERRORS[what]()


def _child(run: Run, board: Board) -> None:
    """Run kinst in the fork; do not return."""
    status = 1
    try:
        for number, path in ((0, os.devnull), (1, run.out), (2, run.err)):
            mode = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, mode, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        board.be(0, os.getpid())
        patch(board, run.hurt)
        status = command(list(run.words))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def serve(run: Run) -> Outcome:
    """Serve one run, until no process of it is left."""
    board = Board()
    began = time.monotonic()
    if not (pid := os.fork()):
        _child(run, board)
    sent = not run.signal
    status: int | None = None
    seconds, hangs = 0.0, ""
    while True:
        try:
            ended, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        now = time.monotonic() - began
        if ended == pid:
            status, seconds = os.waitstatus_to_exitcode(how), now
        elif not ended:
            time.sleep(0.001)
        if not sent and now >= run.seconds:
            sent = True
            if status is None:
                os.kill(pid, signal.Signals[run.signal])
        if now > MOST_SECONDS and not hangs:
            for who in (0, 1):
                if (one := board.process(who)) and os.path.exists(f"/proc/{one}"):
                    hangs = f"{hangs} {WHO[who]}".strip()
                    os.kill(one, signal.SIGKILL)
    assert status is not None
    calls = {who: board.counts(k) for k, who in enumerate(WHO)}
    return Outcome(status, seconds, calls, board.happened, hangs)


def main() -> None:
    import_module("kinst.cli.guard")
    import_module("kinst.cli.tracing")  # all of kinst
    # A guardian becomes a child of this process when its kinst has ended.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["hurt"] is not None:
            asked["hurt"] = Hurt(**asked["hurt"])
        print(json.dumps(asdict(serve(Run(**asked)))), flush=True)


if __name__ == "__main__":
    main()
