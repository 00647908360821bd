"""Kind of machine `gdb`: any machine that has a GDB stub.

It has no scratch memory, so its probes are stop-planted. MACHINE is its MachineKind, which
kinst.machines finds by name.

Tested by tests/machines/test_gdb.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option, Rule

if TYPE_CHECKING:
    from kinst.core.machine import Abilities, MachineConfig, Target


def _stub() -> Any:
    return import_module("kinst.machines.gdb.stub").GdbStub


class StubKind(MachineKind):
    """Kind of machine for any GDB stub."""

    name = "gdb"
    option = Option(
        "--gdb", "ADDRESS", "trace the kernel that a GDB stub shows: host:port or the path of a"
        " unix socket", "address",
    )  # fmt: skip
    rules = (
        Rule(
            ("address",), "{machine} needs the kernel's symbols", "{kernel} VMLINUX",
            without=("kernel", "debug", "build"),
        ),
    )  # fmt: skip

    @property
    def abilities(self) -> Abilities:
        found: Abilities = _stub().abilities
        return found

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Connect to the GDB stub at the address in the options.  Raises TargetError."""
        target: Target = _stub()(config.isa, config.options.address, config.virtual_layout)
        return target


MACHINE = StubKind()
