"""LLVM IR that finds the path of a file in Linux's directory entries and mounts, for D's cwd, root
and d_path().

The code walks as d_path() does (fs/d_path.c): from the directory entry up to the process's root,
across mounts. It takes no lock, so it may see half of a concurrent rename; each read is checked.

Tested by tests/codegen/helpers.
"""

from __future__ import annotations

from functools import partial

from kinst.codegen.firing import TEMP_WORD, Firing, Unit, current_thread
from kinst.codegen.helpers.branching import both, either, leave, loop, step, when
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.btf import Btf

ROOM = 4096  # PATH_MAX

LONGEST_NAME = 255  # NAME_MAX

STEPS = 512  # directory entries and mounts of one path, at most

_SLASH = ord("/")

_DELETED = b" (deleted)"


@dataclass(frozen=True, slots=True)
class LinuxPaths:
    """Offsets of members of Linux's structures for files, and emitters of code that reads them.
    Implements PathCode (codegen/helpers/paths.py)."""

    # In a task_struct: address of its fs_struct.  In an fs_struct: the current directory (pwd) and
    # the root, each a struct path.  In a struct path: the address of a mount's public part (mount)
    # and the address of a directory entry (dentry).
    fs: int
    pwd: int
    root: int
    mount: int
    dentry: int
    # In a directory entry.  The word at `hashed` is 0 if the file was deleted.
    parent: int
    name: int
    length: int
    hashed: int
    operations: int
    # In a directory entry's operations: address of a function that makes up the entry's name, or 0.
    own_name: int
    # In the public part of a mount: address of the mount's topmost directory entry.
    top: int
    # In a mount: the public part; the address of the mount in which this mount is mounted; the
    # address of the directory entry on which this mount is mounted.
    public: int
    above: int
    at: int

    @property
    def longest(self) -> int:
        return ROOM

    def current_directory_path(self, firing: Firing) -> IrValue:
        return self._place(firing, self.pwd)

    def root_directory_path(self, firing: Firing) -> IrValue:
        return self._place(firing, self.root)

    def write_path(self, unit: Unit, name: str) -> IrFunction:
        code = unit.function(name, 4)
        place, root, work, room = code.params
        walk = _Walk(unit, code, self, root, work, room)
        walk.set_up()
        leave(code, code.icmp("eq", place, 0), walk.text)
        code.set(walk.mount, walk.word(place, self.mount))
        code.set(walk.entry, walk.word(place, self.dentry))
        return walk.whole(says_deleted=True)

    def write_path_in_mount(self, unit: Unit, name: str) -> IrFunction:
        code = unit.function(name, 5)
        mount, entry, root, work, room = code.params
        walk = _Walk(unit, code, self, root, work, room)
        walk.set_up()
        code.set(walk.mount, mount)
        code.set(walk.entry, entry)
        whole = code.icmp("eq", entry, 0)
        when(code, whole, lambda: code.set(walk.entry, walk.word(mount, self.top)))
        # An entry that is about to be created looks like the entry of a deleted file.
        return walk.whole(says_deleted=False)

    def _place(self, firing: Firing, offset: int) -> IrValue:
        """Emit LLVM IR that computes the address of the current thread's struct path for its
        current directory or its root. Return this address as an IR value, which is 0 if there is no
        thread.

        Args:
            offset: offset of the struct path in the thread's fs_struct.
        """
        code = firing.code
        words = (current_thread(firing), code.add(firing.temp(), TEMP_WORD))
        write = partial(_file_system, offset=self.fs)
        view = code.call(firing.unit.helper("file_system", write), words)
        return code.select(code.icmp("eq", view, 0), const(0), code.add(view, offset))


