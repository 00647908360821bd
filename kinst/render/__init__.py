"""Output formats: one file or folder for each, found by its name.

A module or package NAME in this folder has RENDERER, a class that is called with (destination,
schema): where to write, and the meaning of records. If it also has LINES = True, the format shows
the source lines of frames.

Tested by tests/test_contracts.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.members import member_names

if TYPE_CHECKING:
    from kinst.consumer.schema import Schema
    from kinst.events import Event


def _nowhere(text: str) -> None:
    pass


def _no_shell(command: str, capture: bool) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a renderer writes.

    Attributes:
        write: called with data, for standard output or the file of -o.
        say: called with a message for the user.
        console: called with the traced command's output, if this output is not part of the data.
        shell: called with a command of system(), and whether to return the command's output.
            Otherwise, the output goes to the console.
        truncate: empties the file that data is written to; None if data is not written to a file.
        traced: texts that say what is traced, as far as known: "program", "command" and "kernel".
    """

    write: Callable[[str], None]
    say: Callable[[str], None]
    console: Callable[[str], None] = _nowhere
    shell: Callable[[str, bool], bytes] = _no_shell
    truncate: Callable[[], None] | None = None
    traced: Mapping[str, str] = field(default_factory=dict)


class Renderer(Protocol):
    """A renderer of events in one output format: show() is called with one event after another."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None:
        """Close the files that the D program has opened."""


RendererFactory = Callable[[Destination, "Schema"], Renderer]


DEFAULT = "dtrace"


@cache
def formats() -> tuple[str, ...]:
    """Return the names of all output formats."""
    return member_names(__path__)


def renderer(name: str) -> RendererFactory:
    """Return the class that renders events in this format. Raises KinstError for an unknown
    format."""
    factory: RendererFactory = _module(name).RENDERER
    return factory


def shows_lines(name: str) -> bool:
    """Return whether a format shows the source lines of frames. Raises KinstError for an unknown
    format."""
    return bool(getattr(_module(name), "LINES", False))


def _module(name: str) -> ModuleType:
    if name not in formats():
        raise KinstError(f"unknown output format {name!r}", f"known: {' '.join(formats())}")
    return importlib.import_module(f"{__name__}.{name}")
