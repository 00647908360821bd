"""Target for a user program: trampolines in memory near its code, and counters that each thread
reaches by its own gs base.

The program runs on the host's processor. kinst starts it, or attaches to it while it runs. It stops
only for planning and planting, and if the trace ends before the program does.

Tested by tests/machines/process.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.errors import TargetError, UnmappedError
from kinst.core.layout import LEAF
from kinst.core.machine import (
    Abilities,
    CommandEnded,
    KernelLocation,
    MachineConfig,
    MachineEvent,
    Target,
)
from kinst.core.words import MASK, PAGE
from kinst.machines.process.command import simple_command
from kinst.machines.process.earlier_code import UNUSED, ways_back
from kinst.machines.stub.scan import pointers_in
from kinst.wire.memory import SharedMemory
from kinst.wire.other_process import Mapping as ProcessMapping
from kinst.wire.ptrace import SYSCALL
from kinst.wire.traced_program import AttachedProgram, TracedProgram

_HOST = "x86_64"  # the only machine whose programs kinst plants
_ENTRY = 9  # AT_ENTRY of the auxiliary vector (getauxval(3))
_MMAP, _MUNMAP, _CLOSE, _OPEN_AT = 9, 11, 3, 257
_AT_CWD = -100
_FIXED = 0x100000  # MAP_FIXED_NOREPLACE
_SHARED, _NO_RESERVE = 1, 0x4000
_DATA_RIGHTS = mmap.PROT_READ | mmap.PROT_WRITE
_REACH = (1 << 31) - (1 << 24)  # of a 32-bit distance, with room for code at both ends
_HEAP = 1 << 30  # bytes that are left free for the program's heap (brk(2))
_LOWEST = 1 << 20  # lowest address at which kinst maps memory
_APART = 1 << 20  # bytes between mappings of kinst and others
_START_BRK = 44  # field of /proc/PID/stat after the program's name
_NO_CALL = 1 << 63  # from this value on, orig_rax says that a thread is in no system call
# Bytes of counters of a thread for each byte of code: two counters for each instruction, and twice
# as much again for programs with several aggregations.
_COUNTERS_EACH = 8
# Bytes of all threads' counters. For each earlier trace that is still mapped, they are 4 times
# fewer (_FEWER bits), but enough for _EACH times as many threads as the program has.
_COUNTERS, _FEWER, _EACH = 1 << 28, 2, 2
_NEAR, _USER_END = 1 << 32, 1 << 47  # lower addresses are for code; end of user addresses
_LEAST_THREADS, _MOST_THREADS = 16, 1024
_SHADOW_STACKS = "SHSTK"
# What /proc/PID/status says of a process in which kinst cannot map memory or displace calls, with
# the reason; since Linux 3.8 ("Seccomp") and 6.6 ("x86_Thread_features").
_REFUSED = (
    (re.compile(r"^Seccomp:\s*[12]$", re.M), "a seccomp filter restricts its system calls"),
    (re.compile(r"^x86_Thread_features:.*\bshstk\b", re.M),
     "it has a shadow stack, which displaced calls would violate"),
)  # fmt: skip
_START_ANEW = "earlier traces of this process have filled them: start the program anew"
_OWN_MEMORY = "/memfd:scratch"  # name in /proc/PID/maps of what SharedMemory("scratch") makes


def check() -> None:
    """Raise TargetError if kinst cannot trace programs of this host."""
    if platform.machine() != _HOST:
        raise TargetError(
            f"kinst traces user programs only on {_HOST}, and this host is {platform.machine()}",
            "--vm=ISA traces a kernel of another instruction set",
        )


class TracedProcess(Target):
    """Target for a user program.

    Scratch is memory of kinst that the program shares. It stays mapped after the trace, since a
    thread may sleep in a trampoline. A later trace of the program unmaps it, if no thread is in it
    any more.
    """

    abilities = Abilities(writes_code=True, runs_commands=True)
    cannot_stop = "a user program's instructions are only counted", ""
    no_counters = (
        "the program has no free addresses for counters below 2 GB, where code reaches them",
        _START_ANEW,
    )
    cpus = 1

    def __init__(self, config: MachineConfig) -> None:
        """Start the program of a configuration's command, stopped before its first instruction; or
        stop all threads of a process that runs already.

        Raises TargetError if the program cannot be started or traced.
        """
        check()
        assert config.isa.programs is not None
        self.isa = config.isa.programs
        self._command, self._file = config.command, config.image
        self._told = self._closed = False
        self._say: Callable[[str], None] = lambda _: None
        # Whether the program may run: kinst lets a program that it starts wait for planting.
        self._started = bool(config.options.process)
        self._memory: SharedMemory | None = None
        self._unmapped = 0  # bytes at the end of scratch that are for counters alone (map_alias())
        # Address of the memory for code in the program, its bytes, and its offset in scratch.
        self._code: tuple[int, int, int] | None = None
        self._counters_at = 0  # offset in scratch of the counters; 0 before they are mapped
        self._lowest = self._span = 0  # lowest gs base of a thread; distance to the highest one
        self._program = _attached(config.options.process) if self._started else _started(config)
        try:
            self._program.process.open_memory()
        except BaseException:
            self.close()
            raise

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Return the address of the program's entry, the gs bases of its threads, and its process
        id."""
        self._say = say
        self._unmap_unused()
        entry = self._auxiliary(_ENTRY)
        program, file = os.stat(f"/proc/{self._program.pid}/exe"), os.stat(self._file)
        library = "" if os.path.samestat(program, file) else os.path.basename(self._file)
        if library and not self._started:  # the dynamic linker has loaded it when this code begins
            self._program.run_to(entry)
        pieces = [
            one for one in self._program.process.mappings()
            if "x" in one.rights and one.inode == file.st_ino
        ]  # fmt: skip
        if not pieces:
            raise TargetError(f"the program has not loaded {self._file}")
        code = sum(one.size for one in pieces)
        places = [entry]
        if library:
            places = [at for one in pieces for at in range(one.start, one.end, one.size // 8 or 1)]
        block = (code * _COUNTERS_EACH + _APART - 1) & -_APART
        bases = self._bases(block)
        self._lowest = bases[0]
        self._program.give_bases(bases)
        self._span = bases[-1] - bases[0]
        self._unmapped = (self._span + block + LEAF) & -LEAF
        return KernelLocation(
            places=tuple(places), counter_bases=bases, process=self._program.pid, library=library,
        )  # fmt: skip

    def _bases(self, block: int) -> tuple[int, ...]:
        """Return the gs bases for the program's threads, ascending.

        A thread may still be in a trampoline of an earlier trace, which adds to a counter at a
        fixed distance from the thread's gs base. So while scratch of earlier traces is mapped, only
        bases that all of those traces had are returned: then this counter is in mapped memory. The
        counters of all these traces share the 2 GB of addresses above each base, so each further
        trace has room for fewer bases.

        Args:
            block: distance between the bases: bytes for the counters of a thread.

        Raises TargetError if too few addresses are free.
        """
        # Bytes and first addresses of the counters of earlier traces, which are mapped twice
        # (map_alias()): those of one thread at low addresses, those of all threads at high ones.
        counters: dict[tuple[int, int], list[ProcessMapping]] = {}
        for one in self._earlier(self._program.process.mappings()):
            counters.setdefault((one.inode, one.offset), []).append(one)
        pairs = [found for found in counters.values() if len(found) == 2]
        size = max(_COUNTERS >> _FEWER * len(pairs), block * _EACH * len(self._program.registers()))
        threads = min(max(size // block, _LEAST_THREADS), _MOST_THREADS)
        if pairs:
            lowest = pairs[0][1].start - pairs[0][0].start
            threads = min(threads, *(1 + (high.size - low.size) // block for low, high in pairs))
        else:
            lowest = self._largest_hole(_REACH + _COUNTERS)
        return tuple(range(lowest, lowest + threads * block, block))

    def _largest_hole(self, size: int) -> int:
        """Return an address in the middle of the largest range of free addresses, far from what the
        program will map. Raises TargetError if the range has fewer than `size` bytes.

        Args:
            size: bytes that must be free from the address on.
        """
        top, holes = _NEAR, list[tuple[int, int]]()  # (bytes, first address)
        for start, end in (*self._taken(), (_USER_END, _USER_END)):
            holes.append((min(start, _USER_END) - top, top))
            top = max(top, end)
        free, start = max(holes)
        if free < size:
            raise TargetError("the program has no free addresses for the counters of its threads")
        return (start + (free - size) // 2) & -LEAF

    def _auxiliary(self, kind: int) -> int:
        """Return an entry of the program's auxiliary vector. Raises TargetError."""
        try:
            with open(f"/proc/{self._program.pid}/auxv", "rb") as file:
                words = np.frombuffer(file.read(), "<u8").reshape(-1, 2).tolist()
        except OSError as error:
            raise TargetError(f"process {self._program.pid}: {error.strerror}") from error
        return int(dict(words)[kind])

    # Memory.

    def read(self, address: int, size: int) -> bytes:
        try:
            return self._program.process.read(address, size)
        except TargetError as error:
            raise UnmappedError(error.message) from error

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64]:
        """Return addresses in some ranges that may be live return addresses or program counters.

        A word of the program's writable memory, or a register of a thread, may be such an address.
        If it lies in one of the ranges, it is returned. If it points into the code of an earlier
        trace, the addresses in the ranges to which that code leads are returned.

        Args:
            ranges: addresses [low, high).
        """
        mappings = self._program.process.mappings()
        earlier = [(one.start, one.end) for one in self._earlier(mappings) if "x" in one.rights]
        words = pointers_in(self._words(mappings), [*ranges, *earlier])
        if not earlier:
            return words
        inside = np.zeros(len(words), np.bool_)
        for low, high in earlier:
            inside |= (words >= np.uint64(low)) & (words < np.uint64(high))
        back = ways_back(words[inside].tolist(), earlier, self.read, self.isa)
        led = [at for at in back if any(low <= at < high for low, high in ranges)]
        return np.unique(np.concatenate([words[~inside], np.array(sorted(led), np.uint64)]))

    def _words(self, mappings: Sequence[ProcessMapping]) -> list[memoryview]:
        """Return the program's writable memory and, as further pieces of memory, the registers of
        its threads.

        Args:
            mappings: the program's mappings.
        """
        registers: list[int] = []
        for one in self._program.registers():
            registers += one.values()
            if one["orig_rax"] < _NO_CALL:  # the kernel may restart the call, 2 bytes before
                registers.append(one["rip"] - len(SYSCALL) & MASK)
        writable = [
            memoryview(piece)
            for one in mappings
            if one.rights.startswith("rw-p")
            for piece in self._program.process.resident(one.start, one.end)
        ]
        return [*writable, memoryview(np.array(registers, np.uint64).tobytes())]

    def _earlier(self, mappings: Sequence[ProcessMapping]) -> list[ProcessMapping]:
        """Return those of the program's mappings that are scratch of earlier traces, which other
        kinst processes made."""
        ours = 0 if self._memory is None else os.fstat(self._memory.fd).st_ino
        return [one for one in mappings if one.path.startswith(_OWN_MEMORY) and one.inode != ours]

    def _unmap_unused(self) -> None:
        """Unmap the scratch of earlier traces, except that of traces in whose trampolines a thread
        may be. So a process can be traced any number of times.

        A thread may be in trampolines if a register or a word of memory points to their code.
        """
        mappings = self._program.process.mappings()
        earlier = self._earlier(mappings)
        code = [one for one in earlier if "x" in one.rights]
        if not code:
            return
        ranges = [(one.start, one.end) for one in code]
        words = pointers_in(self._words(mappings), ranges).tolist()
        entered = [word for word in words if any(self.read(word, UNUSED))]
        used = {one.inode for one in code for word in entered if one.start <= word < one.end}
        for one in earlier:
            if one.inode not in used:
                self._program.call(_MUNMAP, one.start, one.size)

    def move(self, places: Mapping[int, int]) -> None:
        """Change the program counters of threads.

        Return addresses in memory need no change. They would if a jump were several instructions,
        since a thread could be interrupted after the first of them; here a jump is one instruction.

        Args:
            places: the new program counter, by the present one.
        """
        self._program.move(places)

    # Stopping.

    @property
    def is_over(self) -> bool:
        return self._program.has_ended

    def stop(self) -> None:
        if not self.is_over:
            self._program.stop()

    def resume(self) -> None:
        """Let the program run. If kinst has executed the program, do nothing before
        start_command()."""
        if self._started and not self.is_over:
            self._program.resume()

    def registers(self, cpu: int) -> Mapping[str, int]:
        """Return an empty map: pointers() reads the registers of all threads itself."""
        return {}

    def wait(self, timeout: float) -> MachineEvent | None:
        if self._told:
            time.sleep(timeout)
            return None
        status = self._program.wait(timeout)
        if self._program.trouble:
            raise TargetError(f"{self._program.trouble}: the counts are not right")
        if status is None:
            return None
        self._told = True
        if executed := self._program.executed:
            self._say(
                f"kinst: the program executed other programs ({executed}), whose instructions are"
                " not counted"
            )
        if not self._command:
            return CommandEnded(0)
        return CommandEnded(status, self._program.ended_by)

    # Planting.

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        if self.is_over:
            return
        for address, data in writes:
            self._program.process.write(address, data)

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Map the code of scratch. Its data are not mapped, since trampolines only count."""
        self._memory = SharedMemory("scratch", size, 1)
        data &= -PAGE
        mapped = size - self._unmapped - data
        address = self._free(mapped, near, data + _LOWEST)
        self._map(address, mapped, data, _DATA_RIGHTS | mmap.PROT_EXEC)
        self._code = address, mapped, data
        return address - data

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        """Map the counters of all threads. Map those of the first thread a second time, at the
        addresses that trampolines reach by gs base 0: after the trace, each thread has this base
        again, and may still be in a trampoline."""
        low = virtual - self._lowest
        places = [(low, size - self._span), (virtual, size)]
        if any(
            start < address + count and address < end
            for start, end in ((-_USER_END, 0), *self._taken())
            for address, count in places
        ):
            return False
        for address, count in places:
            self._map(address, count, scratch_offset, _DATA_RIGHTS)
        self._counters_at = scratch_offset
        return True

    def _map(self, address: int, size: int, offset: int, rights: int) -> None:
        """Map a part of scratch into the program. Raises TargetError."""
        assert self._memory is not None
        program, path = self._program, f"/proc/{os.getpid()}/fd/{self._memory.fd}".encode() + b"\0"
        file = program.call(_OPEN_AT, _AT_CWD, path, os.O_RDWR)
        flags = _SHARED | _FIXED | _NO_RESERVE
        got = program.call(_MMAP, address, size, rights, flags, file, offset)
        program.call(_CLOSE, file)
        if got != address:
            raise TargetError(f"the program has no room for {size} bytes at {address:#x}")

    def _taken(self) -> list[tuple[int, int]]:
        """Return the ranges [low, high) of addresses where kinst must not map memory, ascending.

        The ranges cover the lowest addresses, the addresses to which the heap may grow, and the
        program's mappings with some distance around each.
        """
        with open(f"/proc/{self._program.pid}/stat") as file:
            heap = int(file.read().rpartition(")")[2].split()[_START_BRK])
        mappings: list[ProcessMapping] = self._program.process.mappings()
        every = [(one.start - _APART, one.end + _APART) for one in mappings]
        # Without address randomisation, the heap begins directly after the program's data.
        return sorted([*every, (heap, heap + _HEAP), (0, _LOWEST)])

    def _free(self, size: int, near: tuple[int, int], lowest: int) -> int:
        """Return an address at which memory of this size can be mapped, and from which branches
        reach the program's code. Raises TargetError if there is none.

        Args:
            size: bytes of the memory.
            near: addresses [low, high) of the program's code.
            lowest: the lowest address that may be returned.
        """
        low, high = near
        places = []
        top = max(high - _REACH, lowest)
        for start, end in (*self._taken(), (_USER_END, _USER_END)):
            until = min(start, low + _REACH)
            if until - top >= size:
                # Below the code as high as possible; above it, too: low addresses are for counters.
                places.append(until - size & -PAGE)
            top = max(top, end)
        if not places:
            raise TargetError(
                f"the program has no {size >> 20} MB of free addresses within 2 GB of its code",
                _START_ANEW,
            )
        return min(places, key=lambda at: abs(at - low))

    def scratch_view(self) -> memoryview:
        assert self._memory is not None
        return self._memory.view

    # The command.

    def prepare_command(self, command: str) -> int:
        if command != self._command:
            raise TargetError(
                f"this machine runs {self._command!r} and no other program", "open another machine"
            )
        if self._started:
            raise TargetError("the program has run", "a program runs once: open it anew")
        return self._program.pid

    def start_command(self) -> None:
        self._started = True

    def end_command(self) -> None:
        self._program.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._code is not None and not self._command and not self.is_over:
            with suppress(TargetError):
                self._unmap_after_code(*self._code)
        self._program.close()

    def _unmap_after_code(self, address: int, size: int, offset: int) -> None:
        """Unmap the memory for code after the last trampoline. Raises TargetError.

        Args:
            address: address of the memory for code in the program.
            size: bytes of this memory.
            offset: offset of this memory in scratch.
        """
        assert self._memory is not None
        end = self._counters_at or offset + size
        ends = [min(at + count, end) for at, count in self._memory.extents() if at < end]
        used = max(*ends, offset) - offset + PAGE - 1 & -PAGE if ends else 0
        if used < size:
            self._program.stop()
            self._program.call(_MUNMAP, address + used, size - used)


def _started(config: MachineConfig) -> TracedProgram:
    """Start the program of a configuration's command, and return it. Raises TargetError."""
    found = simple_command(config.command)
    environment = {**os.environ, **found.variables}
    if _SHADOW_STACKS in environment.get("GLIBC_TUNABLES", ""):
        raise TargetError(
            "GLIBC_TUNABLES turns shadow stacks on, which displaced calls would violate",
            "unset GLIBC_TUNABLES",
        )
    return TracedProgram(found.words, found.path, environment)


def _attached(pid: int) -> TracedProgram:
    """Stop a process that runs already, and return it. Raises TargetError."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise TargetError(f"there is no process {pid}") from error
    for pattern, why in _REFUSED:
        if pattern.search(status):
            raise TargetError(f"process {pid} cannot be traced: {why}")
    return AttachedProgram(pid)
