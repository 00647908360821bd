"""Start of the machine that a request names, and identification of the kernel in it.

Tested by tests/fake, through the whole path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from kinst.core.boot import BootSpan
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.machine import EarlyStart, KernelLocation, KernelMemory, Target, Terminal
from kinst.core.system import LoadedModule, ModuleFrames, System
from kinst.image.elf_file import build_id_in
from kinst.image.loaded_images import LoadedImage, LoadedImages, moved_by, mover
from kinst.session.kernel import RunningKernel
from kinst.session.kernel_files import KernelFiles, find_file
from kinst.session.report import Report
from kinst.session.request import Request
from kinst.session.request_machine import Files, machine_config
from kinst.session.values import StartedMachine

NAME_KEPT = 31  # bytes of a program's name that are recorded
BUILD_ID_NOTE = ".note.gnu.build-id"
NOTE_SIZE = 36  # of a 20-byte build-id


def start(
    request: Request,
    isa: Isa,
    files: KernelFiles,
    scratch: int,
    on_output: Callable[[bytes], None],
    early_start: EarlyStart | None,
    terminal: Terminal | None,
    report: Report,
) -> StartedMachine:
    """Boot the machine or connect to it, stop it once its kernel is up, and identify the kernel.

    Args:
        files: files of the kernel.
        scratch: bytes of the machine's memory to set aside for scratch.
        on_output: called with the output of the guest's command.
        early_start: the machine that start_early() has started; None if it has started none.
        terminal: terminal of the guest's command; None without one.

    Raises TargetError if the machine does not come up, KinstError if it runs another kernel.
    """
    config = replace(
        machine_config(request, isa, files.paths, scratch, files.system.boot(isa)),
        virtual_layout=files.system.virtual_layout(isa),
        span=_span(request, isa, files),
        image=str(files.paths.debug),
        early_start=early_start,
        terminal=terminal,
    )
    target = request.kind.open(config, on_output)
    try:
        report.stage("start")
        location = target.bring_up(report.say)
        if not request.list_probes and (text := target.describe()):
            report.detail(f"kinst: {text}")
        return _identified(target, location, request, files, report)
    except BaseException:
        target.close()
        raise


def booted(
    machine: StartedMachine, request: Request, files: KernelFiles, report: Report
) -> StartedMachine:
    """Identify the kernel of a machine anew, after a trace of the kernel's boot.

    Returns the machine with what is now known of its kernel.
    """
    return _identified(machine.target, machine.target.boot_over(), request, files, report)


def _identified(
    target: Target, location: KernelLocation, request: Request, files: KernelFiles, report: Report
) -> StartedMachine:
    """Return the machine with what is known of the kernel that runs on it.

    Args:
        location: where in memory the kernel may be.
    """
    system = files.system.attach(target, files.image, location)
    target.settle(system.page_tables, system.heartbeat, system.allocator)
    report.stage("boot")
    isa = target.isa  # of programs, if the target is one
    is_inlined = files.image.is_inlined if files.image.has_dwarf else None
    kernel = RunningKernel(target, system, isa, is_inlined=is_inlined)
    images = _images(target, system, files, report.say)
    programs = _programs_of(request, files.paths)
    return StartedMachine(isa, target, system, kernel, system.text, images, programs)


def _span(request: Request, isa: Isa, files: KernelFiles) -> BootSpan | None:
    """Return the part of the kernel's boot that the request traces; None if it traces none, or if
    kinst does not know where the boot begins.
    """
    boot = files.system.boot(isa) if request.machine.trace_boot else None
    return None if boot is None else boot.span(files.image.elf)


def _programs_of(request: Request, files: Files) -> dict[str, Path]:
    """Return the program files that kinst has put into its guest, by their file name in the guest.

    Empty for any other machine.
    """
    if request.machine.initrd or files.busybox is None:
        return {}
    copies = {Path(name).name: Path(name) for name in request.machine.copies}
    return {name[:NAME_KEPT]: path for name, path in {"busybox": files.busybox, **copies}.items()}


# Debug information of the kernel and its modules.


def _images(
    target: Target, system: System, files: KernelFiles, say: Callable[[str], None]
) -> LoadedImages:
    """Return the debug information of the kernel and its modules, each with its place in memory.

    A module's debug file is looked for when it is first needed, and used only if its build-id is
    that of the loaded module.

    Args:
        say: called with the reason if a module's debug file is missing or not used.
    """

    @cache
    def folders() -> Sequence[Path]:
        try:
            return files.folders
        except KinstError as error:
            say(f"kinst: debug files of modules are not fetched: {error}")
            return files.paths.folders

    def find(name: str) -> LoadedImage | None:
        module = next((m for m in system.modules() if m.name == name), None)
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
            found = files.open(file, name, files.image)
            running = loaded_build_id(target, module)
            if running != found.elf.build_id:
                say(
                    f"kinst: {file} (build-id {found.elf.build_id or 'none'}) does not belong to"
                    f" the loaded module {name} (build-id {running or 'not found'}): skipped"
                )
                return None
            return LoadedImage(found, *mover(found.elf, module))
        except KinstError as error:
            say(f"kinst: module {name} is skipped: {error}")
            return None

    kernel = moved_by(files.image, system.facts.slide)
    return LoadedImages(kernel, find, lambda: [module.name for module in system.modules()])


def loaded_build_id(memory: KernelMemory, module: LoadedModule) -> str:
    """Return the build-id of a loaded module, read from memory; "" if the module has none."""
    for section in module.sections:
        if section.name == BUILD_ID_NOTE:
            return build_id_in(memory.read(section.address, NOTE_SIZE))
    return ""


def frames_finder(
    images: LoadedImages, say: Callable[[str], None]
) -> Callable[[LoadedModule], ModuleFrames | None]:
    """Return a function that looks up a loaded module's call frame information in its debug file.

    Args:
        say: called with the reason if a debug file cannot be read.
    """

    def find(module: LoadedModule) -> ModuleFrames | None:
        image = images.of(module.name)
        try:
            cfi = image.debug.cfi if image is not None else None
        except KinstError as error:
            say(f"kinst: the built-in caller is 0 in module {module.name}: {error}")
            return None
        return ModuleFrames(cfi.rule, image.back) if image is not None and cfi is not None else None

    return find
