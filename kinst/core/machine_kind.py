"""The protocol of kinds of machines, which kinst.machines finds by name.

Tested by tests/test_contracts.py, tests/test_extending.py and tests/session/test_options.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kinst.core.options import Option, Rule

if TYPE_CHECKING:
    from pathlib import Path

    from kinst.core.isa import Isa
    from kinst.core.machine import Abilities, EarlyStart, MachineConfig, Target
    from kinst.core.options import MachineOptions


class MachineKind(Protocol):
    """A kind of machine: the value MACHINE of a file or folder of kinst.machines.

    Each start of the command imports the modules of all kinds. So these modules should be small,
    and import the code that opens a machine only inside open(). The defaults are those of a machine
    that runs already and whose kernel the user names.

    Attributes:
        option: the option that selects this kind. Its name is "--" followed by `name`, such as --vm
            for the kind vm.
        options: options that only this kind has.
        takes: options that other kinds have as well: names of fields of MachineOptions and Request.
        rules: which of its options contradict each other.
        settings: (name, value) of -x options that differ from the usual defaults on such a machine.
            Options that the user sets keep the user's values.
    """

    name: str
    option: Option
    options: Sequence[Option] = ()
    takes: frozenset[str] = frozenset(("kernel", "debug", "debug_folders", "build"))
    rules: Sequence[Rule] = ()
    settings: Sequence[tuple[str, str]] = ()

    @property
    @abstractmethod
    def abilities(self) -> Abilities: ...

    def cpus(self, arguments: Sequence[str]) -> int:
        """Return how many CPUs a machine of this kind may have, as far as is known before open().

        Args:
            arguments: MachineOptions.qemu_args.
        """
        return 1

    def check(self) -> None:
        """Raise TargetError if this host has no machine of this kind. Called before any files are
        searched for."""
        return

    def program(self, command: str, process: int, library: str = "") -> str:
        """Return the path of the file that the traced program executes, or of one of its libraries,
        for a machine that traces user programs; "" for a machine that traces a kernel. Raises
        TargetError.

        Args:
            command: the command of -c, or "".
            process: id of a process that runs already, or 0.
            library: name of the library (libc.so.6); "" for the program itself.
        """
        return ""

    def memory(self, address: str) -> Iterator[bytes]:
        """Yield the memory of a running machine in pieces of whole pages, to find out which kernel
        it runs. Yield nothing if the memory can only be read through a GDB stub.

        Args:
            address: address of the machine, as the user gave it.

        Raises:
            TargetError: there is no such machine, or its memory must not be read.
        """
        yield from ()

    def describe_host(self, isa: Isa, options: MachineOptions, cache: Path) -> str:
        """Return a sentence about how machines of this kind run on this host, for --version -v; ""
        if there is nothing to say.

        Args:
            options: the user's options for the machine.
            cache: folder of files that are cached for this host.

        Raises TargetError."""
        return ""

    def start_early(self, config: MachineConfig) -> EarlyStart | None:
        """Start what can be started before the configuration is complete, and return it; None if
        nothing can.

        Raises KinstError and TargetError."""
        return None

    @abstractmethod
    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start the machine, or connect to it, and return its target. A machine that kinst starts
        boots while the caller continues.

        Args:
            on_output: called with the output of the traced command.

        Raises KinstError and TargetError."""
        ...
