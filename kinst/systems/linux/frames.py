"""Rules for finding the caller's frame at each instruction of the kernel and of its modules.

The rules come from ORC tables, if the kernel has them; otherwise from call frame information, in
the kernel's file or in a module's debug file. By call frame information, the return address may
still be in its register; such a rule has RA_IN_SLOT in place of the offset.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.layout import RA_IN_SLOT
from kinst.core.system import CallerRule, LoadedModule, ModuleFrames
from kinst.core.words import MASK
from kinst.image.debug_info import DebugInfo
from kinst.image.orc import Orc
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.modules import LinuxModules

FindFrames = Callable[[LoadedModule], ModuleFrames | None]


class Frames:
    """Rules for finding the caller's frame, for one running kernel and its modules."""

    def __init__(
        self, kernel: LinuxMemory, image: DebugInfo, modules: LinuxModules, names: IsaFacts
    ) -> None:
        """Store the sources of the rules.

        Args:
            kernel: the kernel's memory.
            image: debug information of the kernel's files.
            modules: the loaded modules.
            names: facts about Linux on the kernel's ISA.
        """
        self._kernel = kernel
        self._image = image
        self._modules = modules
        self._names = names
        self._find: FindFrames = lambda module: None
        self._of_modules: dict[str, ModuleFrames | None] = {}

    def find_with(self, find: FindFrames) -> None:
        """Set the function that finds call frame information, for modules without an ORC table in
        memory. It is called once for each such module.

        Args:
            find: takes a module, and returns its call frame information; None if there is none.
        """
        self._find = find
        self._of_modules.clear()

    def _orc(self, address: int) -> tuple[Orc | None, int]:
        """Return the ORC table for a running address (None if there is none), and the address to
        look up in the table. The kernel's table has linked addresses, a module's table has running
        addresses."""
        module = self._modules.at(address)
        if module is not None:
            return module.orc, address
        return self._image.orc, address - self._kernel.slide & MASK

    def _cfi(self, address: int) -> CallerRule | None:
        module = self._modules.at(address)
        if module is None:
            cfi = self._image.cfi
            return cfi.rule(address - self._kernel.slide & MASK) if cfi is not None else None
        if module.name not in self._of_modules:
            self._of_modules[module.name] = self._find(module)
        frames = self._of_modules[module.name]
        linked = frames.back(address) if frames is not None else None
        return frames.rule(linked) if frames is not None and linked is not None else None

    def rule(self, address: int) -> tuple[str, int, int] | None:
        """Return the rule that finds the caller at an instruction; None if there is no rule.

        Returns:
            (D name of the base register, offset of the CFA from it, offset of the return address
            from the CFA). If the return address is still in a register: (D name of that register,
            0, RA_IN_SLOT).
        """
        orc, table_address = self._orc(address)
        if orc is not None:
            rule = orc.rule(table_address)
            return None if rule is None else (rule.register, rule.offset, rule.return_address)
        cfi, names = self._cfi(address), self._names.frame_registers
        if cfi is None:
            return self._at_entry(address)
        register = cfi.register if cfi.return_at is not None else cfi.return_register
        if register not in names:
            return None
        if cfi.return_at is None:
            return names[register], 0, RA_IN_SLOT
        return names[register], cfi.offset, cfi.return_at

    def cfa(self, address: int) -> tuple[str, int] | None:
        """Return how to compute the canonical frame address at an instruction: (D name of the base
        register, offset to add); None if there is no rule."""
        orc, table_address = self._orc(address)
        if orc is not None:
            rule = orc.rule(table_address)
            return None if rule is None else (rule.register, rule.offset)
        cfi, names = self._cfi(address), self._names.frame_registers
        if cfi is None or cfi.register not in names:
            return None
        return names[cfi.register], cfi.offset

    def _at_entry(self, address: int) -> tuple[str, int, int] | None:
        """Return the rule for the first instruction of a function, for a module that has no tables:
        the return address is in the ABI's link register. Return None for any other instruction."""
        module, link = self._modules.at(address), self._names.link
        if module is None or not link:
            return None
        entered = any(address == function.address for function in module.functions)
        return (link, 0, RA_IN_SLOT) if entered else None

    def saved_frame_pointer(self, address: int) -> int | None:
        """Return where the caller's frame pointer is saved at an instruction, as an offset from the
        CFA. Return None if it is not saved or if there is no ORC table."""
        orc, table_address = self._orc(address)
        return None if orc is None else orc.saved_frame_pointer(table_address)
