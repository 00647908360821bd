"""Opening the machine that the user asked for, and finding out what kernel runs there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.machine import Begun, Target, Terminal
from kinst.core.system import System
from kinst.image.debug_info import DebugInfo
from kinst.image.elf_file import open_file
from kinst.isa import load as load_isa
from kinst.isa import of_machine
from kinst.kernels.fetch import Progress
from kinst.kernels.fetch_modules import module_debug
from kinst.session.request import DEFAULT_ISA, Files, Request, machine_config
from kinst.systems import SystemKind

NAME_KEPT = 31  # bytes of a program's name that are recorded


def module_folders(files: Files, isa: Isa, progress: Progress) -> list[Path]:
    """Where debug files of modules are looked for: --debug DIR, and Debian's, fetched on first
    use.  Raises KinstError when they cannot be fetched."""
    folders = list(files.folders)
    if files.ready is not None and files.modules:
        folders.append(module_debug(isa.name, files.ready, files.modules, progress))
    return folders


def with_build(request: Request) -> Request:
    """A request whose kernel and debug file are those of --build, or its debug file alone for a
    kernel that runs already.  Raises KinstError where they are not in that folder, or of another
    ISA than --vm's."""
    if not request.build:
        return request
    folder = Path(request.build)
    if not folder.is_dir():
        raise KinstError(f"--build {folder}: no such folder")
    debug = folder / "vmlinux"
    if not debug.is_file():
        raise KinstError(f"--build {folder}: there is no vmlinux in it", "make it first")
    if not request.machine.abilities.boots:
        folders = (*request.debug_folders, str(folder))
        return replace(request, debug=str(debug), debug_folders=folders)
    isa = isa_of_file(str(debug))
    if request.vm and request.vm != isa.name:
        raise KinstError(f"--build {folder}: a kernel for {isa.name}, and --vm={request.vm}")
    kernel = folder / isa.board.BOOT_IMAGE
    if not kernel.is_file():
        raise KinstError(f"--build {folder}: there is no {isa.board.BOOT_IMAGE} in it",
                         f"make {kernel.name}")  # fmt: skip
    folders = (*request.debug_folders, str(folder)) if request.modules else request.debug_folders
    return replace(
        request, vm=isa.name, kernel=str(kernel), debug=str(debug), debug_folders=folders
    )


def isa_of(request: Request) -> Isa:
    """The ISA of the machine: --vm's or, where somebody else started it, that of the kernel's file;
    else amd64.

    Raises KinstError for one that kinst does not know, and for a file that is not there.
    """
    file = request.debug or request.kernel
    if file and not request.machine.abilities.boots:
        return isa_of_file(file)
    return load_isa(request.vm or DEFAULT_ISA)


def isa_of_file(path: str) -> Isa:
    """The instruction set of an ELF file.  Raises KinstError for one that kinst does not know."""
    machine = open_file(path).machine
    isa = of_machine(machine)
    if isa is None:
        raise KinstError(f"{path}: made for ELF machine {machine}, which kinst does not know")
    return isa


def open_target(
    request: Request,
    isa: Isa,
    files: Files,
    system: SystemKind,
    scratch: int,
    on_output: Callable[[bytes], None],
    begun: Begun | None = None,
    terminal: Terminal | None = None,
) -> Target:
    """Start the machine (it boots while the caller goes on) or connect to it.

    system: of the kernel's image.  scratch: bytes to set aside.  on_output: what the guest's
    command prints.  begun: what begin() has started.  terminal: that the command has.
    Raises KinstError and TargetError.
    """
    config = machine_config(request, isa, files, scratch)
    known = replace(
        config, territory=system.territory(isa), image=str(files.debug), begun=begun,
        terminal=terminal,
    )  # fmt: skip
    return request.machine.open(known, on_output)


def attach(
    target: Target, image: DebugInfo, system: SystemKind, say: Callable[[str], None]
) -> System:
    """Wait until the kernel is up, stop it, and find out about it.

    image: its file, which is of that system.  say: gets a line for the user when the guest had to
    be started again.  Raises TargetError when it does not come up, KinstError when the image is
    another kernel's.
    """
    running = system.attach(target, image, target.bring_up(say))
    target.settle(running.page_tables, running.heartbeat, running.lender)
    return running


def programs_of(request: Request, files: Files) -> dict[str, Path]:
    """The programs in a guest that kinst made, by the name of their file there."""
    if request.initrd or files.busybox is None:
        return {}
    copies = {Path(name).name: Path(name) for name in request.copies}
    return {name[:NAME_KEPT]: path for name, path in {"busybox": files.busybox, **copies}.items()}
