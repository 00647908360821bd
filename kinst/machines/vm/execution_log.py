"""QEMU's log of the code that a guest's CPUs execute, with their registers.

QEMU's TCG translates the guest's code in blocks. With these items in its log, it writes a line when
a CPU enters a block (exec), also if it comes from another block (nochain), and the CPU's registers
(cpu). The guest is not stopped for this, and its memory is not changed.

Sources: QEMU 7.2 and 10.0, accel/tcg/cpu-exec.c (log_cpu_exec, cpu_tb_exec); target/*/cpu*.c
(cpu_dump_state).

Tested by tests/machines/vm/test_execution_log.py and tests/vm/boot/test_boot_flow.py.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from kinst.core.errors import TargetError
from kinst.core.isa import StoppingIsa
from kinst.core.machine import ExecutedBlock
from kinst.wire.qmp import OwnMonitor
from kinst.wire.sockets import wait_until_ready

_ITEMS = "exec,nochain,cpu"
_PIECE = 1 << 20  # bytes that are read at once
_WAITING = 1 << 16  # blocks after which QEMU must wait until some have been taken
_LOOK_SECONDS = 0.05  # seconds between two looks whether QEMU writes no more
_BLOCK = b"\nTrace "  # begins the line of a block: "Trace 0: POINTER [CS/PC/...]"
# Begins a line that says that a CPU has left a block before its first instruction, because of an
# interrupt for example: "Stopped execution of TB chain before POINTER [PC]".
_STOPPED = b"\nStopped "
_DIGITS = 16  # of a register
_MARK = 4  # bytes that tell the beginning of the text about a CPU: "RAX=", " PC=", " V  "
# amd64 "R8 =0123456789abcdef", arm64 "X08=...", riscv64 "x10/a0   ..." and "pc       ...".
_REGISTER = re.compile(rb"(?:\b\w+/)?\b([A-Za-z]\w*) *[= ] *(?=[0-9a-f]{16}\b)")
_NUMBERED = re.compile(r"x([0-9])\Z")
_OTHER_NAMES = {"fp": "s0"}  # QEMU's GDB stub and QEMU's log name some registers differently


def names_in_log(isa: StoppingIsa) -> dict[bytes, str]:
    """Return the registers' names in D, by their names in QEMU's log."""
    found = {}
    for one in reversed(isa.registers):
        name = _OTHER_NAMES.get(one.gdb_name, one.gdb_name)
        found[name.encode()] = one.d_name
        found[_NUMBERED.sub(r"x0\1", name).upper().encode()] = one.d_name
    return found


class LogParser:
    """Parser of QEMU's log, which comes in pieces of any size.

    A CPU writes the line of a block and the registers separately, so lines of another CPU may be
    between them. The program counter among the registers tells which block they are of.
    """

    def __init__(self, isa: StoppingIsa) -> None:
        self._names = names_in_log(isa)
        name_of = {one.slot: one.d_name for one in reversed(isa.registers)}
        self._pc, self._sp = name_of[isa.pc_slot], name_of[isa.sp_slot]
        self._rest = b"\n"
        self._begins = b""  # how the text about a CPU's registers begins
        self._before: dict[str, bytes] = {}  # what is before each register's digits, by D name
        self._entered: dict[int, int] = {}  # by CPU: a block whose registers have not come yet
        self._last: dict[int, ExecutedBlock] = {}  # by CPU; it may not have executed it

    def take(self, piece: bytes) -> list[ExecutedBlock]:
        """Return the blocks that CPUs have executed, by the log up to the end of this piece. The
        last block of each CPU is left for a later call: the CPU may not have executed it.

        Args:
            piece: bytes that follow those of the preceding call.
        """
        before, *texts = (self._rest + piece).split(_BLOCK)
        if not texts:
            self._rest = before
            return []
        self._rest = _BLOCK + texts.pop()  # its registers may be incomplete
        found: list[ExecutedBlock] = []
        for text in texts:
            line, _, rest = text.partition(b"\n")
            start = line.index(b"/", line.index(b"[")) + 1
            cpu = int(line[: line.index(b":")])
            self._entered[cpu] = int(line[start : start + _DIGITS], 16)
            for dump in self._dumps(rest):
                found += self._executed(dump)
            self._stopped(text)
        return found

    def _dumps(self, text: bytes) -> list[bytes]:
        """Return the parts of a text that are each about the registers of one CPU."""
        if not self._begins and text:
            self._begins = b"\n" + text[:_MARK]
        return (b"\n" + text).split(self._begins)[1:] if text else []

    def _executed(self, dump: bytes) -> Iterator[ExecutedBlock]:
        """Yield the preceding block of the CPU that begins to execute a block with these
        registers."""
        dump = self._begins + dump
        address = self._register(dump, self._pc)
        cpu = next((cpu for cpu, entered in self._entered.items() if entered == address), None)
        if cpu is None:
            return
        del self._entered[cpu]
        if cpu in self._last:
            yield self._last[cpu]
        register = partial(self._register, dump)
        self._last[cpu] = ExecutedBlock(cpu, address, register(self._sp), register)

    def _register(self, text: bytes, name: str) -> int:
        """Return a register in the text about a CPU, by its name in D. Raises TargetError if it is
        not there."""
        if not self._before:
            met = _REGISTER.finditer(text)
            self._before = {self._names[one[1]]: one[0] for one in met if one[1] in self._names}
        before = self._before.get(name, b"")
        at = text.find(before) + len(before)
        if not before or at < len(before):
            raise TargetError(f"QEMU's log does not tell the register {name}")
        return int(text[at : at + _DIGITS], 16)

    def _stopped(self, text: bytes) -> None:
        """Forget the blocks that CPUs have not executed, by the lines that follow a block's."""
        at = text.find(_STOPPED)
        while at >= 0:
            end = text.find(b"\n", at + 1)
            line = text[at : end if end >= 0 else len(text)]
            address = int(line[line.index(b"[") + 1 : line.index(b"]")], 16)
            cpu = next((cpu for cpu, one in self._last.items() if one.address == address), None)
            if cpu is not None:
                del self._last[cpu]
            at = text.find(_STOPPED, at + 1)


