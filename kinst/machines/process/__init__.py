"""Kind of machine `process`: the user program that the command of -c executes, or a process that
runs already (-p).

MACHINE is found by name.

Tested by tests/machines/process.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option, Rule

if TYPE_CHECKING:
    from kinst.core.machine import Abilities, MachineConfig, Target


def _machine() -> Any:
    return import_module("kinst.machines.process.machine")


class ProcessKind(MachineKind):
    """Kind of machine for a user program, whose instructions kinst counts."""

    name = "process"
    option = Option(
        "--process", "", "trace the program that the command of -c executes, or the process of -p,"
        " in place of a kernel: its instructions can be counted", "kind",
    )  # fmt: skip
    takes = frozenset(("command", "process"))
    rules = (
        Rule(("kind",), "{machine} needs a program", "-c 'PROGRAM ARGUMENTS', or -p PID",
             without=("command", "process")),
        Rule(("command",), "{given} and {beside} both say which program", "leave out one of them",
             ("process",)),
    )  # fmt: skip

    # A count for each instruction of a large program, which takes 16 bytes.
    settings = (("aggsize", "16m"),)

    @property
    def abilities(self) -> Abilities:
        found: Abilities = _machine().TracedProcess.abilities
        return found

    def check(self) -> None:
        _machine().check()

    def program(self, command: str, process: int, library: str = "") -> str:
        """Return the path of the file that a command or process executes, or of one of its
        libraries. Raises TargetError if the command is not one program, or there is no such process
        or library."""
        own: str
        if process:
            by = import_module("kinst.wire.other_process").OtherProcess(process)
            own = by.file
        else:
            by = import_module("kinst.machines.process.command").simple_command(command)
            own = by.path
        if not library:
            return own
        libraries = import_module("kinst.machines.process.libraries")
        loaded = libraries.loaded_by_process if process else libraries.loaded_by_command
        path: str = libraries.library_file(library, loaded(by), own)
        return path

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start the program of a configuration's command, stopped before its first instruction.
        Raises TargetError."""
        target: Target = _machine().TracedProcess(config)
        return target


MACHINE = ProcessKind()
