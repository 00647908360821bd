"""Paths of files as the kernel knows them: cwd, root and d_path().

The walk is that of Linux's d_path() (fs/d_path.c), from the directory entry up to the process's
root and across mounts. It takes no lock, so it may see half of a concurrent rename; every read is
checked.
"""

from __future__ import annotations

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Text, Unit, current_thread
from kinst.codegen.helpers.branching import both, either, leave, loop, step, when
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.ssa import Function, Value, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR
from kinst.core.system import Paths

ROOM = 4096  # PATH_MAX of Linux

LONGEST_NAME = 255  # NAME_MAX

STEPS = 512  # entries and mounts on the way of one path, at most

_SLASH = ord("/")

_DELETED = b" (deleted)"


def paths_of(unit: Unit) -> Paths:
    """How this kernel keeps paths. Raises KinstError if that is unknown."""
    if unit.machine.paths is None:
        raise KinstError("paths of files are not available: this kernel's structures are unknown")
    return unit.machine.paths


class _Walk:
    """The function path(place, root, work, room), under construction. It returns the text's address
    in work, or 0, and then room holds the address that cannot be read.

    place, root: addresses of a pair of mount and directory entry; root 0 means the topmost one.
    work: ROOM bytes.
    """

    def __init__(self, unit: Unit, code: Function) -> None:
        self.unit, self.code, self.paths = unit, code, paths_of(unit)
        self.place, self.root, self.work, self.room = code.params
        self.mount, self.entry, self.steps, self.at, self.going = (code.local(64) for _ in range(5))

    def read(self, to: Value, source: Value, size: Value) -> None:
        code = self.code
        failed = code.call_c(self.unit.machine.nofault_read, (to, source, size))
        self.give_up(code.icmp("ne", failed, 0), source)

    def give_up(self, bad: Value, address: Value) -> None:
        code = self.code

        def result() -> Value:
            code.store(address, self.room)
            return const(0)

        leave(code, bad, result)

    def word(self, base: Value, offset: int, size: int = 8) -> Value:
        self.read(self.room, self.code.add(base, offset), const(size))
        return self.code.convert(self.code.load(8 * size, self.room), 64, signed=False)

    def push(self, byte: int) -> None:
        step(self.code, self.at, -1)
        self.code.store(const(byte, 8), self.code.op("add", self.work, self.code.get(self.at)))

    def text(self) -> Value:
        return self.code.op("add", self.work, self.code.get(self.at))

    def begin(self) -> None:
        """Handle files that are in no tree, which have no path, and deleted ones, whose path says
        so."""
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
        unhashed = code.icmp("eq", self.word(entry, paths.hashed), 0)

        def say() -> None:
            for byte in reversed(_DELETED):
                self.push(byte)

        when(code, both(code, unhashed, code.icmp("ne", entry, parent)), say)

    def up(self) -> None:
        """One step towards the root."""
        code, paths = self.code, self.paths
        mount, entry = code.get(self.mount), code.get(self.entry)
        top, parent = self.word(mount, paths.top), self.word(entry, paths.parent)
        step(code, self.steps)

        def across() -> None:
            whole = code.add(mount, -paths.public)
            above = self.word(whole, paths.above)
            when(code, code.icmp("eq", above, whole), self.stop, lambda: leave_mount(whole, above))

        def leave_mount(whole: Value, above: Value) -> None:
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

    def name(self, entry: Value) -> None:
        """Put a slash and the entry's name before the text so far."""
        code, paths = self.code, self.paths
        length = self.word(entry, paths.length, 4)
        start = code.op("sub", code.get(self.at), length)
        wild = code.icmp("ugt", length, LONGEST_NAME)
        self.give_up(either(code, wild, code.icmp("slt", start, 1)), entry)
        text = self.word(entry, paths.name)
        code.set(self.at, start)
        self.read(self.text(), text, length)
        self.push(_SLASH)