class _Walk:
    """Emitter of a function that writes the path of a file as text.

    The function writes the text into working memory, from its end downwards. Before whole(), the
    caller emits code that sets `mount` and `entry` to the file's mount and directory entry.
    """

    def __init__(
        self,
        unit: Unit,
        code: IrFunction,
        paths: LinuxPaths,
        root: IrValue,
        work: IrValue,
        room: IrValue,
    ) -> None:
        """Declare the function's local variables; other methods emit its code.

        Args:
            code: the LLVM function that this object emits.
            root: address of the struct path from which the text starts; 0 means the topmost
                directory.
            work: address of working memory of ROOM bytes, for the text.
            room: address of a word of working memory, for each value that the function reads. If
                memory cannot be read, the function stores the bad address in this word, and returns
                0.
        """
        self.unit, self.code, self.paths = unit, code, paths
        self.root, self.work, self.room = root, work, room
        self.mount, self.entry, self.steps, self.at, self.going = (code.local(64) for _ in range(5))

    def set_up(self) -> None:
        """Emit LLVM IR that stores the NUL of an empty text."""
        code, end = self.code, const(ROOM - 1)
        code.store(const(0, 8), code.op("add", self.work, end))
        code.set(self.at, end)

    def read(self, to: IrValue, source: IrValue, size: IrValue) -> None:
        code = self.code
        failed = code.call_c(self.unit.machine.nofault_read, (to, source, size))
        self.give_up(code.icmp("ne", failed, 0), source)

    def give_up(self, bad: IrValue, address: IrValue) -> None:
        code = self.code

        def result() -> IrValue:
            code.store(address, self.room)
            return const(0)

        leave(code, bad, result)

    def word(self, base: IrValue, offset: int, size: int = 8) -> IrValue:
        self.read(self.room, self.code.add(base, offset), const(size))
        return self.code.convert(self.code.load(8 * size, self.room), 64, signed=False)

    def push(self, byte: int) -> None:
        step(self.code, self.at, -1)
        self.code.store(const(byte, 8), self.code.op("add", self.work, self.code.get(self.at)))

    def text(self) -> IrValue:
        return self.code.op("add", self.work, self.code.get(self.at))

    def begin(self, *, says_deleted: bool) -> None:
        """Emit LLVM IR that runs before the walk towards the root.

        A socket or a pipe is in no directory tree, and so has no path: for such a file, the emitted
        code makes "" the result, and leaves.

        Args:
            says_deleted: whether to emit code that ends a deleted file's path with " (deleted)".
        """
        code, paths = self.code, self.paths
        entry = code.get(self.entry)
        top = self.word(code.get(self.mount), paths.top)
        parent = self.word(entry, paths.parent)
        operations = self.word(entry, paths.operations)

        def look() -> None:
            made_up = code.icmp("ne", self.word(operations, paths.own_name), 0)
            tops = both(code, code.icmp("eq", entry, parent), code.icmp("eq", entry, top))
            leave(code, both(code, made_up, code.op("xor", tops, const(1, 1))), self.text)

        when(code, code.icmp("ne", operations, 0), look)
        if not says_deleted:
            return
        unhashed = code.icmp("eq", self.word(entry, paths.hashed), 0)

        def say() -> None:
            for byte in reversed(_DELETED):
                self.push(byte)

        when(code, both(code, unhashed, code.icmp("ne", entry, parent)), say)

    def up(self) -> None:
        """Emit LLVM IR that goes one step towards the root: to the parent directory, or from the
        top of a mount to the directory that it is mounted on."""
        code, paths = self.code, self.paths
        mount, entry = code.get(self.mount), code.get(self.entry)
        top, parent = self.word(mount, paths.top), self.word(entry, paths.parent)
        step(code, self.steps)

        def across() -> None:
            whole = code.add(mount, -paths.public)
            above = self.word(whole, paths.above)
            when(code, code.icmp("eq", above, whole), self.stop, lambda: leave_mount(whole, above))

        def leave_mount(whole: IrValue, above: IrValue) -> None:
            code.set(self.entry, self.word(whole, paths.at))
            code.set(self.mount, code.add(above, paths.public))

        def named() -> None:
            self.name(entry)
            code.set(self.entry, parent)

        alone = code.icmp("eq", entry, parent)
        when(
            code, code.icmp("eq", entry, top), across,
            lambda: when(code, alone, self.stop, named),
        )  # fmt: skip

    def stop(self) -> None:
        self.code.set(self.going, const(0))

    def name(self, entry: IrValue) -> None:
        """Emit LLVM IR that puts a slash and a directory entry's name before the text so far."""
        code, paths = self.code, self.paths
        length = self.word(entry, paths.length, 4)
        start = code.op("sub", code.get(self.at), length)
        wild = code.icmp("ugt", length, LONGEST_NAME)
        self.give_up(either(code, wild, code.icmp("slt", start, 1)), entry)
        text = self.word(entry, paths.name)
        code.set(self.at, start)
        self.read(self.text(), text, length)
        self.push(_SLASH)

    def whole(self, *, says_deleted: bool) -> IrFunction:
        """Emit LLVM IR that writes the path of the file in `mount` and `entry`, and returns the
        address of the text. Return the complete LLVM function.

        Args:
            says_deleted: whether to put " (deleted)" at the end of a deleted file's path.
        """
        code, paths = self.code, self.paths
        root_mount, root_entry = code.local(64), code.local(64)

        def rooted() -> None:
            code.set(root_mount, self.word(self.root, paths.mount))
            code.set(root_entry, self.word(self.root, paths.dentry))

        when(code, code.icmp("ne", self.root, 0), rooted)
        self.begin(says_deleted=says_deleted)
        code.set(self.going, const(1))

        def goes_on() -> IrValue:
            other_mount = code.icmp("ne", code.get(self.mount), code.get(root_mount))
            other_entry = code.icmp("ne", code.get(self.entry), code.get(root_entry))
            fits = code.icmp("ult", code.get(self.steps), STEPS)
            below = both(code, code.icmp("ne", code.get(self.going), 0), fits)
            return both(code, below, either(code, other_mount, other_entry))

        loop(code, goes_on, self.up)
        self.give_up(code.icmp("uge", code.get(self.steps), STEPS), code.get(self.entry))
        # "/" itself, deleted or not.
        first = code.load(8, self.text())
        nothing = code.icmp("ne", first, _SLASH)
        when(code, nothing, lambda: self.push(_SLASH))
        code.ret(self.text())
        return code


