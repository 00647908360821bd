"""Debug information of loaded modules: found, and checked against what is loaded.

A module's debug file is looked for when it is first asked for, once, and taken only when its
build-id is that of the loaded module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.machine import Target
from kinst.core.system import LoadedModule, ModuleFrames
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.elf_file import build_id_in
from kinst.image.loaded import LoadedImage, LoadedImages, mover
from kinst.kernels.kmod import module_name

BUILD_ID_NOTE = ".note.gnu.build-id"
NOTE_SIZE = 36  # of a 20-byte build-id


def module_images(
    target: Target,
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


def loaded_build_id(target: Target, module: LoadedModule) -> str:
    """The build-id of the module as it lies in memory, or ""."""
    for section in module.sections:
        if section.name == BUILD_ID_NOTE:
            return build_id_in(target.read(section.address, NOTE_SIZE))
    return ""


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
        return ModuleFrames(cfi.rule, image.back) if image is not None and cfi is not None else None

    return find
