"""Debug information of loaded modules: found, checked against what is loaded, moved into place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.inline import DebugIndex, FunctionDie, InlineCopy
from kinst.core.system import LoadedModule, ModuleFrames
from kinst.core.target import Target
from kinst.image.dwarf.cfi import open_cfi
from kinst.image.dwarf.file import DebugFile, layout, open_file
from kinst.image.elf import Elf, build_id_in, open_elf
from kinst.kernels.kmod import module_name

MASK = (1 << 64) - 1
BUILD_ID_NOTE = ".note.gnu.build-id"
NOTE_SIZE = 36  # of a 20-byte build-id

Move = Callable[[int], int | None]


class MovedIndex:
    """An index whose addresses are moved by a function; what it cannot move is left out."""

    def __init__(self, index: DebugIndex, move: Move, back: Move) -> None:
        """move: address of the index to the one that callers see; back: its inverse."""
        self._index = index
        self._move = move
        self._back = back

    def _ranges(self, ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        moved = []
        for low, high in ranges:
            start = self._move(low)
            if start is not None:
                moved.append((start, start + high - low))
        return tuple(moved)

    def _copy(self, copy: InlineCopy) -> InlineCopy:
        entry = None if copy.entry is None else self._move(copy.entry)
        return replace(copy, entry=entry, ranges=self._ranges(copy.ranges))

    def functions(self, name: str) -> Sequence[FunctionDie]:
        return [replace(f, ranges=self._ranges(f.ranges)) for f in self._index.functions(name)]

    def copies(self, name: str) -> Sequence[InlineCopy]:
        return [self._copy(c) for c in self._index.copies(name)]

    def inline_names(self) -> Sequence[str]:
        return self._index.inline_names()

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        place = self._back(address)
        return [] if place is None else [self._copy(c) for c in self._index.copies_at(place)]


class JoinedIndex:
    """Several indexes as one, in their order."""

    def __init__(self, parts: Sequence[DebugIndex]) -> None:
        self._parts = parts

    def functions(self, name: str) -> Sequence[FunctionDie]:
        return [f for part in self._parts for f in part.functions(name)]

    def copies(self, name: str) -> Sequence[InlineCopy]:
        return [c for part in self._parts for c in part.copies(name)]

    def inline_names(self) -> Sequence[str]:
        return sorted({n for part in self._parts for n in part.inline_names()})

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        return [c for part in self._parts for c in part.copies_at(address)]


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The debug file of a module in any of these folders (searched below them)."""
    for folder in folders:
        for suffix in ("*.ko.debug", "*.ko"):
            for file in sorted(folder.rglob(suffix)):
                if module_name(Path(file.name.removesuffix(".debug"))) == name:
                    return file
    return None


def loaded_build_id(target: Target, module: LoadedModule) -> str:
    """The build-id of the module as it lies in memory, or ""."""
    for section in module.sections:
        if section.name == BUILD_ID_NOTE:
            return build_id_in(target.read(section.address, NOTE_SIZE))
    return ""


def mover(file: DebugFile, module: LoadedModule, slide: int) -> tuple[Move, Move]:
    """(from the index's addresses of a module's file to running ones less slide, and back)."""
    loaded = {s.name: s.address for s in module.sections}
    sections = {s.index: s for s in file.sections}
    spans = sorted(
        (base, base + sections[index].size, loaded[sections[index].name])
        for index, base in layout(file).items()
        if sections[index].name in loaded and sections[index].size
    )
    starts = [low for low, _, _ in spans]
    running = sorted((live, live + high - low, low) for low, high, live in spans)
    lives = [live for live, _, _ in running]

    def move(address: int) -> int | None:
        k = bisect_right(starts, address) - 1
        if k < 0 or address >= spans[k][1]:
            return None
        return spans[k][2] + address - spans[k][0] - slide & MASK

    def back(address: int) -> int | None:
        place = address + slide & MASK
        k = bisect_right(lives, place) - 1
        if k < 0 or place >= running[k][1]:
            return None
        return running[k][2] + place - running[k][0]

    return move, back


def own_file(
    target: Target, module: LoadedModule, folders: Sequence[Path], say: Callable[[str], None]
) -> Elf | None:
    """The debug file of a loaded module, if one is found and is its own; what is wrong is said."""
    file = find_file(module.name, folders)
    if file is None:
        say(
            f"kinst: module {module.name} has no debug file: its inline functions, source"
            " lines and callers are skipped"
        )
        return None
    try:
        elf = open_elf(file)
        running = loaded_build_id(target, module)
    except KinstError as error:
        say(f"kinst: module {module.name} is skipped: {error}")
        return None
    if running != elf.build_id:
        say(
            f"kinst: {file} (build-id {elf.build_id or 'none'}) is not that of the loaded"
            f" module {module.name} (build-id {running or 'not found'}): skipped"
        )
        return None
    return elf


def frames_finder(
    target: Target, folders: Callable[[], Sequence[Path]], say: Callable[[str], None]
) -> Callable[[LoadedModule], ModuleFrames | None]:
    """Finds the call frame information of a loaded module in its debug file.

    folders: where debug files are, asked for when one is first needed.  say: told why there is
    none for a module.
    """

    def find(module: LoadedModule) -> ModuleFrames | None:
        try:
            elf = own_file(target, module, folders(), say)
            cfi = open_cfi(elf) if elf is not None else None
            if elf is None or cfi is None:
                return None
            return ModuleFrames(cfi.rule, mover(open_file(elf.path), module, 0)[1])
        except KinstError as error:
            say(f"kinst: no callers in module {module.name}: {error}")
            return None

    return find


def module_indexes(
    target: Target,
    modules: Sequence[LoadedModule],
    folders: Sequence[Path],
    slide: int,
    open_one: Callable[[Elf], DebugIndex],
    say: Callable[[str], None],
) -> list[DebugIndex]:
    """An index for every loaded module whose debug file is found and is its own.

    folders: where debug files are.  slide: what callers add to an index's addresses.
    open_one: opens the index of a file.  say: told of modules that are skipped, and why.
    """
    found: list[DebugIndex] = []
    for module in modules:
        elf = own_file(target, module, folders, say)
        if elf is None:
            continue
        try:
            move, back = mover(open_file(elf.path), module, slide)
            found.append(MovedIndex(open_one(elf), move, back))
        except KinstError as error:
            say(f"kinst: module {module.name} is skipped: {error}")
    return found
