"""Target for the kernel that kinst itself runs on, through kinst's kernel module.

The kernel is never stopped: kinst plants sites while it runs, with the kernel's own functions, and
refuses what needs a stopped machine (docs/live.md).

Tested by tests/vm/live/test_live.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import (
    Abilities,
    CommandEnded,
    Gone,
    KernelLocation,
    LivePatch,
    MachineEvent,
    Target,
)
from kinst.core.words import PAGE
from kinst.machines.live.command import FollowedProcess, StoppedCommand
from kinst.machines.live.device import JUMP, Device
from kinst.machines.live.set_up import load, unload

# Seconds without a request of kinst after which the module removes all patches; seconds between two
# heartbeats of kinst.
PATIENCE, BEAT = 20, 2.0
_NEVER = ("the machine that kinst runs on cannot be stopped", "")


class LiveKernel(Target):
    """Target for the kernel that kinst itself runs on; it implements Planter (core/machine.py) as
    well.

    Possible return addresses are not searched for in RAM (pointers() returns None): the contents of
    memory would change during the search.
    """

    abilities = Abilities(runs_commands=True, reads_running=True)
    cannot_stop = cannot_plant = _NEVER

    def __init__(
        self, isa: Isa, on_output: Callable[[bytes], None] | None = None, process: int = 0
    ) -> None:
        """Load kinst's kernel module if it is not loaded, and open its device.

        Args:
            on_output: called with the output of commands; None to discard it.
            process: id of the process whose end ends the trace (-p); 0 for none.

        Raises TargetError.
        """
        self.isa = isa
        self._on_output = on_output or (lambda data: None)
        self._command: StoppedCommand | None = None
        self._closed = False
        self._followed = FollowedProcess(process) if process else None
        try:
            self._loaded = load()
        except BaseException:
            self._unfollow()
            raise
        try:
            self._device = Device()
        except BaseException:
            self._unfollow()
            self._unload()
            raise
        info = self._device.info()
        self.cpus = info.cpus
        self._text = info.text
        self._scratch = 0  # its address
        self._view = memoryview(b"")
        self.counters = (0, 0)  # displacement from the per-CPU base, bytes of each CPU
        self._counters_at = 0  # offset in scratch to which gather() copies them
        self._planted = False
        self._beat_at = 0.0
        self._missed: list[int] = []  # reported so far, of each timer of samples

    @property
    def planter(self) -> LiveKernel:
        """This object, which plants its own patches."""
        return self

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        """Return where the kernel's text is, without waiting: the kernel runs, and is not
        stopped.
        """
        return KernelLocation(self._text)

    # Memory.

    def read(self, address: int, size: int) -> bytes:
        return self._device.read(address, size)

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        """Map scratch in the kernel's area for modules, from which branches reach all of
        its text.
        """
        self._scratch, self._view = self._device.map_scratch(size)
        return self._scratch

    def scratch_view(self) -> memoryview:
        return self._view

    # Planting (core/machine.py, Planter).

    def plant(
        self,
        patches: Sequence[LivePatch],
        hook: int,
        code: tuple[int, int],
        active: int,
        exits: Sequence[LivePatch] = (),
        samplers: Sequence[tuple[int, int]] = (),
    ) -> None:
        low = (code[0] - self._scratch) & -PAGE
        high = code[1] - self._scratch + PAGE - 1 & -PAGE
        self._device.seal(low, high - low)
        # A patch is a jump or a breakpoint; the rest of the instruction under it does not change.
        trap = self.isa.breakpoint
        sizes = [len(trap) if p.new.startswith(trap) else JUMP for p in patches]
        sites = [
            replace(p, old=p.old[:size], new=p.new[:size])
            for p, size in zip(patches, sizes, strict=True)
        ]
        if sites:
            self._device.plant(sites, exits, hook, active, PATIENCE)
        self._planted = True
        self._missed = [0] * len(samplers)
        try:
            for period, function in samplers:
                self._device.start_timer(period, function, active, PATIENCE)
        except TargetError:
            self.restore()
            raise

    def allocate_counters(self, offset: int, size: int) -> tuple[int, int]:
        self.counters, self._counters_at = self._device.allocate_counters(size), offset
        return self.counters

    def empty(self) -> None:
        self._device.empty()

    def gather(self) -> None:
        if self.counters[1]:
            self._device.gather(self._counters_at, self.counters[1])

    def restore(self) -> int:
        self._planted = False
        return self._device.unplant()

    def take_missed(self) -> Sequence[int]:
        totals = [self._device.missed(timer) for timer in range(len(self._missed))]
        before, self._missed = self._missed, totals
        return [total - told for total, told in zip(totals, before, strict=True)]

    def wait(self, timeout: float) -> MachineEvent | None:
        """Wait for the end of the command or process, and return that event; None after `timeout`
        seconds.

        Meanwhile this sends a heartbeat to the module, if one is due. Returns Gone if the module
        has unplanted all probes because heartbeats came too late.
        """
        if self._planted and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + BEAT
            if self._device.beat():
                return Gone(
                    f"its module has heard nothing of kinst for {PATIENCE} s, and has unplanted all"
                    " probes: kinst was stopped, or the probes left the machine no time"
                )
        if self._command is not None:
            status = self._command.wait(timeout)
            return None if status is None else CommandEnded(status, self._command.ended_by)
        if self._followed is not None:
            return CommandEnded(0) if self._followed.wait(timeout) else None
        time.sleep(timeout)
        return None

    # The command.

    def prepare_command(self, command: str) -> int:
        self.end_command()
        self._command = StoppedCommand(command, self._on_output)
        return self._command.pid

    def start_command(self) -> None:
        assert self._command is not None
        self._command.start()

    def end_command(self) -> None:
        if self._command is not None:
            self._command.end()
            self._command = None

    def close(self) -> None:
        """Unplant everything, and unload the module if this object has loaded it.  Safe to call
        twice.
        """
        if self._closed:
            return
        self._closed = True
        self.end_command()
        self._unfollow()
        self._view = memoryview(b"")
        self._device.close()
        self._unload()

    def _unfollow(self) -> None:
        if self._followed is not None:
            self._followed.close()
            self._followed = None

    def _unload(self) -> None:
        if self._loaded:
            unload()
