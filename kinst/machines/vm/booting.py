"""Target for a guest whose boot is traced: it is stopped at the kernel's first function, and runs
from there with its probes in place.

Probes of a booting kernel are stop-planted. Under TCG, QEMU compares breakpoints with the program
counter, and does not write them into memory. So no breakpoint is lost if the kernel rewrites its
text or changes its page tables. When the kernel is up and the command is ready, boot_over() makes
this a target like that of any other guest.

Tested by tests/vm/boot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from kinst.core.boot import BootSpan, Leap
from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import (
    Abilities,
    BootEnded,
    CommandReady,
    ExecutedBlock,
    Gone,
    KernelLocation,
    MachineEvent,
    Stopped,
    Terminal,
)
from kinst.core.page_tables import LEAF_SIZE
from kinst.core.system import PageAllocator, VirtualLayout
from kinst.core.words import MASK
from kinst.machines.vm.execution_log import ExecutionLog
from kinst.machines.vm.kvm import Accelerator
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import VmConfig, gone_error, prepare_line
from kinst.machines.vm.run_clock import RunClock

_LOOK_SECONDS = 0.05  # seconds between two looks at QEMU's log
_FIRST_SECONDS = 120.0  # for firmware and decompressor, on a busy host
_TABLES = 16 << 20  # bytes at the end of RAM in which firmware and QEMU put tables for the kernel


class BootingVm(Vm):
    """Target for a guest whose boot is traced, and afterwards the command of -c."""

    abilities = Abilities(boots=True, runs_commands=True, traces_boot=True)
    cannot_plant = "a kernel that boots still rewrites its code", "trace it without --boot"
    helpers = None  # the command is not prepared before the trace begins

    def __init__(
        self,
        isa: Isa,
        config: VmConfig,
        virtual_layout: VirtualLayout,
        span: BootSpan,
        accelerator: Accelerator,
        on_output: Callable[[bytes], None] | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        """Start a QEMU that waits before its first instruction.

        Args:
            span: the part of the kernel's boot to trace.
            accelerator: the accelerator in config.accel, which is TCG, and why it was chosen.
            on_output: called with the output of the guest's command.
            terminal: the terminal of the guest's commands, None without one.
        """
        super().__init__(
            isa, config, virtual_layout, on_output, terminal=terminal, accelerator=accelerator
        )
        self.abilities = BootingVm.abilities
        self._span = span
        self._clock: RunClock | None = None
        self._began = 0  # the clock's time at the kernel's first function
        self._ran = 0  # ns since then, when it was asked for last
        self._text = 0  # address of the kernel's text
        self._last = 0  # running address at which the trace ends, 0 if it goes on
        self._is_at_last = self._is_up = False
        self._probes: set[int] = set()  # addresses of the session's breakpoints
        self._command = ""
        self._is_ready = False  # whether the command waits to be started
        self._step: Callable[[], bool] | None = None  # whether the command's next step can begin
        self._steps: Iterator[Callable[[], bool]] = iter(())

    # The beginning of the boot.

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Run the guest up to the kernel's first function, stop it there, and return where the
        kernel is.

        Args:
            say: stored for later messages to the user; bring_up() itself has none.
        """
        self._say = say
        self._attach()
        clock = RunClock(self.qemu.monitor)
        slides = self._span.slides
        if self._span.leap is not None:
            slides = (self._slide_by(self._span.leap),)
        elif self._span.touched:
            slides = (self._slide_by_tables(self._span.touched),)
        firsts = {self._span.first + slide & MASK: slide for slide in slides}
        slide = firsts[self._run_to(firsts).pc]
        if self._span.last:
            self._last = self._span.last + slide & MASK
            self._stub.insert_breakpoint(self._last)
        self._clock, self._began = clock, clock.now()
        self._text = self._span.text + slide & MASK
        return KernelLocation(self._text, booting=True)

    def boot_over(self) -> KernelLocation:
        self.abilities = self._abilities_when_up()
        self._is_up = True
        self._use_tables_of(self._kernels_cpu())
        return KernelLocation(self._text, time=self.run_time())

    def _slide_by(self, leap: Leap) -> int:
        """Run the guest up to the jump by which the kernel enters its own address space, and return
        the kernel's slide (KASLR).

        A register has the running address of the jump's target, and Leap.target is its linked
        address; the slide is their difference.

        Args:
            leap: the jump.
        """
        places = self.qemu.search(leap.code)
        if not places:
            raise TargetError(
                "the code that the kernel's boot begins with is not in the guest's memory",
                "--debug must name the vmlinux of the kernel that boots",
            )
        stopped = self._run_to([at + len(leap.code) - leap.size for at in places])
        return self.registers(stopped.cpu)[leap.register] - leap.target & MASK

    def _slide_by_tables(self, touched: Sequence[tuple[int, int]]) -> int:
        """Run the guest until it accesses one of some ranges, and return the kernel's slide
        (KASLR).

        At that moment the guest's page tables map the kernel, and so tell where it is.

        Args:
            touched: (virtual address, bytes) of ranges that the kernel does not access before its
                page tables map its image.
        """
        self._stub.watch(touched)
        self._run_to_stop()
        self._stub.unwatch()
        return self.find_text() - (self._span.text & -LEAF_SIZE)

    def _run_to(self, addresses: Collection[int]) -> Stopped:
        """Run the guest until a CPU reaches one of these addresses, and stop it there.

        Raises TargetError if the guest ends before, or reaches none of them.
        """
        self._stub.want_breakpoints(addresses)
        event = self._run_to_stop()
        self._stub.remove_breakpoints(addresses)
        return event

    def _run_to_stop(self) -> Stopped:
        """Let the guest run until it stops by itself, and return the stop.

        Raises TargetError if the guest ends before, or does not stop.
        """
        self.resume()
        deadline = time.monotonic() + _FIRST_SECONDS
        while time.monotonic() < deadline:
            event = self.wait(1.0)
            if isinstance(event, Gone):
                raise gone_error(event)
            if isinstance(event, Stopped):
                return event
        late = f"the guest's kernel has not begun in {_FIRST_SECONDS:g} s"
        raise gone_error(Gone(late, self.qemu.console.last_lines(), "hang"))

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        """Do nothing while the kernel boots: it still changes its page tables, and counts no ticks
        yet. Memory is read by the page tables of the CPU that stopped last."""
        if self._is_up:
            super().settle(page_tables, heartbeat, allocator)

    # Probes stop the guest while its kernel boots.

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Return None while the kernel boots: it will replace its page tables, and a mapping of
        scratch in them would be lost."""
        return super().map_scratch(size, near, reach, data) if self._is_up else None

    def scratch_view(self) -> memoryview:
        """Return the bytes of scratch.

        While the kernel boots, the end of scratch is left out: QEMU and the firmware have put the
        initial RAM disk there, and tables for the kernel.
        """
        view = super().scratch_view()
        return view if self._is_up else view[: max(0, len(view) - self._loaded_size())]

    def _loaded_size(self) -> int:
        """Return how many bytes at the end of RAM the kernel may still read while it boots."""
        disk = self._config.initrd
        size = len(disk) if isinstance(disk, bytes) else 0 if disk is None else disk.stat().st_size
        return size + _TABLES

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        """Return None while the kernel boots: without jumps there is nothing to search for."""
        return super().pointers(ranges) if self._is_up else None

    def run_time(self) -> int:
        if self._clock is not None:
            with suppress(TargetError):  # the guest has ended
                self._ran = self._clock.now() - self._began
        return self._ran

    def insert_breakpoint(self, address: int) -> None:
        self._probes.add(address)
        super().insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        self._probes.discard(address)
        super().remove_breakpoint(address)

    def executed(
        self, address: int
    ) -> Generator[Sequence[ExecutedBlock] | MachineEvent, None, None]:
        """Let the guest run up to `address`, and yield the blocks that its CPUs execute from there
        on (see core.machine.Stopping). QEMU logs them; nothing stops the guest meanwhile."""
        self.insert_breakpoint(address)
        self.resume()
        try:
            event = None
            while event is None:
                event = self.wait(_LOOK_SECONDS)
        finally:
            if not isinstance(event, Gone):
                self.stop()
                self.remove_breakpoint(address)
        if not isinstance(event, Stopped):
            yield event
            return
        with ExecutionLog(self.qemu.monitor, self.isa) as log:
            self.resume()
            event = None
            try:
                while event is None:
                    event = self.wait(_LOOK_SECONDS)
                    yield log.take()
                yield event
            finally:
                log.discard()
                if not isinstance(event, Gone):
                    self.stop()

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait for an event, and return it; None after `timeout` seconds.

        Meanwhile a command is prepared when kinst's init is ready for it. While the kernel boots,
        memory is read by the page tables of the CPU that stopped last.
        """
        if self._is_at_last:
            self.stop()
            return BootEnded()
        while self._step is not None and self._step():
            self._step = next(self._steps, None)
            if self._step is None:
                self._is_ready = True
                self.stop()
                return CommandReady()
        event = super().wait(timeout)
        if isinstance(event, Stopped) and not self._is_up:
            self._use_tables_of(self.registers(event.cpu))
            if event.pc == self._last:
                self._is_at_last = True
                if event.pc not in self._probes:
                    return BootEnded()
        return event

    # The guest's command.

    def prepare_command(self, command: str) -> int:
        """If the guest has booted, prepare the command and return its process id. Otherwise store
        the command, which then runs after the boot, and return 0: it has no process yet."""
        if self._is_up:
            pid, self._is_ready = super().prepare_command(command), True
            return pid
        self._command = prepare_line(self._command_text(command), self._terminal_size)
        if self._last:
            super().remove_breakpoint(self._last)
        self._last, self._is_at_last = 0, False
        return 0

    def start_command(self) -> None:
        """Let the command run if it has been prepared.

        If not, later calls of wait() prepare it, as soon as kinst's init is ready for that. When it
        is prepared, wait() stops the machine and returns CommandReady.
        """
        if self._is_ready:
            self._is_ready = False
            super().start_command()
        else:
            self._steps = self._preparing()
            self._step = next(self._steps)

    def _preparing(self) -> Iterator[Callable[[], bool]]:
        """Prepare the stored command, in steps. After each step, kinst must wait for the guest.

        For each step, yield a function that returns whether the guest is done with the step. The
        caller calls it again and again until it returns True, and then asks for the next step.
        After the last step the command is prepared.
        """
        yield self._hears_init
        if self._refused:  # the boot has been traced: its results are worth more than an error
            self._say(f"kinst: the guest could not load {self._refused}")
        for _ in self._mounting():
            yield self._says_mounted
        self.qemu.send_control(self._command)
        yield lambda: self.qemu.control_line("pid") is not None

    def end_command(self) -> None:
        """End the command if it has been prepared, and forget it otherwise."""
        prepared, self._step = self._step is None and self._shares_mounted, None
        self._is_ready = False
        if prepared:
            super().end_command()
