"""Names of before core/machine.py and core/system.py: to go when nothing imports them any more."""

from __future__ import annotations

from kinst.core.machine import CommandEnded, Gone, Stopped
from kinst.core.machine import Machine as Target
from kinst.core.machine import MachineEvent as Event
from kinst.core.system import (
    Access,
    Clock,
    Facts,
    Paths,
    ThreadTime,
    Unwinder,
    UserMemory,
    UserState,
)
from kinst.core.system import System as Personality

__all__ = [
    "Access",
    "Clock",
    "CommandEnded",
    "Event",
    "Facts",
    "Gone",
    "Paths",
    "Personality",
    "Stopped",
    "Target",
    "ThreadTime",
    "Unwinder",
    "UserMemory",
    "UserState",
]
