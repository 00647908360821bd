"""One file or folder for each output format; a renderer is found by its name.

A module or package NAME here offers RENDERER, a class that is made with (destination, schema):
where to write, and the meaning of records.  It shows one event after another.  LINES, if there,
says whether it shows the source lines of frames.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from kinst.core.errors import KinstError

if TYPE_CHECKING:
    from kinst.consumer.schema import Schema
    from kinst.events import Event


def _nowhere(text: str) -> None:
    pass


def _no_shell(command: str, capture: bool) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class Destination:
    """The receivers of a renderer's text.

    Attributes:
        write: takes data (standard output, or the file of -o).
        say: takes one message for people.
        console: takes what the traced command writes, if that is not data.
        shell: runs a command of system(); with capture its output is returned, else it goes to
            the console.
        truncate: empties the file that data goes to; None if it is not a file.
        traced: "program", "command" and "kernel", as far as they are known.
    """

    write: Callable[[str], None]
    say: Callable[[str], None]
    console: Callable[[str], None] = _nowhere
    shell: Callable[[str, bool], bytes] = _no_shell
    truncate: Callable[[], None] | None = None
    traced: Mapping[str, str] = field(default_factory=dict)


class Renderer(Protocol):
    """Turns events into output, one after another."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None:
        """Close the files that the program has opened."""


RendererFactory = Callable[[Destination, "Schema"], Renderer]


DEFAULT = "dtrace"


@cache
def formats() -> tuple[str, ...]:
    """Return the names of all output formats."""
    return tuple(info.name for info in pkgutil.iter_modules(__path__))


def renderer(name: str) -> RendererFactory:
    """Return the renderer of a format.  Raises KinstError for an unknown name."""
    factory: RendererFactory = _module(name).RENDERER
    return factory


def shows_lines(name: str) -> bool:
    """Return whether a format shows the source lines of frames.  Raises KinstError for an unknown
    name."""
    return bool(getattr(_module(name), "LINES", False))


def _module(name: str) -> ModuleType:
    if name not in formats():
        raise KinstError(f"unknown output format {name!r}", f"known: {' '.join(formats())}")
    return importlib.import_module(f"{__name__}.{name}")
