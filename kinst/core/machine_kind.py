"""Kinds of machines: what kinst.machines finds by name, before anything of a machine is loaded.

Tested by tests/test_contracts.py, tests/test_extending.py and tests/session/test_options.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kinst.core.options import Option, Rule

if TYPE_CHECKING:
    from kinst.core.machine import Abilities, EarlyStart, MachineConfig, Target


class MachineKind(Protocol):
    """A kind of machine: the value MACHINE of a file or folder of kinst.machines.

    It is loaded to read a command line, so its module should import what opens the machine only
    when that is asked for.  The defaults are those of a machine that runs already and whose kernel
    the user names.

    Attributes:
        option: the option that asks for it; its name is "--" and that of the machine.
        options: options that no other machine has.
        takes: fields of MachineOptions and Request, which other machines have as well.
        rules: which of all these do not agree.
    """

    name: str
    option: Option
    options: Sequence[Option] = ()
    takes: frozenset[str] = frozenset(("kernel", "debug", "debug_folders", "build"))
    rules: Sequence[Rule] = ()

    @property
    @abstractmethod
    def abilities(self) -> Abilities: ...

    def cpus(self, arguments: Sequence[str]) -> int:
        """Return how many CPUs such a machine may have, as far as is known before open().

        Args:
            arguments: those of MachineOptions for QEMU.
        """
        return 1

    def check(self) -> None:
        """Raise TargetError if this host has no such machine.  Called before files are searched."""
        return

    def memory(self, address: str) -> Iterator[bytes]:
        """Yield the memory of a machine that runs, in pieces of whole pages, before anything is
        known of its kernel; nothing if that cannot be read without a GDB stub.

        Args:
            address: of the machine, as the user gave it.

        Raises:
            TargetError: there is no such machine, or its memory must not be read.
        """
        yield from ()

    def start_early(self, config: MachineConfig) -> EarlyStart | None:
        """Start what can be started before the configuration is complete, or return None.

        Raises KinstError and TargetError."""
        return None

    @abstractmethod
    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start the machine (it boots while the caller continues) or connect to it.

        Args:
            on_output: gets what the guest's command prints.

        Raises KinstError and TargetError."""
        ...