def _path(unit: Unit, name: str) -> Function:
    """path(place, root, work, room): see _Walk."""
    code = unit.function(name, 4)
    walk = _Walk(unit, code)
    paths = walk.paths
    end = const(ROOM - 1)
    code.store(const(0, 8), code.op("add", walk.work, end))
    code.set(walk.at, end)
    leave(code, code.icmp("eq", walk.place, 0), walk.text)
    code.set(walk.mount, walk.word(walk.place, paths.mount))
    code.set(walk.entry, walk.word(walk.place, paths.dentry))
    root_mount, root_entry = code.local(64), code.local(64)

    def rooted() -> None:
        code.set(root_mount, walk.word(walk.root, paths.mount))
        code.set(root_entry, walk.word(walk.root, paths.dentry))

    when(code, code.icmp("ne", walk.root, 0), rooted)
    walk.begin()
    code.set(walk.going, const(1))

    def goes_on() -> Value:
        other_mount = code.icmp("ne", code.get(walk.mount), code.get(root_mount))
        other_entry = code.icmp("ne", code.get(walk.entry), code.get(root_entry))
        fits = code.icmp("ult", code.get(walk.steps), STEPS)
        below = both(code, code.icmp("ne", code.get(walk.going), 0), fits)
        return both(code, below, either(code, other_mount, other_entry))

    loop(code, goes_on, walk.up)
    walk.give_up(code.icmp("uge", code.get(walk.steps), STEPS), code.get(walk.entry))
    # "/" itself, deleted or not.
    first = code.load(8, walk.text())
    nothing = code.icmp("ne", first, _SLASH)
    when(code, nothing, lambda: walk.push(_SLASH))
    code.ret(walk.text())
    return code


def _file_system(unit: Unit, name: str) -> Function:
    """file_system(thread, room) -> address of the thread's view of the file system, or 0."""
    code = unit.function(name, 2)
    thread, room = code.params
    leave(code, code.icmp("eq", thread, 0), const(0))
    source = code.add(thread, paths_of(unit).fs)
    failed = code.call_c(unit.machine.nofault_read, (room, source, const(8)))
    leave(code, code.icmp("ne", failed, 0), const(0))
    code.ret(code.load(64, room))
    return code


def _place_of_thread(firing: Firing, offset: int) -> Value:
    """Address of one of the thread's pairs of mount and entry; 0 where there is no thread."""
    code = firing.code
    words = (current_thread(firing), code.add(firing.temp(), TEMP_WORD))
    found = code.call(firing.unit.helper("file_system", _file_system), words)
    return code.select(code.icmp("eq", found, 0), const(0), code.add(found, offset))


def _text(firing: Firing, place: Value, root: Value) -> Text:
    """The path as a string of at most strsize bytes."""
    code = firing.code
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    before = code.get(firing.arena())
    work = firing.allocate(const(ROOM))
    word = code.add(firing.temp(), TEMP_WORD)
    found = code.call(firing.unit.helper("path", _path), (place, root, work, word))
    bad = code.icmp("eq", found, 0)
    firing.faults.add(code, bad, FAULT_BADADDR, code.load(64, word))
    copy_text(firing, Text(found, ROOM), room, size)
    code.set(firing.arena(), before)
    return Text(room, size)


def _nowhere(firing: Firing) -> Text | None:
    """The value in BEGIN, END and timers of a program without a kernel, else None."""
    if not firing.unit.machine.host or firing.unit.machine.paths is not None:
        return None
    room = firing.text_room(8)
    firing.code.store(const(0), room)
    return Text(room, 1)


def current_directory(firing: Firing) -> Lowered:
    """cwd, as the process sees it from its root; "" in BEGIN, END and timers."""
    found = _nowhere(firing)
    if found is None:
        paths = paths_of(firing.unit)
        place = _place_of_thread(firing, paths.pwd)
        found = _text(firing, place, _place_of_thread(firing, paths.root))
    return found


def root_directory(firing: Firing) -> Lowered:
    """root: the path of the process's root from the topmost one."""
    found = _nowhere(firing)
    if found is None:
        place = _place_of_thread(firing, paths_of(firing.unit).root)
        found = _text(firing, place, const(0))
    return found


def kernel_path(firing: Firing, address: Value) -> Lowered:
    """The path that a struct path of the kernel means, from the process's root."""
    code = firing.code
    firing.faults.add(code, code.icmp("eq", address, 0), FAULT_BADADDR, address)
    root = _place_of_thread(firing, paths_of(firing.unit).root)
    return _text(firing, address, root)
