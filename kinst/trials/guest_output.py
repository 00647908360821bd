"""Reader of what the guest's script says about its tries (systems/*/guest/trials.sh has the
format)."""

from __future__ import annotations

import re
from dataclasses import field

from kinst.core.dataclass import dataclass

_MARK = "@"
# Time and, in some kernels, thread or CPU before each line of the log.
_PREFIX = re.compile(r"^\[ *[\d.]+\](?:\[ *[TC]\d+\])? ?")


@dataclass(slots=True)
class GuestTry:
    """What the guest has said about a try so far.

    Attributes:
        number: the try's number.
        status: exit status of the try's first run of the command, with the failure or the delay;
            None if that run has not ended.
        second: exit status of the second run, without it; None if that run has not ended.
        grown: how many objects the first run left in caches of the kernel, by the caches' names.
        later: how many objects the second run left in them, by the caches' names.
        output: last lines of the first run's output.
        log: lines of the kernel's log.
        hung: which run hangs: "warm" (before the tries), "first", "second" or "objects" (while
            the kernel's objects were counted); "" for none.
        over: whether the try is over.
    """

    number: int
    status: int | None = None
    second: int | None = None
    grown: dict[str, int] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    hung: str = ""
    over: bool = False


class GuestReader:
    """Reader of the script's output.

    Attributes:
        tries: the tries so far, in order.
        warm: exit status of the command before the tries; None before it has ended.
        hang_told: whether all lines about a command that hangs have arrived.
    """

    def __init__(self) -> None:
        self.tries: list[GuestTry] = []
        self.warm: int | None = None
        self.hang_told = False
        self._partial = ""

    def take(self, data: bytes) -> None:
        """Process output, which may end in the middle of a line."""
        *lines, self._partial = (self._partial + data.decode("utf-8", "replace")).split("\n")
        for line in lines:
            if line.startswith(_MARK):
                word, _, rest = line[1:].rstrip("\r").partition(" ")
                self._line(word, rest)

    def _line(self, word: str, rest: str) -> None:
        if word == "warm":
            self.warm = int(rest)
        elif word == "over":
            self.hang_told = True
        elif word == "try":
            self.tries.append(GuestTry(int(rest)))
        elif word == "hang":
            number, _, run = rest.partition(" ")
            if not self.tries or self.tries[-1].number != int(number):
                self.tries.append(GuestTry(int(number)))
            self.tries[-1].hung = run
            self.tries[-1].log.clear()
        elif self.tries:
            self._detail(self.tries[-1], word, rest)

    def _detail(self, one: GuestTry, word: str, rest: str) -> None:
        match word:
            case "status":
                first, second = rest.split()
                one.status, one.second = int(first), int(second)
            case "grown" | "later":
                name, count = rest.rsplit(" ", 1)
                (one.grown if word == "grown" else one.later)[name] = int(count)
            case "out":
                one.output.append(rest)
            case "log":
                one.log.append(_PREFIX.sub("", rest))
            case "end":
                one.over = True
