"""A guest that gdb stops, with kinst's view of local variables beside gdb's."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinst.core.errors import KinstError
from kinst.core.locals import Local
from kinst.core.paths import cache_folder
from kinst.image.dwarf_locals import DwarfLocals, Frame
from kinst.image.elf import open_elf
from kinst.image.orc import open_orc
from kinst.image.type_files import FileTypes, Places
from kinst.isa import load
from kinst.session_target import load_machine
from kinst.targets import initramfs
from kinst.targets.fetch import Prepared
from kinst.targets.qemu import Qemu, VmConfig

SECONDS = 120.0
MARKER = "begin_new_exec"  # each round of the workload starts programs
ROUNDS = 12
BATCH = 250
# gdb talks to a program's standard streams; these two carry them to QEMU's socket.
_BRIDGE = "cat <&{0} & exec cat >&{0}"


class Gdb:
    """gdb with the guest stopped in it."""

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
def gdb_in_guest(kernel: Prepared, workload: Path, seconds: int) -> Iterator[Gdb]:
    """A guest that runs the workload while gdb lets it."""
    archive = initramfs.build(kernel.busybox, {"/bin/workload": workload})
    machine = load_machine(load("amd64"))
    qemu = Qemu(VmConfig(kernel=kernel.kernel, initrd=archive, append="nokaslr"), machine, None)
    with tempfile.TemporaryDirectory() as folder:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{folder}/answers")
        listener.listen()
        listener.settimeout(SECONDS)
        try:
            qemu.wait_for(lambda: qemu.control_line("ready") is not None, SECONDS, "booted")
            qemu.send_control(f"prepare {f'workload {seconds}'.encode().hex()}")
            qemu.wait_for(lambda: qemu.control_line("pid") is not None, SECONDS, "prepared")
            qemu.send_control("go")
            fd = qemu.gdb.fileno()
            command = [
                "gdb", "-q", "-nx", "-batch", "-ex", "set architecture i386:x86-64",
                "-ex", f"target remote | exec bash -c '{_BRIDGE.format(fd)}'",
                "-x", str(Path(__file__).with_name("locals_gdb.py")), str(kernel.debug),
            ]  # fmt: skip
            env = {**os.environ, "LOCALS_SOCKET": f"{folder}/answers"}
            with open(f"{folder}/said", "w") as said:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env,
                    pass_fds=[fd],
                )  # fmt: skip
            try:
                sock, _ = listener.accept()
                with sock:
                    yield Gdb(sock, Path(folder, "said"))
            except AssertionError as error:
                raise AssertionError(f"{error}; console: {qemu.last_lines()}") from error
            finally:
                process.kill()
                process.wait()
        finally:
            listener.close()
            qemu.close()


class KinstLocals:
    """kinst's own answers about the kernel as linked (nokaslr: as running)."""

    def __init__(self, kernel: Prepared) -> None:
        self.elf = open_elf(kernel.debug)
        places = Places(lambda: kernel.debug, dict, cache_folder(), lambda part: None)
        found = FileTypes(places).locals("vmlinux", load("amd64").dwarf_registers)
        assert found is not None
        self.locals: DwarfLocals = found
        self._orc = open_orc(self.elf)

    def find(self, function: str, address: int, first: bool, name: str) -> Local | None:
        rule = self._orc.rule(address) if self._orc else None
        cfa = None if rule is None else f"(regs[{rule.register}] + {rule.offset})"
        return self.locals.find(function, Frame(address, first, cfa, int), name)


@dataclass
class Pair:
    """A variable at an instruction, and what was said of it."""

    function: str
    address: int
    offset: int
    name: str
    kinst: Local | None = None
    reason: str = ""
    gdb: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] | None = None

    @property
    def outcome(self) -> str:
        if "none" in self.gdb:
            return "neither" if self.own is None else "only kinst"
        if self.own is None:
            return "refused"
        return "equal" if self._equal() else "different"

    def _equal(self) -> bool:
        own = self.own or {}
        if "none" in own:
            return False
        if own["address"] is not None and self.gdb["address"] is not None:
            return bool(own["address"] == self.gdb["address"])
        known = int(self.gdb["known"], 16)
        both = known & int(own["known"], 16)
        return both == known and int(own["bits"], 16) & both == int(self.gdb["bits"], 16) & both

    def __str__(self) -> str:
        return f"{self.function}+{self.offset} {self.name}: gdb {self.gdb}, kinst " + str(
            self.own if self.own is not None else self.reason
        )


def compare(
    kernel: Prepared,
    workload: Path,
    functions: Sequence[str],
    count: int,
    seed: int,
    say: Callable[[str], None],
) -> list[Pair]:
    """`count` pairs that the workload reached, drawn at random from those functions."""
    chance = random.Random(seed)
    kinst = KinstLocals(kernel)
    done: list[Pair] = []
    with gdb_in_guest(kernel, workload, 100_000) as gdb:
        chosen = sorted(chance.sample(list(functions), min(len(functions), max(40, count // 5))))
        pairs = []
        for function in chosen:
            pairs += _pairs_of(gdb, kinst, function)
        say(f"{len(pairs)} pairs in {len(chosen)} functions")
        chance.shuffle(pairs)
        drawn = 0
        while len(done) < count and pairs:
            batch, pairs = pairs[:BATCH], pairs[BATCH:]
            drawn += len(batch)
            done += _reached(gdb, kinst, batch)
            say(f"{len(done)} of {drawn} reached")
    return done[:count]


def _pairs_of(gdb: Gdb, kinst: KinstLocals, function: str) -> list[Pair]:
    symbols = kinst.elf.symbols
    (at,) = symbols.indexes(function)
    low, size = int(symbols.address[at]), int(symbols.size[at])
    return [
        Pair(function, address, address - low, name)
        for address, names in gdb("code", low, size)
        for name in names
    ]


def _reached(gdb: Gdb, kinst: KinstLocals, batch: Sequence[Pair]) -> list[Pair]:
    wanted = []
    for pair in batch:
        try:
            pair.kinst = kinst.find(pair.function, pair.address, pair.offset == 0, pair.name)
            pair.reason = "no such variable" if pair.kinst is None else pair.kinst.reason
        except KinstError as error:
            pair.reason = str(error)
        pieces = None
        if pair.kinst is not None and not pair.kinst.reason:
            pieces = [(p.kind, p.text, p.size) for p in pair.kinst.pieces]
        wanted.append((pair.address, pair.name, pieces))
    named = {(p.address, p.name): p for p in batch}
    found = []
    for address, name, says, own in gdb("run", wanted, MARKER, ROUNDS):
        pair = named[address, name]
        pair.gdb, pair.own = says, own
        found.append(pair)
    return found


def report(pairs: Sequence[Pair]) -> str:
    """The numbers, then every pair that is different or refused."""
    counted = Counter(pair.outcome for pair in pairs)
    rows = [", ".join(f"{name} {number}" for name, number in sorted(counted.items()))]
    reasons = Counter(p.reason for p in pairs if p.outcome == "refused")
    rows += [f"{number} refused: {reason}" for reason, number in reasons.most_common()]
    rows += [f"{p.outcome}: {p}" for p in pairs if p.outcome in ("different", "refused")]
    return "\n".join(rows)
