"""The live machine: the kernel that kinst itself runs on.  MACHINE is found by name.

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
    """Implements MachineKind for the machine that kinst runs on."""

    name = "live"
    option = "live"
    abilities = LiveKernel.abilities

    def cpus(self, arguments: Sequence[str]) -> int:
        """Return the number of CPUs that may ever be online."""
        try:
            return int(_POSSIBLE.read_text().strip().split("-")[-1].split(",")[-1]) + 1
        except (OSError, ValueError):
            return 1

    def check(self) -> None:
        check()

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Load kinst's module, unless it is loaded, and become its owner.  Raises TargetError."""
        if config.virtual_layout is None:
            raise TargetError(f"{config.image}: not the vmlinux of a system that kinst knows")
        return LiveKernel(config.isa, on_output, config.process)


MACHINE = _Live()
