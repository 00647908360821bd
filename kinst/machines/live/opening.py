"""Opening of the machine that kinst itself runs on.

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
    """Load kinst's kernel module if it is not loaded, and return this host's kernel as a target.

    Raises TargetError if that fails, or if the kernel is of an unknown system.

    Args:
        on_output: called with the output of commands.
    """
    if config.virtual_layout is None:
        raise TargetError(f"{config.image}: not the vmlinux of a system that kinst knows")
    return LiveKernel(config.isa, on_output, config.options.process)