def _file_system(unit: Unit, name: str, offset: int) -> IrFunction:
    """Return an LLVM function file_system(thread, room). It reads the address of the thread's
    fs_struct into the word at `room`, and returns this address; 0 if there is none.

    Args:
        name: name of the function.
        offset: offset in a task_struct of the fs_struct's address.
    """
    code = unit.function(name, 2)
    thread, room = code.params
    leave(code, code.icmp("eq", thread, 0), const(0))
    source = code.add(thread, offset)
    failed = code.call_c(unit.machine.nofault_read, (room, source, const(8)))
    leave(code, code.icmp("ne", failed, 0), const(0))
    code.ret(code.load(64, room))
    return code


def paths(btf: Btf) -> LinuxPaths | None:
    """Return the offsets of members that paths need, from the kernel's BTF; None if this kernel's
    structures have other members."""
    try:
        return LinuxPaths(
            fs=btf.offset("task_struct", "fs"),
            pwd=btf.offset("fs_struct", "pwd"),
            root=btf.offset("fs_struct", "root"),
            mount=btf.offset("path", "mnt"),
            dentry=btf.offset("path", "dentry"),
            parent=btf.offset("dentry", "d_parent"),
            name=btf.offset("dentry", "d_name.name"),
            length=btf.offset("dentry", "d_name.len"),
            hashed=btf.offset("dentry", "d_hash.pprev"),
            operations=btf.offset("dentry", "d_op"),
            own_name=btf.offset("dentry_operations", "d_dname"),
            top=btf.offset("vfsmount", "mnt_root"),
            public=btf.offset("mount", "mnt"),
            above=btf.offset("mount", "mnt_parent"),
            at=btf.offset("mount", "mnt_mountpoint"),
        )
    except KinstError:
        return None
