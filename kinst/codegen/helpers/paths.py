"""Paths of files as the kernel knows them: cwd, root and d_path().

The system knows how the kernel keeps them, and writes the code that finds them (PathCode).
"""

from __future__ import annotations

from typing import Protocol, cast

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Text, Unit
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR


class PathCode(Protocol):
    """Code for paths, by a system that knows them (Facts.paths).  A place is the address of the
    kernel's structure for a file's path; 0 is none."""

    # Bytes of the longest path, with its NUL.
    longest: int

    def current_place(self, firing: Firing) -> IrValue:
        """Return the place of the current directory; 0 if there is no thread."""
        ...

    def root_place(self, firing: Firing) -> IrValue:
        """Return the place of the process's root; 0 if there is no thread."""
        ...

    def write_path(self, unit: Unit, name: str) -> IrFunction:
        """Write path(place, root, work, room), which stores the text of a place's path from root.
        It returns the text's address, which is in the `longest` bytes at work; or 0, and stores the
        address that cannot be read in room.  root 0 means the topmost directory."""
        ...


def path_code_of(unit: Unit) -> PathCode:
    """Return the system's code for paths.  Raises KinstError if the system knows none."""
    if unit.machine.paths is None:
        raise KinstError("paths of files are not available: the kernel's structures are not known")
    return cast(PathCode, unit.machine.paths)


def _text(firing: Firing, place: IrValue, root: IrValue) -> Text:
    """Return the path as a string of at most strsize bytes."""
    code = firing.code
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    before = code.get(firing.arena())
    paths = path_code_of(firing.unit)
    work = firing.allocate(const(paths.longest))
    word = code.add(firing.temp(), TEMP_WORD)
    path = code.call(firing.unit.helper("path", paths.write_path), (place, root, work, word))
    bad = code.icmp("eq", path, 0)
    firing.faults.add(code, bad, FAULT_BADADDR, code.load(64, word))
    copy_text(firing, Text(path, paths.longest), room, size)
    code.set(firing.arena(), before)
    return Text(room, size)


def _nowhere(firing: Firing) -> Text | None:
    """Return the value in BEGIN, END and timers of a program without a kernel, else None."""
    if not firing.unit.machine.host or firing.unit.machine.paths is not None:
        return None
    room = firing.text_room(8)
    firing.code.store(const(0), room)
    return Text(room, 1)


def current_directory(firing: Firing) -> Lowered:
    """Return cwd, as the process sees it from its root; "" in BEGIN, END and timers."""
    nowhere = _nowhere(firing)
    if nowhere is None:
        paths = path_code_of(firing.unit)
        place = paths.current_place(firing)
        nowhere = _text(firing, place, paths.root_place(firing))
    return nowhere


def root_directory(firing: Firing) -> Lowered:
    """Return the path of the process's root from the topmost directory."""
    nowhere = _nowhere(firing)
    if nowhere is None:
        nowhere = _text(firing, path_code_of(firing.unit).root_place(firing), const(0))
    return nowhere


def kernel_path(firing: Firing, address: IrValue) -> Lowered:
    """Return the path, from the process's root, of the kernel's structure at this address."""
    code = firing.code
    firing.faults.add(code, code.icmp("eq", address, 0), FAULT_BADADDR, address)
    root = path_code_of(firing.unit).root_place(firing)
    return _text(firing, address, root)
