"""Compare kinst's values of local variables with gdb's.

gdb runs the program with gdb_locals.py loaded; a Pair has both answers about a variable at a stop.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinst.core.errors import KinstError
from kinst.core.locals import Local
from kinst.image.dwarf.entry_values import UNKNOWN

SECONDS = 120.0


class Gdb:
    """A gdb with a stopped program, which answers the questions of gdb_locals.Server."""

    def __init__(self, sock: socket.socket, said: Path) -> None:
        self._said = said
        sock.settimeout(600)
        self._stream = sock.makefile("rw")

    def __call__(self, name: str, *arguments: Any) -> Any:
        self._stream.write(json.dumps((name, *arguments)) + "\n")
        self._stream.flush()
        line = self._stream.readline()
        assert line, f"gdb ended: {self._said.read_text()[-2000:]}"
        answer = json.loads(line)
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer


@contextmanager
def gdb_with(*arguments: str, pass_fds: Sequence[int] = (), program: str = "gdb") -> Iterator[Gdb]:
    """Start gdb with these arguments."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/answers")
        listener.listen()
        listener.settimeout(SECONDS)
        script = str(Path(__file__).with_name("gdb_locals.py"))
        command = [program, "-q", "-nx", "-batch", *arguments[:-1], "-x", script, arguments[-1]]
        env = {**os.environ, "LOCALS_SOCKET": f"{folder}/answers"}
        with open(f"{folder}/said", "w") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env,
                pass_fds=tuple(pass_fds), cwd=folder,
            )  # fmt: skip
        try:
            sock, _ = listener.accept()
            with sock:
                yield Gdb(sock, Path(folder, "said"))
        finally:
            process.kill()
            process.wait()


@dataclass
class Pair:
    """A variable at an instruction, with both answers."""

    function: str
    address: int
    offset: int
    name: str
    kinst: Local | None = None
    reason: str = ""
    gdb: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] | None = None

    def ask(self, find: Any) -> None:
        """Ask kinst.

        Args:
            find: returns kinst's answer for a pair, None if there is no such variable.
        """
        try:
            self.kinst = find(self)
            self.reason = "no such variable" if self.kinst is None else self.kinst.reason
        except KinstError as error:
            self.reason = str(error)

    @property
    def wanted(self) -> tuple[int, str, list[tuple[str, str, int]] | None]:
        """Return what gdb_locals.Server.run() takes."""
        if self.kinst is None or self.kinst.reason:
            return self.address, self.name, None
        return self.address, self.name, [(p.kind, p.text, p.size) for p in self.kinst.pieces]

    @property
    def by_caller(self) -> bool:
        """Return whether debug information has the value for known callers only.

        For other callers the clause faults, and gdb, which evaluates the same expression, has no
        value.
        """
        return self.kinst is not None and any(UNKNOWN in p.text for p in self.kinst.pieces)

    @property
    def outcome(self) -> str:
        if "none" in self.gdb:
            missing = self.own is None or (self.by_caller and "none" in self.own)
            return "neither" if missing else "only kinst"
        if self.own is None or (self.by_caller and "none" in self.own):
            return "refused"
        return "equal" if self._equal() else "different"

    def _equal(self) -> bool:
        own = self.own or {}
        if "none" in own:
            return False
        if own["address"] is not None and self.gdb["address"] is not None:
            return bool(own["address"] == self.gdb["address"])
        known = int(self.gdb["known"], 16) & int(own["covered"], 16)
        both = known & int(own["known"], 16)
        return both == known and int(own["bits"], 16) & both == int(self.gdb["bits"], 16) & both

    def __str__(self) -> str:
        return f"{self.function}+{self.offset} {self.name}: gdb {self.gdb}, kinst " + str(
            self.own if self.own is not None else self.reason
        )


def reached(gdb: Gdb, batch: Sequence[Pair], marker: str, rounds: int) -> list[Pair]:
    """Return the pairs whose instruction was reached, with gdb's answers."""
    named = {(p.address, p.name): p for p in batch}
    found = []
    for address, name, says, own in gdb("run", [p.wanted for p in batch], marker, rounds):
        pair = named[address, name]
        pair.gdb, pair.own = says, own
        found.append(pair)
    return found


def report(pairs: Sequence[Pair]) -> str:
    """Return the numbers, then every pair that differs or is refused."""
    counted = Counter(pair.outcome for pair in pairs)
    rows = [", ".join(f"{name} {number}" for name, number in sorted(counted.items()))]
    reasons = Counter(p.reason for p in pairs if p.outcome == "refused")
    rows += [f"{number} refused: {reason}" for reason, number in reasons.most_common()]
    rows += [f"{p.outcome}: {p}" for p in pairs if p.outcome in ("different", "refused")]
    return "\n".join(rows)
