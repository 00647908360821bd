"""Opening the machine that kinst runs on.

Tested by tests/machines/live/test_parts.py and tests/vm/live.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.errors import TargetError
from kinst.core.machine import MachineConfig, Target
from kinst.machines.live.machine import LiveKernel
from kinst.machines.live.set_up import check

__all__ = ["ABILITIES", "check", "open_live"]

ABILITIES = LiveKernel.abilities


def open_live(config: MachineConfig, on_output: Callable[[bytes], None] | None) -> Target:
    """Load kinst's module, unless it is loaded, and become its owner."""
    if config.virtual_layout is None:
        raise TargetError(f"{config.image}: not the vmlinux of a system that kinst knows")
    return LiveKernel(config.isa, on_output, config.options.process)
