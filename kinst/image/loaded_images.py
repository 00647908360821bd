"""The images of a running machine (the kernel and its modules): debug information of their files,
and maps between file addresses and running addresses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.inline import DebugIndex, FunctionDie, InlineCopy, SourcePlace
from kinst.core.system import LoadedModule
from kinst.core.types import KERNEL, PROGRAM
from kinst.core.words import MASK
from kinst.image.debug_info import DebugInfo
from kinst.image.elf_file import ElfFile

# Maps an address of an image's file to its running address, or the reverse; returns None if
# nothing is loaded there.
Move = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """An image in memory.

    Attributes:
        debug: debug information of the image's files.
        move: takes a linked address of the debug information; returns the running address, or None
            if the code or data there is not loaded.
        back: takes a running address; returns the linked address, or None if the address is not in
            the image.
    """

    debug: DebugInfo
    move: Move
    back: Move


def moved_by(debug: DebugInfo, slide: int) -> LoadedImage:
    """Return an image that is loaded in one piece, `slide` bytes above its linked addresses."""
    return LoadedImage(debug, lambda at: at + slide & MASK, lambda at: at - slide & MASK)


class LoadedImages:
    """The images of one machine, by module name."""

    def __init__(
        self,
        kernel: LoadedImage,
        find: Callable[[str], LoadedImage | None] = lambda name: None,
        loaded: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Describe the images; a module's image is searched for when it is first needed.

        Args:
            kernel: image of the kernel itself.
            find: returns a module's image by its name, None if the module has no debug file that
                fits; called once for each module.
            loaded: returns the names of all loaded modules.
        """
        self.kernel = kernel
        self._find = find
        self._loaded = loaded
        self._known: dict[str, LoadedImage | None] = {}

    def of(self, module: str) -> LoadedImage | None:
        """Return the image of a module, None if it has no debug file. The module names "" and
        "kernel" mean the kernel itself."""
        if module in ("", KERNEL, PROGRAM):
            return self.kernel
        if module not in self._known:
            self._known[module] = self._find(module)
        return self._known[module]

    def modules(self) -> Sequence[LoadedImage]:
        """Return the images of the loaded modules that have debug files."""
        found = [self.of(name) for name in self._loaded()]
        return [image for image in found if image is not None]

    def place(self, module: str, address: int) -> SourcePlace | None:
        """Return the source line at a running address and the functions that are inlined there;
        None if they are not known.

        Args:
            module: name of the module that contains the address; "" for the kernel.
        """
        image = self.of(module)
        linked = image.back(address) if image is not None else None
        return image.debug.place(linked) if image is not None and linked is not None else None


def mover(file: ElfFile, module: LoadedModule) -> tuple[Move, Move]:
    """Return two functions that map a module's linked addresses to running addresses, and back.
    Both return None for an address that is not in a loaded section.

    A module's file is relocatable: ElfFile.layout gives its sections their linked addresses.

    Args:
        file: the module's file.
        module: the loaded module, with the running addresses of its sections.
    """
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


# Inline functions of all images


def running_index(images: LoadedImages, say: Callable[[str], None]) -> DebugIndex:
    """Return an index of the inline functions and inlined copies of all images, with running
    addresses.

    Args:
        say: called with a message if the inline functions of an image cannot be read.
    """
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
    """Index of one image's inline functions with running addresses; code that is not loaded is left
    out."""

    def __init__(self, image: LoadedImage) -> None:
        """Open the index of the image's DWARF; it may have to be built. Raises KinstError if the
        image has no debug information or it is damaged."""
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
    """Several indexes of inline functions joined to one; its results are in the order of the
    indexes."""

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
