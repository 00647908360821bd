"""A guest that does not run: what is kept of one that had booted, to be looked at.

A listing of probes reads the kernel's memory and does nothing else.  The guest in which the same
probes would be planted goes on from this very state, so what is there is what is said of it here.

Tested by tests/vm/language/test_names_without_guest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Bearings, Complaint, MachineEvent
from kinst.core.system import Lender
from kinst.machines.stub.memory import GuestMemory
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import VmConfig, place
from kinst.machines.vm.warm import WarmStart


class _Physical:
    """RAM by physical address (machines.stub.memory's Physical)."""

    def __init__(self, config: VmConfig, isa: Isa, warm: WarmStart) -> None:
        _, size, self._map = place(isa.board, config.memory, config.scratch)
        self.ram, self.bearings = warm.open(size)

    def read_physical(self, address: int, size: int) -> bytes:
        for start, offset, length in self._map:
            if start <= address and address + size <= start + length:
                return self.ram.read(offset + address - start, size)
        raise TargetError(f"physical address {address:#x} is not in the guest's memory")

    def write_physical(self, address: int, data: bytes) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise TargetError("this guest is a saved state: it can be read, not run")


class KeptGuest:
    """A target (core/machine.py has the protocol) that can be read, and nothing else."""

    abilities = Vm.abilities  # of the guest that it stands for
    planter = None
    helpers = None

    def __init__(self, isa: Isa, config: VmConfig, warm: WarmStart) -> None:
        """Raises TargetError where what is kept is damaged."""
        self.isa = isa
        self.cpus = config.cpus
        self._physical = _Physical(config, isa, warm)
        self._memory = GuestMemory(isa.paging, self._physical, (0, 0))
        self._memory.set_root(self._physical.bearings.root)

    def bring_up(self, say: Callable[[str], None]) -> Bearings:
        return Bearings(self._physical.bearings.text)

    def settle(self, page_tables: int | None, heartbeat: int | None, lender: Lender | None) -> None:
        if page_tables is not None:
            self._memory.set_tables(page_tables)

    def read(self, address: int, size: int) -> bytes:
        return self._memory.read(address, size)

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        return None

    def stop(self) -> None:
        """It stands."""

    def close(self) -> None:
        """Nothing was started; the file is let go of with this object."""

    def take_warnings(self) -> list[Complaint]:
        return []

    def end_command(self) -> None:
        """There is none."""

    @property
    def most_scratch(self) -> int:
        return 0

    def resume(self) -> None:
        _refuse()

    def read_user(self, cpu: int, address: int, size: int) -> bytes:
        _refuse()

    def move(self, places: Mapping[int, int]) -> None:
        _refuse()

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        _refuse()

    def map_scratch(
        self, size: int, near: tuple[int, int], reach: tuple[int, int] | None = None, data: int = 0
    ) -> int | None:
        _refuse()

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        _refuse()

    def scratch_view(self) -> memoryview:
        _refuse()

    def registers(self, cpu: int) -> Mapping[str, int]:
        _refuse()

    def insert_breakpoint(self, address: int) -> None:
        _refuse()

    def remove_breakpoint(self, address: int) -> None:
        _refuse()

    def step_over(self, cpu: int, address: int) -> None:
        _refuse()

    def wait(self, timeout: float) -> MachineEvent | None:
        _refuse()

    def prepare_command(self, command: str) -> int:
        _refuse()

    def start_command(self) -> None:
        _refuse()
