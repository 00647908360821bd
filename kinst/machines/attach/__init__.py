"""The attach machine: a QEMU that runs on this host already, by its process, GDB stub and memory.
MACHINE is found by name.

Tested by tests/machines/attach and tests/vm/attach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kinst.core.errors import TargetError
from kinst.core.machine import MachineConfig, MachineKind, Target
from kinst.machines.attach.endpoint import process_of
from kinst.machines.attach.find import check
from kinst.machines.attach.machine import AttachedVm
from kinst.machines.attach.ram import LEAST
from kinst.wire.other_process import OtherProcess


class _Attached(MachineKind):
    """Implements MachineKind for a running QEMU."""

    name = "attach"
    option = "attach"
    abilities = AttachedVm.abilities

    def memory(self, address: str) -> Iterator[bytes]:
        process = OtherProcess(process_of(address, ""))
        check(process, process.program)
        process.open_memory()
        try:
            for start, end in process.writable(LEAST):
                yield from process.resident(start, end)
        finally:
            process.close()

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Attach to the machine that config.address names; it continues to run.

        Raises TargetError if that fails, or if the kernel is of an unknown system."""
        if config.virtual_layout is None:
            raise TargetError(
                f"{config.image}: not the vmlinux of a system that kinst knows",
                "--gdb stops the machine at each hit, whatever runs in it",
            )
        return AttachedVm(config.isa, config.address, config.stub, config.virtual_layout)


MACHINE = _Attached()