class ExecutionLog:
    """Log of a QEMU, from the beginning of `with` to its end. The guest is stopped at both.

    QEMU writes to a pipe, which a thread reads. If too many blocks wait to be taken, the thread
    waits, and so do the guest's CPUs. discard() ends that.
    """

    def __init__(self, monitor: OwnMonitor, isa: StoppingIsa) -> None:
        self._monitor = monitor
        self._parser = LogParser(isa)
        self._blocks: list[ExecutedBlock] = []
        self._changed = threading.Condition()
        self._ends = False  # whether what is read is thrown away
        self._is_over = False  # whether QEMU writes no more
        self._error: TargetError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True, name="execution log")
        self._reading = -1

    def __enter__(self) -> Self:
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            self._ask(f"logfile /proc/{os.getpid()}/fd/{writing}")
            self._ask(f"log {_ITEMS}")
        except BaseException:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
        with suppress(TargetError):  # the guest has ended: its next use tells
            self._ask("log none")
        self._is_over = True  # QEMU closes the pipe later
        self._thread.join()

    def take(self) -> Sequence[ExecutedBlock]:
        """Return the blocks that were executed since the last call, in order. Raises TargetError if
        the log is not as expected."""
        with self._changed:
            if self._error is not None:
                raise self._error
            found, self._blocks = self._blocks, []
            self._changed.notify()
        return found

    def discard(self) -> None:
        """Throw away what is logged from now on. Without this, the guest cannot be stopped if many
        blocks wait to be taken: its CPUs wait until the log takes their lines."""
        with self._changed:
            self._ends = True
            self._blocks.clear()
            self._changed.notify()

    def _ask(self, command: str) -> None:
        """Execute a command of QEMU's monitor for people, which answers with text if it fails."""
        said = self._monitor.execute("human-monitor-command", {"command-line": command})
        if said:
            raise TargetError(f"QEMU cannot log the guest's execution: {str(said).strip()}")

    def _read(self) -> None:
        with open(self._reading, "rb", buffering=0) as pipe:
            while True:
                ready, _ = wait_until_ready([pipe], seconds=_LOOK_SECONDS)
                if not ready and self._is_over:
                    return
                piece = pipe.read(_PIECE) if ready else b""
                if ready and not piece:  # QEMU has ended
                    return
                if self._ends or not piece:
                    continue
                try:
                    found = self._parser.take(piece)
                except (TargetError, ValueError) as error:
                    self._error, self._ends = TargetError(f"QEMU's log: {error}"), True
                    continue
                with self._changed:
                    self._changed.wait_for(lambda: self._ends or len(self._blocks) < _WAITING)
                    if not self._ends:
                        self._blocks += found
