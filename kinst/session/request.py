"""What the user asked for, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

DUMP_STAGES = ("tree", "typed", "probes", "layout", "ir", "code", "plan")


@dataclass(frozen=True, slots=True)
class ProgramText:
    """One -n, -P, -m, -f, -i or -s: its letter, its text, the name for messages."""

    letter: str
    text: str
    file: str


@dataclass(frozen=True, slots=True)
class Request:
    """A command line, understood.  settings: -x options in order; "" where no value was given.

    vm and gdb say which target; neither means the VM, if any probe needs a kernel.
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
    output: str = ""
    vm: str = ""
    gdb: str = ""
    kernel: str = ""
    debug: str = ""
    initrd: str = ""
    append: str = ""
    dump: str = ""
    qemu_args: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    debug_folders: tuple[str, ...] = ()
    preprocessor: tuple[str, ...] = ()
    preprocessor_path: str = ""
