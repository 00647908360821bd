"""The machine that kinst itself runs on.  MACHINE is found by name.

Tested by tests/machines/live/test_parts.py and tests/vm/live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kinst.core.errors import TargetError
from kinst.core.machine import MachineConfig, MachineKind, Target
from kinst.machines.live.machine import LiveKernel
from kinst.machines.live.set_up import check

_POSSIBLE = Path("/sys/devices/system/cpu/possible")


class _Live(MachineKind):
    """The MachineKind protocol (core/machine.py) for this very machine."""

    name = "live"
    option = "live"
    abilities = LiveKernel.abilities

    def cpus(self, arguments: Sequence[str]) -> int:
        """As many as may ever be there."""
        try:
            return int(_POSSIBLE.read_text().strip().split("-")[-1].split(",")[-1]) + 1
        except (OSError, ValueError):
            return 1

    def check(self) -> None:
        """Raises TargetError."""
        check()

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Load kinst's module where it is not loaded, and be its owner.  Raises TargetError."""
        if config.virtual_layout is None:
            raise TargetError(f"{config.image}: not the vmlinux of a system that kinst knows")
        return LiveKernel(config.isa, on_output, config.process)


MACHINE = _Live()
