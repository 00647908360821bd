"""Kind of machine `live`: the machine that kinst itself runs on.

MACHINE is its MachineKind, which kinst.machines finds by name.

Tested by tests/machines/live/test_parts.py and tests/vm/live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinst.core.errors import KinstError
from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option, Rule

if TYPE_CHECKING:
    from kinst.core.machine import Abilities, MachineConfig, Target

_POSSIBLE = Path("/sys/devices/system/cpu/possible")


def _opening() -> Any:
    return import_module("kinst.machines.live.opening")


def _process(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise KinstError("the value is not the id of a process", "1 is one")
    return int(text)


class LiveKind(MachineKind):
    """Kind of machine for the machine that kinst itself runs on."""

    name = "live"
    option = Option("--live", "", "trace the machine that kinst runs on, as root", "kind")
    options = (
        Option(
            "-p", "PID", "a process that runs already: it is $target, and the trace ends with it",
            "process", _process, instead="a predicate selects a process: /pid == N/",
        ),
    )  # fmt: skip
    takes = frozenset(("command", "debug", "debug_folders"))
    rules = (
        Rule(
            ("command",), "{given} and {beside} both say which process $target is",
            "leave out one of them", ("process",),
        ),
    )  # fmt: skip

    @property
    def abilities(self) -> Abilities:
        found: Abilities = _opening().ABILITIES
        return found

    def cpus(self, arguments: Sequence[str]) -> int:
        """Return the number of CPUs of this host that may ever be online."""
        try:
            return int(_POSSIBLE.read_text().strip().split("-")[-1].split(",")[-1]) + 1
        except (OSError, ValueError):
            return 1

    def check(self) -> None:
        _opening().check()

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Load kinst's kernel module if it is not loaded, and open its device.  Raises
        TargetError.
        """
        target: Target = _opening().open_live(config, on_output)
        return target


MACHINE = LiveKind()
