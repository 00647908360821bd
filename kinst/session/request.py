"""What a user asks for, understood.

A wrong command line and --help are answered with this alone, so it imports little.

Tested by tests/session/test_cli_options.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinst.core.errors import KinstError
from kinst.core.layout import LEAF
from kinst.core.probe import ProgramText
from kinst.dlang.vocabulary.d_options import parse_size
from kinst.machines import kind_of

if TYPE_CHECKING:
    from kinst.core.machine import MachineKind

DEFAULT_ISA = "amd64"
MOST_CPUS = 255  # of QEMU's machines
LEAST_MEMORY = 128 << 20
DUMP_STAGES = ("tree", "typed", "probes", "layout", "ir", "code", "plan")


@dataclass(frozen=True, slots=True)
class Request:
    """A command line, understood.  settings: -x options in order; "" where no value was given.

    vm, gdb, attach and live say which machine; none means the VM, if any probe needs a kernel.
    kernel: a file of the user's; release: one of Debian's kernels instead (kernels/releases.py).
    cpu_count, memory (bytes): of the VM, 0 for what is usual.  process: the id of one that runs
    already, for $target, and with which traces end; 0 for none.
    """

    programs: tuple[ProgramText, ...] = ()
    arguments: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    list_probes: bool = False
    verbose: bool = False
    zero: bool = False
    compile_only: bool = False
    show_code: bool = False
    show_program: bool = False
    command: str = ""
    process: int = 0
    output: str = ""
    vm: str = ""
    gdb: str = ""
    attach: str = ""
    live: bool = False
    kernel: str = ""
    release: str = ""
    debug: str = ""
    initrd: str = ""
    append: str = ""
    dump: str = ""
    qemu_args: tuple[str, ...] = ()
    cpu_count: int = 0
    memory: int = 0
    cold: bool = False
    copies: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    debug_folders: tuple[str, ...] = ()
    build: str = ""
    shell: bool = False
    yes: bool = False  # download a kernel without asking
    root: str = ""
    writable: tuple[str, ...] = ()
    preprocessor: tuple[str, ...] = ()
    preprocessor_path: str = ""
    timeout: float | None = None  # seconds after which the trace ends

    @property
    def of_file(self) -> bool:
        """Whether it is about a file as it is, and wants no machine: -d with -e, and a file that
        is neither to be booted nor to be compared with a running kernel."""
        wanted = self.show_program and self.compile_only
        machine = self.gdb or self.attach or self.live or self.vm or self.command
        return wanted and not machine and bool(self.kernel or self.debug)

    @property
    def runs_command(self) -> bool:
        """Whether something is to be run in the guest."""
        return bool(self.command or self.shell)

    @property
    def names_alone(self) -> bool:
        """Whether nothing but the names of probes is asked for (-l without -v)."""
        return self.list_probes and not self.verbose and not self.runs_command

    @property
    def machine(self) -> MachineKind:
        """The kind of machine that is meant."""
        return kind_of(lambda option: bool(getattr(self, option, "")))

    @property
    def address(self) -> str:
        """Where the machine is, when somebody else has started it."""
        option = self.machine.option
        return str(getattr(self, option)) if option else ""

    @property
    def cpus(self) -> int:
        """How many CPUs the machine may have, as far as that is known before it is there."""
        return self.cpu_count or self.machine.cpus(self.qemu_args)


def parse_cpus(value: str) -> int:
    """What --cpus says.  Raises KinstError."""
    if not (value.isascii() and value.isdecimal() and 0 < int(value) <= MOST_CPUS):
        raise KinstError(f"invalid number of CPUs {value[:40]!r}", f"1 to {MOST_CPUS}")
    return int(value)


def parse_memory(value: str) -> int:
    """Bytes that --memory asks for, up to a whole leaf.  Raises KinstError."""
    size = parse_size("memory", value) + LEAF - 1 & -LEAF
    if size < LEAST_MEMORY:
        raise KinstError(f"a guest does not boot in {value}", f"at least {LEAST_MEMORY >> 20}m")
    return size
