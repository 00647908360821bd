"""Opening of a QEMU that runs on this host already.

Tested by tests/machines/attach and tests/vm/attach.
"""

from __future__ import annotations

from collections.abc import Iterator

from kinst.core.errors import TargetError
from kinst.core.machine import MachineConfig, Target
from kinst.machines.attach.endpoint import process_of
from kinst.machines.attach.find import check
from kinst.machines.attach.machine import AttachedVm
from kinst.machines.attach.ram import LEAST
from kinst.wire.other_process import OtherProcess

ABILITIES = AttachedVm.abilities


def open_attached(config: MachineConfig) -> Target:
    """Attach to the QEMU that the options of a configuration name, and return it as a target.

    Raises TargetError if the guest's kernel is of an unknown system, or cannot be traced.
    """
    if config.virtual_layout is None:
        raise TargetError(
            f"{config.image}: not the vmlinux of a system that kinst knows",
            "--gdb traces any kernel, but stops the machine at each hit",
        )
    options = config.options
    return AttachedVm(config.isa, options.address, options.stub_address, config.virtual_layout)


def memory_of(address: str) -> Iterator[bytes]:
    """Yield the guest memory of a running QEMU, in pieces of whole pages.

    Args:
        address: a process id, the path of a QMP socket, or "auto".
    """
    process = OtherProcess(process_of(address, ""))
    check(process, process.program)
    process.open_memory()
    try:
        for start, end in process.writable(LEAST):
            yield from process.resident(start, end)
    finally:
        process.close()
