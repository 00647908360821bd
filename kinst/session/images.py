"""The images of a running machine: the kernel and its modules, each by the debug information of
its file and where it lies in memory.

Debug files of modules are looked for when they are first asked for, each once, and taken only when
their build-id is that of the loaded module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.inline import DebugIndex, FunctionDie, InlineCopy, SourcePlace
from kinst.core.machine import Machine
from kinst.core.system import LoadedModule, ModuleFrames
from kinst.core.types import KERNEL
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.elf_file import ElfFile, build_id_in
from kinst.kernels.kmod import module_name

MASK = (1 << 64) - 1
BUILD_ID_NOTE = ".note.gnu.build-id"
NOTE_SIZE = 36  # of a 20-byte build-id

# From addresses of an image's file to running ones, or back; None for what is not loaded.
Move = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """An image in memory.  move: addresses of its debug information to running ones; back: from
    them."""

    debug: DebugInfo
    move: Move
    back: Move


def moved_by(debug: DebugInfo, slide: int) -> LoadedImage:
    """An image that lies in one piece, `slide` bytes above where it was linked."""
    return LoadedImage(debug, lambda at: at + slide & MASK, lambda at: at - slide & MASK)


class LoadedImages:
    """The images of one machine.

    kernel: the kernel proper.  find: the image of a module, by its name, None where it has no
    debug file that fits; asked once for each.  loaded: the names of all modules.
    """

    def __init__(
        self,
        kernel: LoadedImage,
        find: Callable[[str], LoadedImage | None] = lambda name: None,
        loaded: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.kernel = kernel
        self._find = find
        self._loaded = loaded
        self._known: dict[str, LoadedImage | None] = {}

    def of(self, module: str) -> LoadedImage | None:
        """The image of a module; of the kernel proper for its name, and for none."""
        if module in ("", KERNEL):
            return self.kernel
        if module not in self._known:
            self._known[module] = self._find(module)
        return self._known[module]

    def modules(self) -> Sequence[LoadedImage]:
        """The images of all loaded modules that have debug files."""
        found = [self.of(name) for name in self._loaded()]
        return [image for image in found if image is not None]

    def place(self, module: str, address: int) -> SourcePlace | None:
        """The source of a running address, and what is inlined there (DebugInfo.place())."""
        image = self.of(module)
        linked = image.back(address) if image is not None else None
        return image.debug.place(linked) if image is not None and linked is not None else None


# Modules


def module_images(
    target: Machine,
    modules: Callable[[], Sequence[LoadedModule]],
    folders: Callable[[], Sequence[Path]],
    debug: DebugFiles,
    kernel: DebugInfo,
    say: Callable[[str], None],
) -> Callable[[str], LoadedImage | None]:
    """Finds the images of loaded modules, for LoadedImages.

    folders: where debug files are, asked for when one is first needed.  say: told why there is
    none for a module.
    """

    def find(name: str) -> LoadedImage | None:
        module = next((m for m in modules() if m.name == name), None)
        if module is None:
            return None
        file = find_file(name, folders())
        if file is None:
            say(
                f"kinst: module {name} has no debug file: its inline functions, source"
                " lines and callers are skipped"
            )
            return None
        try:
            found = debug.open(file, name, kernel)
            running = loaded_build_id(target, module)
            if running != found.elf.build_id:
                say(
                    f"kinst: {file} (build-id {found.elf.build_id or 'none'}) is not that of the"
                    f" loaded module {name} (build-id {running or 'not found'}): skipped"
                )
                return None
            return LoadedImage(found, *mover(found.elf, module))
        except KinstError as error:
            say(f"kinst: module {name} is skipped: {error}")
            return None

    return find


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The debug file of a module in any of these folders (searched below them)."""
    for folder in folders:
        for suffix in ("*.ko.debug", "*.ko"):
            for file in sorted(folder.rglob(suffix)):
                if module_name(Path(file.name.removesuffix(".debug"))) == name:
                    return file
    return None


def loaded_build_id(target: Machine, module: LoadedModule) -> str:
    """The build-id of the module as it lies in memory, or ""."""
    for section in module.sections:
        if section.name == BUILD_ID_NOTE:
            return build_id_in(target.read(section.address, NOTE_SIZE))
    return ""


def mover(file: ElfFile, module: LoadedModule) -> tuple[Move, Move]:
    """(from the addresses of a module's file, as it is laid out, to running ones, and back)."""
    loaded = {s.name: s.address for s in module.sections}
    sections = {s.index: s for s in file.sections}
    spans = sorted(
        (base, base + sections[index].size, loaded[sections[index].name])
        for index, base in file.layout.items()
        if sections[index].name in loaded and sections[index].size
    )
    starts = [low for low, _, _ in spans]
    running = sorted((live, live + high - low, low) for low, high, live in spans)
    lives = [live for live, _, _ in running]

    def move(address: int) -> int | None:
        k = bisect_right(starts, address) - 1
        if k < 0 or address >= spans[k][1]:
            return None
        return spans[k][2] + address - spans[k][0] & MASK

    def back(address: int) -> int | None:
        k = bisect_right(lives, address) - 1
        if k < 0 or address >= running[k][1]:
            return None
        return running[k][2] + address - running[k][0]

    return move, back


def frames_finder(
    images: LoadedImages, say: Callable[[str], None]
) -> Callable[[LoadedModule], ModuleFrames | None]:
    """Finds the call frame information of a loaded module in its debug file.  say: told why it
    cannot be read."""

    def find(module: LoadedModule) -> ModuleFrames | None:
        image = images.of(module.name)
        try:
            cfi = image.debug.cfi if image is not None else None
        except KinstError as error:
            say(f"kinst: no callers in module {module.name}: {error}")
            return None
        return ModuleFrames(cfi, image.back) if image is not None and cfi is not None else None

    return find


# Inline functions of all images


def running_index(images: LoadedImages, say: Callable[[str], None]) -> DebugIndex:
    """The inline functions and copies of all images at running addresses.  say: told why those
    of an image are missing."""
    parts: list[DebugIndex] = []
    try:
        parts.append(MovedIndex(images.kernel))
    except KinstError as error:
        say(f"kinst: inline functions cannot be found: {error}")
    for image in images.modules():
        try:
            parts.append(MovedIndex(image))
        except KinstError as error:
            say(f"kinst: module {image.debug.module} is skipped: {error}")
    return JoinedIndex(parts)


class MovedIndex:
    """An image's index at running addresses; what is not loaded is left out."""

    def __init__(self, image: LoadedImage) -> None:
        """Raises KinstError where it has no debug information, or it is damaged."""
        self._index = image.debug.index
        self._move = image.move
        self._back = image.back

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
        linked = self._back(address)
        return [] if linked is None else [self._copy(c) for c in self._index.copies_at(linked)]


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
