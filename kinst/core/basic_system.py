"""The base class of systems, with answers to core.system.System that are right for any kernel, even
an unknown one.

A system derives from this class and overrides what it knows better. The defaults refuse with a
reason, or assume the worst case.

Tested by tests/test_contracts.py and tests/fake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kinst.core.probe import Function
from kinst.core.system import (
    Clock,
    Facts,
    LoadedModule,
    ModuleFrames,
    PageAllocator,
    System,
    SystemCall,
    Tracepoint,
    TracepointSite,
)


class BasicSystem(System):
    """Base class of systems, with the answers that hold for any kernel. A derived class must define
    functions(), lookup(), glob(), function_at(), code() and text."""

    facts: Facts

    @property
    def page_tables(self) -> int | None:
        return None

    @property
    def heartbeat(self) -> int | None:
        return None

    def panicked(self) -> str:
        return ""

    def allocation_flag(self, name: str) -> int:
        return 0

    @property
    def allocator(self) -> PageAllocator | None:
        return None

    def clock(self) -> Clock | None:
        """Return None: the kernel's clock is not known, so D's timestamp is the host's time while
        the machine runs."""
        return None

    def online_cpus(self) -> Sequence[int]:
        return range(self.facts.cpus)

    def variable_at(self, address: int) -> tuple[str, str, int] | None:
        return None

    def system_calls(self) -> Sequence[SystemCall]:
        return ()

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return ()

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        return ()

    def switched(self, switches: Collection[int], *, on: bool) -> Sequence[tuple[int, bytes]]:
        return ()

    def exempt(self) -> frozenset[int]:
        return frozenset()

    def refusals(self, function: Function) -> str:
        return ""

    def call_refusal(self, function: Function) -> str:
        return ""

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]:
        return [""] * len(sites)

    def has_fixup(self, address: int) -> bool:
        return self.fixup(address) is not None

    def fixup(self, address: int) -> int | None:
        return None

    def landings(self) -> npt.NDArray[np.uint64]:
        return np.zeros(0, np.uint64)

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return True for each instruction: the worst case is that the system rewrites it."""
        return [True] * len(sites)

    def leaving_call_sites(self) -> System:
        return self

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return [False] * len(sites)

    def is_bug(self, address: int) -> bool:
        return False

    def is_fatal(self, address: int) -> bool:
        """Return False: the worst case is that control continues after this trap instruction."""
        return False

    def counterpart(self, name: str) -> str:
        return ""

    def dead_ends(self) -> Sequence[str]:
        """Return no names, so that kinst assumes that every function returns. The worst effect is
        that kinst believes that an inlined copy ends earlier than it does."""
        return ()

    def claims(self, addresses: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        return ()

    def releases(self, claimed: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        return ()

    def frame_rule(self, address: int) -> tuple[str, int, int] | None:
        return None

    def frame_address(self, address: int) -> tuple[str, int] | None:
        return None

    def backtrace(self, pc: int, registers: Mapping[str, int]) -> tuple[int, ...]:
        return (pc,)

    def waits_in(self, thread: int) -> str:
        return ""

    def modules(self) -> Sequence[LoadedModule]:
        return ()

    def find_frames_with(self, find: Callable[[LoadedModule], ModuleFrames | None]) -> None:
        """Do nothing: modules() returns no modules, so there are no frames to find."""
