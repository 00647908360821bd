"""Request of a user: the parsed command line.

A wrong command line and --help are answered by this module alone, so it imports little.

Tested by tests/session/test_cli_options.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinst.core.dataclass import dataclass
from kinst.core.options import NO_OPTIONS, MachineOptions
from kinst.core.probe import ProgramText
from kinst.machines import DEFAULT
from kinst.machines import load as load_kind

if TYPE_CHECKING:
    from kinst.core.machine_kind import MachineKind

DEFAULT_ISA = "amd64"


@dataclass(frozen=True, slots=True)
class Request:
    """Parsed command line: a machine, D programs, and what to do with them."""

    # Used only if a probe needs a kernel.
    machine: MachineOptions = NO_OPTIONS
    programs: tuple[ProgramText, ...] = ()
    # $1, $2, ...
    arguments: tuple[str, ...] = ()
    # Options of -x in order; the value is "" if none was given.
    settings: tuple[tuple[str, str], ...] = ()
    list_probes: bool = False
    verbose: bool = False
    # Descriptions may match nothing.
    zero: bool = False
    compile_only: bool = False
    # Show the D program after syntactic transformation.
    show_program: bool = False
    # Print the value after this stage (session/options.py, DUMP_STAGES), and end.
    dump: str = ""
    # A command for the guest's shell, or a shell of the guest on this terminal.
    command: str = ""
    shell: bool = False
    # Download a kernel without asking.
    yes: bool = False
    # The file that output goes to.
    output: str = ""
    # The C preprocessor's options (-D, -U, -I, -H), and its path.
    preprocessor: tuple[str, ...] = ()
    preprocessor_path: str = ""
    # Folders with the user's D libraries.
    libraries: tuple[str, ...] = ()
    # Seconds after which the trace ends.
    timeout: float | None = None

    @property
    def of_file(self) -> bool:
        """Whether the request is only about a file, and needs no machine.

        Such a request has -d and -e, and names a file that is neither booted nor compared with a
        running kernel.
        """
        machine = self.machine.kind or self.command
        file = self.machine.kernel or self.machine.debug
        return self.show_program and self.compile_only and not machine and bool(file)

    @property
    def runs_command(self) -> bool:
        """Whether a command (-c) or a shell (--shell) runs in the machine."""
        return bool(self.command or self.shell)

    @property
    def names_alone(self) -> bool:
        """Whether the user asks only for the names of probes (-l without -v)."""
        return self.list_probes and not self.verbose and not self.runs_command

    @property
    def kind(self) -> MachineKind:
        """Kind of machine to trace."""
        return load_kind(self.machine.kind or DEFAULT)

    @property
    def cpus(self) -> int:
        """Largest number of CPUs that the machine may have, as far as known before it starts."""
        return self.machine.cpus or self.kind.cpus(self.machine.qemu_args)
