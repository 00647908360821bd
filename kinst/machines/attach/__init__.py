"""Kind of machine `attach`: a QEMU that runs on this host already, reached by its process, its GDB
stub and its memory.

MACHINE is its MachineKind, which kinst.machines finds by name.

Tested by tests/machines/attach and tests/vm/attach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option

if TYPE_CHECKING:
    from kinst.core.machine import Abilities, MachineConfig, Target


def _opening() -> Any:
    return import_module("kinst.machines.attach.opening")


class AttachedKind(MachineKind):
    """Kind of machine for a QEMU that runs already."""

    name = "attach"
    option = Option(
        "--attach", "MACHINE", "trace a QEMU of this host, as it runs: its process id, its QMP"
        " socket, or auto for the only one there is; --gdb says where its stub is", "address",
    )  # fmt: skip
    takes = MachineKind.takes | {"stub_address"}

    @property
    def abilities(self) -> Abilities:
        found: Abilities = _opening().ABILITIES
        return found

    def memory(self, address: str) -> Iterator[bytes]:
        yield from _opening().memory_of(address)

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Attach to the QEMU that the options name; its guest continues to run.

        Raises TargetError if that fails, or if the kernel is of an unknown system.
        """
        target: Target = _opening().open_attached(config)
        return target


MACHINE = AttachedKind()
