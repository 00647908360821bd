"""The vm target: a kernel that kinst boots in QEMU, with scratch memory inside."""

from __future__ import annotations

import contextlib
import importlib
import math
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.target import Event, Gone, Stopped
from kinst.targets.memory import GuestMemory
from kinst.targets.qemu import Qemu, VmConfig, describe
from kinst.targets.stale import PAGE, all_code, code_at_hand
from kinst.targets.stub import Debugger
from kinst.wire.rsp import Rsp

_SAMPLE = 0.25
_PREPARE_TIMEOUT = 60.0
_BEAT_SILENCE = 5.0  # seconds without a timer tick before the CPUs are looked at
_BEAT_SAMPLES = 4
# Seconds without a word from a kernel that boots, until QEMU is made to translate code anew: that
# which the CPUs are at and, at last, all.
_SILENCES = (4.0, 8.0, 30.0)
_COMMAND_LIMIT = 64 * 1024


class Vm:
    """Target over a QEMU of kinst's own (core/target.py has the protocol)."""

    def __init__(
        self, isa: Isa, config: VmConfig, on_output: Callable[[bytes], None] | None = None
    ) -> None:
        """Start QEMU and return at once; call wait_ready before anything else.

        on_output: gets the guest command's output, from within wait and its like.  Raises
        TargetError when QEMU or a file is missing, or memory.
        """
        self.isa = isa
        self.cpus = config.cpus
        self._config = config
        self._paging: ModuleType = importlib.import_module(f"kinst.isa.{isa.name}.paging")
        self._machine: ModuleType = importlib.import_module(f"kinst.isa.{isa.name}.machine")
        self._on_output = on_output
        self._start()
        self._closed = False
        self._beat_at = 0
        self._beat = b""
        self._beat_seen = 0.0
        self._revived = False  # since the last beat

    # Booting.

    def _start(self) -> None:
        self.qemu = Qemu(self._config, self._machine, self._on_output)
        layout = self.qemu.layout
        self.memory = GuestMemory(self._paging, self.qemu, (layout.tables, layout.tables_size))
        self._init_is_ready = False
        self._rsp: Rsp | None = None
        self._debugger: Debugger | None = None

    def boots(self, seconds: float) -> bool:
        """Whether kinst's init is heard of within so many seconds; with an initrd of the user's
        True at once, as nothing can be heard there.  Before wait_ready.

        A guest that falls silent meanwhile is revived (targets/stale.py), if that is what it needs;
        False at once where a CPU is beyond help.
        Raises TargetError when the guest ends.
        """
        deadline = time.monotonic() + seconds
        silences = iter((*_SILENCES, math.inf))
        silence = next(silences)

        def over() -> bool:
            now = time.monotonic()
            return self._hears_init() or now > deadline or now > self.qemu.heard + silence

        while True:
            self.qemu.wait_for(over, seconds + 1.0, "booted")
            if self._hears_init() or time.monotonic() > deadline:
                return self._hears_init()
            self._translate_anew(silence == _SILENCES[-1])
            if self._is_lost():
                return False
            silence = next(silences)

    def start_again(self) -> None:
        """End this guest, which has not booted, and start another one like it."""
        self.qemu.close()
        self._start()

    def _hears_init(self) -> bool:
        if self._config.control and not self._init_is_ready:
            self._init_is_ready = self.qemu.control_line("ready") is not None
        return self._init_is_ready or not self._config.control

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the kernel is up: kinst's init says so or, with an initrd of the user's,
        the first program runs.  The machine is stopped then.

        Raises TargetError with the console's last lines when it does not get there.
        """
        if self._config.control:
            self.qemu.wait_for(self._hears_init, timeout, "booted")
            self._attach()
            self.stop()
        else:
            self._wait_init(timeout)

    def _wait_init(self, timeout: float) -> None:
        """Ready is when the kernel has said that it starts init or (with `quiet`) has
        write-protected its text or (with `rodata=off` too) a CPU is caught in user mode.

        Behind the protection Linux looks through its page tables for pages that are writable and
        executable (debug_checkwx), and would warn of scratch: it is given a second for that."""
        deadline = time.monotonic() + timeout
        first = deadline - timeout + 1.0  # the firmware and the decompressor are done
        self.qemu.wait_for(
            lambda: self.qemu.init_runs or time.monotonic() > first, timeout, "booted"
        )
        self._attach()
        final = 0  # times that the text was seen to be write-protected
        while not self.qemu.init_runs and not self._in_user_mode():
            final += self._text_is_final()
            if final * _SAMPLE > 1.0:
                break
            if time.monotonic() > deadline:
                late = f"the guest has not run a program in {timeout:g} s"
                raise TargetError(describe(Gone(late, self.qemu.last_lines())))
            self.resume()
            event = self.wait(_SAMPLE)
            if isinstance(event, Gone):
                raise TargetError(describe(event))
            self.stop()

    def _in_user_mode(self) -> bool:
        """Whether a CPU is."""
        return any(self._paging.in_user_mode(self.registers(cpu)) for cpu in range(self.cpus))

    def _text_is_final(self) -> bool:
        read, final = self.qemu.read_physical, self._paging.text_is_final
        return any(final(read, self.registers(cpu)) for cpu in range(self.cpus))

    def _attach(self) -> None:
        """Use the stub from now on, which stops the machine the first time."""
        if self._rsp is not None:
            return
        with self._watched():
            self._rsp = Rsp(self.qemu.gdb, running=True)
            self._debugger = Debugger(self._rsp, self._machine, len(self.isa.breakpoint))
            if not self._rsp.physical_memory():
                raise TargetError("this QEMU has no physical memory mode", "QEMU 4.1 or newer")

    def _is_lost(self) -> bool:
        """Whether a CPU is beyond help, each time that the running machine is looked at."""
        lost = set(range(self.cpus))
        for _ in range(_BEAT_SAMPLES):
            self._attach()
            self.stop()
            lost = {cpu for cpu in lost if self._machine.is_lost(self.registers(cpu))}
            self.resume()
            if not lost:
                return False
            time.sleep(_SAMPLE)
        return True

    def _translate_anew(self, everything: bool) -> None:
        """Make QEMU forget its translations of all of the kernel's code, or of what the CPUs are
        at; the machine runs on."""
        if self._config.accel != "tcg":
            return
        self._attach()
        self.stop()
        pages: set[int] = set()
        for cpu in range(self.cpus):
            registers = self.registers(cpu)
            with contextlib.suppress(TargetError):  # it has no page tables yet
                if everything:
                    pages |= all_code(self._paging, self.qemu, registers)
                else:
                    pages |= code_at_hand(self._paging, self._machine, self.qemu, registers)
        with self._watched():
            assert self._rsp is not None
            read = self.qemu.read_physical
            self._rsp.write_memory([(page, read(page, PAGE)) for page in sorted(pages)])
        self.resume()

    @property
    def _stub(self) -> Debugger:
        if self._debugger is None:
            raise TargetError("the guest is not ready yet")
        return self._debugger

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """A failure of the stub is told as what happened to the guest, where that is why."""
        try:
            yield
        except TargetError as error:
            if self._closed:
                raise TargetError("the guest has been closed") from error
            gone = self.qemu.poll()
            if gone is None and (self._rsp is None or self._rsp.closed):
                gone = self.qemu.ended(1.0)
            if gone is not None:
                raise TargetError(describe(gone)) from error
            raise

    # Memory.

    def set_tables(self, address: int) -> None:
        """Use the page tables whose top level is at this virtual address from now on.  Stopped,
        or after a read."""
        self._need_root()
        self.memory.set_tables(address)

    def page_root(self) -> Any:
        """The ISA's Root in use: for kinst.isa.<name>.paging functions."""
        self._need_root()
        return self.memory.root

    def find_text(self) -> int:
        """Where the kernel's text starts (virtual), KASLR or not.  Stopped, or after a read."""
        self._need_root()
        address: int = self._paging.find_text(self.qemu.read_physical, self.memory.root)
        return address

    def _need_root(self) -> None:
        if not self.memory.has_root:
            cpus = [self.registers(cpu) for cpu in range(self.cpus)]
            cpus.sort(key=self._paging.in_user_mode)
            self.memory.adopt_root(cpus[0])

    def read(self, address: int, size: int) -> bytes:
        """Kernel memory, without stopping the machine once the page tables are known."""
        self._need_root()
        return self.memory.read(address, size)

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        """See core/target.py: by the page tables that the CPU has now."""
        if (address | address + size) >> 63:
            raise TargetError(f"{address:#x} is not an address of a process")
        memory = GuestMemory(self._paging, self.qemu, (0, 0))
        memory.set_root(self._paging.root_of(self.registers(cpu)))
        return memory.read(address, size)

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write code that may have run: through QEMU, which translates it anew.  Stopped."""
        if self._stub.running:
            raise TargetError("the machine must be stopped before its text can be written")
        self._need_root()
        with self._watched():
            assert self._rsp is not None
            self._rsp.write_memory(self.memory.physical_writes(writes))

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """See core/target.py.  size: at most the scratch of the VmConfig."""
        self._need_root()
        layout = self.qemu.layout
        if size > layout.scratch_size:
            raise TargetError(
                f"scratch of {size} bytes was asked for and the guest has {layout.scratch_size}"
            )
        return self.memory.map_near(
            layout.scratch, size, near, self._paging.SCRATCH_RANGE, reach or near, data
        )

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        """Map a part of scratch a second time, at a virtual address of the caller's choice.

        All of them multiples of 2 MB.  False where the page-table slots are not free.  Stopped.
        """
        self._need_root()
        if scratch_offset + size > self.qemu.layout.scratch_size:
            return False
        physical = self.qemu.layout.scratch + scratch_offset
        return self.memory.map_at(physical, size, virtual, self.find_text())

    def scratch_view(self) -> memoryview:
        layout = self.qemu.layout
        return self.qemu.view_physical(layout.scratch, layout.scratch_size)

    # Running.

    def stop(self) -> None:
        with self._watched():
            self._stub.stop()

    def resume(self) -> None:
        self._beat_seen = time.monotonic()
        with self._watched():
            self._stub.resume()

    def registers(self, cpu: int) -> Mapping[str, int]:
        with self._watched():
            return self._stub.registers(cpu)

    def insert_breakpoint(self, address: int) -> None:
        with self._watched():
            self._stub.insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        with self._watched():
            self._stub.remove_breakpoint(address)

    def step_over(self, cpu: int, address: int) -> None:
        with self._watched():
            self._stub.step_over(cpu, address)

    def wait(self, timeout: float) -> Event | None:
        """See core/target.py.  The command's output goes to on_output from here."""
        deadline = time.monotonic() + timeout
        while True:
            gone = self.qemu.poll()
            event: Event | None = self.qemu.command_ended() or gone
            if event is not None:
                return event
            try:
                stopped = self._stub.poll(0.0)
            except TargetError:
                gone = self.qemu.ended(2.0)
                if gone is None:
                    raise
                return gone
            if stopped is not None:
                if isinstance(stopped, Stopped):
                    return stopped
                return self.qemu.ended(5.0) or Gone("QEMU let the guest go")
            event = self._hung()
            left = deadline - time.monotonic()
            if event is not None or left <= 0:
                return event
            assert self._rsp is not None
            fds = [self._rsp.fileno(), self.qemu.fileno()]
            select.select(fds, [], [], min(left, 0.5))

    def watch_heartbeat(self, address: int) -> None:
        """Tell wait where the kernel counts its timer ticks (jiffies_64; 8 bytes), so that it
        can report a kernel that hangs with interrupts off.  Stopped, or after a read."""
        self._beat = self.read(address, 8)
        self._beat_at = address
        self._beat_seen = time.monotonic()

    def _hung(self) -> Gone | None:
        """The machine hangs when no tick is counted for seconds although a CPU takes no
        interrupts all the while.  (No ticks alone is how a machine sleeps.)"""
        if not self._beat_at or not self._stub.running:
            return None
        now = time.monotonic()
        if self._beat_moved() or now - self._beat_seen < _BEAT_SILENCE:
            return None
        stuck = set(range(self.cpus))
        for _ in range(_BEAT_SAMPLES):
            self.stop()
            stuck &= {c for c in stuck if self._machine.interrupts_off(self.registers(c))}
            places = {c: self.registers(c)[self._machine.PC] for c in stuck}
            if not stuck or self._beat_moved():
                self.resume()
                self._beat_seen = now
                return None
            self.resume()
            time.sleep(_SAMPLE)
        if not self._revived:
            self._revived = True
            self._translate_anew(everything=False)
            return None
        self.stop()
        where = ", ".join(f"CPU {c} at {at:#x}" for c, at in sorted(places.items()))
        return Gone(f"the guest hangs with interrupts off: {where}", self.qemu.last_lines())

    def _beat_moved(self) -> bool:
        beat = self.read(self._beat_at, 8)
        moved, self._beat = beat != self._beat, beat
        if moved:
            self._beat_seen = time.monotonic()
            self._revived = False
        return moved

    def take_warnings(self) -> list[str]:
        """Kernel complaints (BUG:, Oops:, WARNING:, stalls) seen on the console since last
        asked."""
        taken, self.qemu.warnings = self.qemu.warnings, []
        return taken

    # The guest's command.

    def prepare_command(self, command: str) -> int:
        """See core/target.py.  The machine runs meanwhile, and is as before afterwards."""
        text = command.encode().hex()
        if len(text) > _COMMAND_LIMIT:
            raise TargetError("the command is too long for the guest", "put it into a file")
        was_stopped = not self._stub.running
        pid = ""

        def answered() -> bool:
            nonlocal pid
            pid = self.qemu.control_line("pid") or pid
            return bool(pid)

        self.resume()
        self.qemu.send_control(f"prepare {text}")
        self.qemu.wait_for(answered, _PREPARE_TIMEOUT, "prepared the command")
        if was_stopped:
            self.stop()
        return int(pid)

    def start_command(self) -> None:
        """See core/target.py.  It starts when the machine runs."""
        self.qemu.send_control("go")

    def close(self) -> None:
        """End QEMU.  Safe to call twice."""
        self._closed = True
        self.qemu.close()
