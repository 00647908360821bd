"""LLVM IR of file paths as the kernel knows them: cwd, root and d_path().

The system knows how the kernel stores a path, and writes the code that finds its text (PathCode).
"""

from __future__ import annotations

from typing import Protocol, cast

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Text, Unit
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR


class PathCode(Protocol):
    """Protocol of a system's code for file paths (Facts.paths). A path is given by the address of
    the kernel's structure for it (Linux: struct path); 0 means no path.
    """

    # Bytes of the longest path, with its NUL.
    longest: int

    def current_directory_path(self, firing: Firing) -> IrValue:
        """Emit LLVM IR that finds the kernel's structure for the current directory; return its
        address, which is 0 if there is no thread.
        """
        ...

    def root_directory_path(self, firing: Firing) -> IrValue:
        """Emit LLVM IR that finds the kernel's structure for the process's root directory; return
        its address, which is 0 if there is no thread.
        """
        ...

    def write_path(self, unit: Unit, name: str) -> IrFunction:
        """Return the LLVM function path(structure, root, work, error), which stores the text of a
        path in working memory, and returns the address of the text's first byte.

        `structure` and `root` are addresses of the kernel's structures for the path and for the
        directory that the text starts from; root 0 means the topmost directory. `work` is the
        address of working memory of PathCode.longest bytes. If the function cannot read an address,
        it stores this address at `error` and returns 0.
        """
        ...

    def write_path_in_mount(self, unit: Unit, name: str) -> IrFunction:
        """Return the LLVM function path_in_mount(mount, entry, root, work, error), which does the
        same as write_path()'s function for a directory entry in a mounted file system.

        `mount` and `entry` are the addresses of the kernel's structures for the mounted file system
        and for the directory entry. `entry` 0 means the topmost directory of the file system.
        """
        ...


def path_code_of(unit: Unit) -> PathCode:
    """Return the system's code for file paths.  Raises KinstError if the system has none."""
    if unit.machine.paths is None:
        raise KinstError("paths of files are not available: the kernel's structures are not known")
    return cast(PathCode, unit.machine.paths)


def _text(firing: Firing, file: tuple[IrValue, ...], root: IrValue) -> Text:
    """Emit LLVM IR that makes the text of a path; return the text, at most strsize bytes.

    Args:
        file: one address, of the kernel's structure for the path; or two addresses, of the kernel's
            structures for a mount and for a directory entry in the mount.
        root: address of the kernel's structure for the directory that the text starts from; 0 means
            the topmost directory.
    """
    code = firing.code
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    before = code.get(firing.arena())
    paths = path_code_of(firing.unit)
    work = firing.allocate(const(paths.longest))
    word = code.add(firing.temp(), TEMP_WORD)
    if len(file) == 1:
        function = firing.unit.helper("path", paths.write_path)
    else:
        function = firing.unit.helper("path_in_mount", paths.write_path_in_mount)
    path = code.call(function, (*file, root, work, word))
    bad = code.icmp("eq", path, 0)
    firing.faults.add(code, bad, FAULT_BADADDR, code.load(64, word))
    copy_text(firing, Text(path, paths.longest), room, size)
    code.set(firing.arena(), before)
    return Text(room, size)


def _nowhere(firing: Firing) -> Text | None:
    """Return "" if the clause is BEGIN's, END's or a timer's in a D program that traces no kernel:
    cwd and root are "" there. Return None for any other clause.
    """
    if not firing.unit.machine.host or firing.unit.machine.paths is not None:
        return None
    room = firing.text_room(8)
    firing.code.store(const(0), room)
    return Text(room, 1)


def current_directory(firing: Firing) -> Lowered:
    """Emit LLVM IR that makes the value of cwd; return it. The path starts from the process's root.
    The path is "" in BEGIN, END and timers of a D program that traces no kernel.
    """
    nowhere = _nowhere(firing)
    if nowhere is None:
        paths = path_code_of(firing.unit)
        structure = paths.current_directory_path(firing)
        nowhere = _text(firing, (structure,), paths.root_directory_path(firing))
    return nowhere


def root_directory(firing: Firing) -> Lowered:
    """Emit LLVM IR that makes the value of the built-in variable root: the path of the process's
    root directory, from the topmost directory; return it.
    """
    nowhere = _nowhere(firing)
    if nowhere is None:
        structure = path_code_of(firing.unit).root_directory_path(firing)
        nowhere = _text(firing, (structure,), const(0))
    return nowhere


def kernel_path(firing: Firing, *file: IrValue) -> Lowered:
    """Emit LLVM IR that makes the text of a path, which starts from the current process's root
    directory; return the text. If the first address in `file` is 0, the emitted code faults.

    Args:
        file: one address, of the kernel's structure for the path; or two addresses, of the kernel's
            structures for a mount and for a directory entry in the mount.
    """
    code = firing.code
    firing.faults.add(code, code.icmp("eq", file[0], 0), FAULT_BADADDR, file[0])
    root = path_code_of(firing.unit).root_directory_path(firing)
    return _text(firing, file, root)
