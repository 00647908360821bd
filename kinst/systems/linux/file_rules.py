"""Rules for the code in a vmlinux or a module's file, from Linux's own tables in that file.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from kinst.image.elf import Elf
from kinst.image.function_table import FunctionTable
from kinst.isa import name_of_machine
from kinst.systems.linux.counterparts import counterpart_in
from kinst.systems.linux.isafacts import facts_of
from kinst.systems.linux.special_names import NEVER_RETURN
from kinst.systems.linux.system import PADDING
from kinst.systems.linux.tables import KernelTables


class LinuxFile:
    """Where control goes in the code of one Linux file: fix-ups, traps, functions that do not
    return. Implements FileRules (kinst/systems/__init__.py)."""

    def __init__(self, elf: Elf) -> None:
        self.functions = FunctionTable(elf, 0, "", PADDING)
        self._elf = elf
        self._tables = KernelTables(elf)

    def fixup(self, address: int) -> int | None:
        """Look up the instruction at a linked address in the exception table. Return the linked
        address at which control continues if the instruction faults; None if the instruction has no
        entry."""
        return self._fixups.get(address)

    def is_fatal(self, address: int) -> bool:
        """Return whether control never continues after the trap instruction at a linked address.
        After a WARN it continues; after any other trap it does not."""
        return address not in self._warnings

    def counterpart(self, name: str) -> str:
        layouts = facts_of(name_of_machine(self._elf.machine)).system_calls
        return counterpart_in(self.functions, name, layouts)

    def dead_ends(self) -> Sequence[str]:
        return NEVER_RETURN

    @cached_property
    def _fixups(self) -> dict[int, int]:
        return self._tables.fixups if self._elf.section("__ex_table") else {}

    @cached_property
    def _warnings(self) -> frozenset[int]:
        if self._elf.section("__bug_table") is None:
            return frozenset()
        return frozenset(self._tables.bugs.tolist()) - frozenset(self._tables.fatal_bugs.tolist())
