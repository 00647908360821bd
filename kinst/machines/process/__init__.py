"""Kind of machine `process`: the user program that the command of -c executes.

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
    """Kind of machine for a user program, which kinst starts and whose instructions it counts."""

    name = "process"
    option = Option(
        "--process", "", "trace the program that the command of -c executes, in place of a kernel:"
        " its instructions can be counted", "kind",
    )  # fmt: skip
    takes = frozenset(("command",))
    rules = (
        Rule(("kind",), "{machine} needs a program", "-c 'PROGRAM ARGUMENTS'",
             without=("command",)),
    )  # fmt: skip

    @property
    def abilities(self) -> Abilities:
        found: Abilities = _machine().TracedProcess.abilities
        return found

    def check(self) -> None:
        _machine().check()

    def program(self, command: str) -> str:
        """Return the path of the file that a command executes. Raises TargetError if the command is
        not one program."""
        path: str = import_module("kinst.machines.process.command").simple_command(command).path
        return path

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start the program of a configuration's command, stopped before its first instruction.
        Raises TargetError."""
        target: Target = _machine().TracedProcess(config)
        return target


MACHINE = ProcessKind()
