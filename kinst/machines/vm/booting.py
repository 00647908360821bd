"""Target for a guest whose boot is traced: it is stopped at the kernel's first function, and runs
from there with its probes in place.

Probes of a booting kernel are stop-planted. Under TCG the breakpoints of QEMU's stub are compared
with the program counter and never written into memory, so the kernel may rewrite its text, and may
change its page tables, without losing one.

Tested by tests/vm/boot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from kinst.core.boot import BootSpan, Leap
from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import (
    Abilities,
    BootEnded,
    Gone,
    KernelLocation,
    MachineEvent,
    Stopped,
    Terminal,
)
from kinst.core.page_tables import LEAF_SIZE
from kinst.core.system import PageAllocator, VirtualLayout
from kinst.core.words import MASK
from kinst.machines.vm.kvm import Accelerator
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import VmConfig, gone_error, prepare_line
from kinst.machines.vm.run_clock import RunClock

_FIRST_SECONDS = 120.0  # for firmware and decompressor, on a busy host


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
        """Start a halted QEMU.

        Args:
            span: the part of the kernel's boot to trace.
            accelerator: how config.accel was chosen, which is TCG.
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
        self._last = 0  # running address at which the trace ends, 0 if it goes on
        self._is_at_last = False
        self._probes: set[int] = set()  # addresses of the session's breakpoints
        self._command = ""
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
        return KernelLocation(self._span.text + slide & MASK, booting=True)

    def _slide_by(self, leap: Leap) -> int:
        """Return how far KASLR has moved the kernel, as the register tells by which the kernel
        jumps into its own address space.
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
        """Run the guest until it accesses one of these ranges (BootSpan.touched), and return how
        far KASLR has moved the kernel, as the page tables tell at that moment.
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
        """Do nothing: the kernel changes its page tables while it boots, and counts no ticks yet.

        Memory is read by the tables of the CPU that stopped last.
        """

    # Probes stop the guest.

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> None:
        """Return None: page tables in which scratch could be mapped do not last."""

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Return None: without jumps there is nothing to search for."""

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

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait for an event, and return it; None after `timeout` seconds.

        Meanwhile a command is prepared and started when kinst's init is ready for it. At each stop,
        memory is read by the page tables of the stopped CPU from then on.
        """
        if self._is_at_last:
            return BootEnded()
        while self._step is not None and self._step():
            self._step = next(self._steps, None)
        event = super().wait(timeout)
        if isinstance(event, Stopped):
            root = self._paging.root_of(self.registers(event.cpu))
            self.memory.set_root(root, self.qemu.read_physical(root.physical, root.page))
            if event.pc == self._last:
                self._is_at_last = True
                if event.pc not in self._probes:
                    return BootEnded()
        return event

    # The guest's command.

    def prepare_command(self, command: str) -> int:
        """Store a command, which runs when the guest has booted; return 0, since it has no process
        yet.
        """
        self._command = prepare_line(self._command_text(command), self._terminal_size)
        if self._last:
            super().remove_breakpoint(self._last)
        self._last, self._is_at_last = 0, False
        return 0

    def start_command(self) -> None:
        """Let wait() run the command as soon as kinst's init is ready for it."""
        self._steps = self._starting()
        self._step = next(self._steps)

    def _starting(self) -> Iterator[Callable[[], bool]]:
        """Start the stored command in steps, and yield before each step a function that returns
        whether the step can begin.
        """
        yield self._hears_init
        self.qemu.plug_shares()
        for share in sorted(self._config.shares, key=lambda share: share.writable):
            self._mount(share)
            yield self._says_mounted
        self._shares_mounted = True
        self.qemu.send_control(self._command)
        yield lambda: self.qemu.control_line("pid") is not None
        self._step = None
        super().start_command()

    def end_command(self) -> None:
        """End the command if it has been started, and forget it otherwise."""
        started, self._step = self._step is None and self._shares_mounted, None
        if started:
            super().end_command()
