"""Saved state of a booted guest, as a target that can be read and cannot run.

To list probes, kinst only reads the kernel's memory. A guest in which the probes are planted later
continues from the same state, so the list is right for that guest.

Tested by tests/vm/language/test_names_without_guest.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import KernelLocation, Target
from kinst.core.system import PageAllocator
from kinst.machines.stub.memory import GuestMemory
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import VmConfig, lay_out_ram
from kinst.machines.vm.warm import WarmStart

_SAVED = ("this guest is a saved state: it can be read, not run", "")


class _SavedPhysical:
    """Guest RAM of a saved state by physical address; implements Physical
    (machines/stub/memory.py).
    """

    def __init__(self, config: VmConfig, isa: Isa, warm: WarmStart) -> None:
        _, size, self._map = lay_out_ram(isa.board, config.memory, config.scratch)
        self.ram, self.location = warm.open(size)

    def read_physical(self, address: int, size: int) -> bytes:
        for start, offset, length in self._map:
            if start <= address and address + size <= start + length:
                return self.ram.read(offset + address - start, size)
        raise TargetError(f"physical address {address:#x} is not in the guest's memory")

    def write_physical(self, address: int, data: bytes) -> None:
        raise TargetError(*_SAVED)


class SavedGuest(Target):
    """Target for a saved state, which can be read and cannot run."""

    abilities = Vm.abilities  # those of the guest whose state it is
    cannot_stop = cannot_plant = cannot_run_commands = _SAVED

    def __init__(self, isa: Isa, config: VmConfig, warm: WarmStart) -> None:
        """Open the saved state of a guest.  Raises TargetError if it is damaged."""
        self.isa = isa
        self.cpus = config.cpus
        self._physical = _SavedPhysical(config, isa, warm)
        self._memory = GuestMemory(isa.paging, self._physical, (0, 0))
        self._memory.set_root(self._physical.location.root)

    def bring_up(self, say: Callable[[str], None]) -> KernelLocation:
        return KernelLocation(self._physical.location.text)

    def settle(
        self, page_tables: int | None, heartbeat: int | None, allocator: PageAllocator | None
    ) -> None:
        if page_tables is not None:
            self._memory.set_tables(page_tables)

    def read(self, address: int, size: int) -> bytes:
        return self._memory.read(address, size)
