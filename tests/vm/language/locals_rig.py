"""A guest that gdb stops, with kinst's values of local variables beside gdb's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kinst.core.locals import Local
from kinst.core.paths import cache_folder
from kinst.image.debug_info import DebugFiles
from kinst.image.dwarf.cfi import InspectedFrame, open_cfi
from kinst.image.dwarf.locals import DwarfLocals
from kinst.image.elf import open_elf
from kinst.image.orc import open_orc
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.machines.vm.qemu import Qemu, VmConfig, gone_error
from kinst.session.expand import call_convention
from kinst.systems.linux.guest import initramfs
from tests.gdb_rig import Gdb, Pair, gdb_with, reached
from tests.machines.booted import boot_of

SECONDS = 120.0
MARKER = "begin_new_exec"  # each round of the workload starts programs
ROUNDS = 12
BATCH = 250
GUESTS = 3
# gdb talks to a program's standard streams; these two connect them to QEMU's socket.
_BRIDGE = "cat <&{0} & exec cat >&{0}"
# Names as in gdb.
_ARCHITECTURES = {"amd64": "i386:x86-64", "arm64": "aarch64", "riscv64": "riscv:rv64"}


class GuestLostError(Exception):
    """The kernel died under gdb, and QEMU ended.

    Seen twice in some 300 guests (a panic in an interrupt).  Nothing of kinst is in those guests,
    so others replace them.
    """


@contextmanager
def gdb_in_guest(kernel: Prepared, workload: Path, seconds: int, isa: str) -> Iterator[Gdb]:
    """Run a guest in which gdb controls the workload."""
    archive = initramfs.build(kernel.busybox, {"/bin/workload": workload})
    output: list[bytes] = []
    config = VmConfig(
        kernel=kernel.kernel, boot=boot_of(load(isa)), initrd=archive, append="nokaslr"
    )
    qemu = Qemu(config, load(isa).board, output.append)
    try:
        qemu.wait_for(lambda: qemu.control_line("ready") is not None, SECONDS, "booted")
        qemu.send_control(f"prepare {f'workload {seconds}'.encode().hex()}")
        qemu.wait_for(lambda: qemu.control_line("pid") is not None, SECONDS, "prepared")
        qemu.send_control("go")
        fd = qemu.gdb.fileno()
        remote = f"target remote | exec bash -c '{_BRIDGE.format(fd)}'"
        architecture = f"set architecture {_ARCHITECTURES[isa]}"
        with gdb_with(
            "-ex", architecture, "-ex", remote, str(kernel.debug), pass_fds=[fd],
            program="gdb" if isa == "amd64" else "gdb-multiarch",
        ) as gdb:  # fmt: skip
            yield gdb
    except AssertionError as error:
        gone = qemu.ended(5.0)
        if gone is None:
            raise AssertionError(f"{error}; {qemu.console.last_lines()}") from error
        raise GuestLostError(
            f"{gone_error(gone)}; its command said: {b''.join(output)!r}"
        ) from error
    finally:
        qemu.close()


class KinstLocals:
    """kinst's answers about the kernel as linked (nokaslr: as running)."""

    def __init__(self, kernel: Prepared, name: str = "amd64") -> None:
        self.elf = open_elf(kernel.debug)
        self.isa = isa = load(name)
        debug = DebugFiles(cache_folder()).open(kernel.debug)
        found = debug.locals(isa.dwarf_registers, call_convention(isa))
        assert found is not None
        self.locals: DwarfLocals = found
        self._orc = open_orc(self.elf)
        self._cfi = None if self._orc else open_cfi(self.elf)
        self._cfa = cache(self._cfa_at)

    def _cfa_at(self, address: int) -> str | None:
        """Return the canonical frame address as the kernel unwinds: by ORC if it has it, else by
        its call frame information."""
        orc = self._orc.rule(address) if self._orc else None
        if orc is not None:
            return f"(regs[{orc.register}] + {orc.offset})"
        rule = self._cfi.rule(address) if self._cfi else None
        if rule is None:
            return None
        return f"(regs[{self.isa.dwarf_registers[rule.register]}] + {rule.offset})"

    def find(self, pair: Pair) -> Local | None:
        frame = InspectedFrame(pair.address, pair.offset == 0, self._cfa(pair.address), int)
        return self.locals.find(pair.function, frame, pair.name)


def compare(
    kernel: Prepared,
    workload: Path,
    functions: Sequence[str],
    count: int,
    seed: int,
    say: Callable[[str], None],
    isa: str = "amd64",
) -> list[Pair]:
    """Compare `count` randomly drawn pairs of those functions that the workload reached."""
    chance = random.Random(seed)
    kinst = KinstLocals(kernel, isa)
    done: list[Pair] = []
    pairs: list[Pair] = []
    for _ in range(GUESTS):
        try:
            with gdb_in_guest(kernel, workload, 100_000, isa) as gdb:
                if not pairs:
                    # If a CPU of riscv64 is executing the program, gdb sees nothing of the kernel.
                    gdb("gdb", f"thbreak *{kinst.elf.address(MARKER):#x}")
                    gdb("gdb", "continue")
                    pairs = _drawn(gdb, kinst, functions, count, chance)
                    say(f"{len(pairs)} pairs")
                _take(gdb, kinst, pairs, done, count)
            return done[:count]
        except GuestLostError as lost:
            say(f"{len(done)} reached, then: {lost}")
    raise AssertionError(f"{GUESTS} guests were lost")


def _drawn(
    gdb: Gdb, kinst: KinstLocals, functions: Sequence[str], count: int, chance: random.Random
) -> list[Pair]:
    """Return all pairs of randomly drawn functions, in random order."""
    chosen = sorted(chance.sample(list(functions), min(len(functions), max(40, count // 5))))
    pairs = [pair for function in chosen for pair in _pairs_of(gdb, kinst, function)]
    chance.shuffle(pairs)
    return pairs


def _take(gdb: Gdb, kinst: KinstLocals, pairs: list[Pair], done: list[Pair], count: int) -> None:
    """Move the pairs that are reached to `done`, until it has `count`."""
    while len(done) < count and pairs:
        batch = pairs[:BATCH]
        for pair in batch:
            pair.ask(kinst.find)
        done += reached(gdb, batch, MARKER, ROUNDS)
        del pairs[:BATCH]


def _pairs_of(gdb: Gdb, kinst: KinstLocals, function: str) -> list[Pair]:
    """Return the pairs at instructions that are also in the file.

    Instructions that Linux patches in at boot (pushf; pop in place of a call) move the stack
    pointer, but gdb's call frame information is for the file's code: at such a pop gdb is wrong by
    a word. kinst's ORC knows these instructions.
    """
    symbols = kinst.elf.symbols
    (at,) = symbols.indexes(function)
    low, size = int(symbols.address[at]), int(symbols.size[at])
    linked = {one.address for one in kinst.isa.decode(kinst.elf.read(low, size), low)}
    return [
        Pair(function, address, address - low, name)
        for address, names in gdb("code", low, size)
        if address in linked
        for name in names
    ]
