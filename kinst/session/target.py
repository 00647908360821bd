"""Opening the machine that the user asked for, and finding out what kernel runs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.machine import MachineConfig, Target
from kinst.core.paths import cache_folder
from kinst.core.system import System
from kinst.image.debug_info import DebugInfo
from kinst.image.elf_file import open_file
from kinst.isa import load as load_isa
from kinst.isa import of_machine
from kinst.kernels import fetch
from kinst.kernels.fetch import Progress
from kinst.kernels.fetch_modules import module_debug
from kinst.kernels.kmod import resolve
from kinst.machines.vm import initramfs
from kinst.machines.vm.files import MODULES as DRIVERS
from kinst.session.values import Files, Request
from kinst.systems import SystemKind

DEFAULT_ISA = "amd64"
NAME_KEPT = 31  # bytes of a program's name that are recorded


def module_folders(files: Files, isa: Isa, progress: Progress) -> list[Path]:
    """Where debug files of modules are looked for: --debug DIR, and Debian's, fetched on first
    use.  Raises KinstError when they cannot be fetched."""
    folders = list(files.folders)
    if files.ready is not None and files.modules:
        folders.append(module_debug(isa.name, files.ready, files.modules, progress))
    return folders


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


def find_files(request: Request, progress: Callable[[str, float | None], None]) -> Files:
    """The kernel's files: the user's own, or Debian's, fetched on first use.

    Raises KinstError for files that are missing; that the options agree was seen to before.
    """
    for name in (request.kernel, request.debug, request.initrd):
        if name and not Path(name).is_file():
            raise KinstError(f"{name}: no such file")
    for option, name in (("--root", request.root), *(("--rw", rw) for rw in request.writable)):
        if name and not Path(name).is_dir():
            raise KinstError(f"{option} {name}: no such folder")
    folders = tuple(Path(name) for name in request.debug_folders)
    if not request.machine.abilities.boots:
        return Files(Path(request.debug or request.kernel), folders=folders)
    if request.kernel and request.initrd:
        return Files(Path(request.debug), Path(request.kernel), folders=folders)
    isa = request.vm or DEFAULT_ISA
    if request.kernel:
        busybox = fetch.busybox(isa, progress)
        return Files(Path(request.debug), Path(request.kernel), busybox, folders=folders)
    ready = fetch.prepare(isa, progress, request.release)
    debug = Path(request.debug) if request.debug else ready.debug
    modules = tuple(resolve(ready.modules, request.modules))
    return Files(
        debug,
        ready.kernel,
        ready.busybox,
        ready,
        modules,
        _drivers(request, ready.modules),
        folders,
    )


def _drivers(request: Request, folder: Path) -> tuple[Path, ...]:
    """What the guest needs for the host's folders; what has no file is taken to be built in."""
    wanted = DRIVERS if request.root or request.writable else ()
    return tuple(resolve(folder, wanted, absent=True))


def _initrd(request: Request, files: Files) -> Path | bytes:
    if request.initrd:
        return Path(request.initrd)
    assert files.busybox is not None
    copies = {}
    for name in request.copies:
        path = Path(name)
        if not path.is_file():
            raise KinstError(f"--copy {name}: no such file")
        copies[f"/bin/{path.name}"] = path
    modules = [*files.drivers, *(m for m in files.modules if m not in files.drivers)]
    return initramfs.build(files.busybox, copies, modules)


def open_target(
    request: Request,
    isa: Isa,
    files: Files,
    system: SystemKind,
    scratch: int,
    on_output: Callable[[bytes], None],
) -> Target:
    """Start the machine (it boots while the caller goes on) or connect to it.

    system: of the kernel's image.  scratch: bytes to set aside.  on_output: what the guest's
    command prints.  Raises KinstError and TargetError.
    """
    kind = request.machine
    config = MachineConfig(
        isa,
        address=request.address,
        stub=request.gdb,
        kernel=files.kernel,
        initrd=_initrd(request, files) if kind.abilities.boots else None,
        control=not request.initrd,
        modules=bool(files.modules),
        append=request.append,
        arguments=request.qemu_args,
        cpus=request.cpu_count,
        memory=request.memory,
        cold=request.cold,
        scratch=scratch,
        territory=system.territory(isa),
        image=str(files.debug),
        cache=cache_folder(),
        root=Path(request.root).resolve() if request.root else None,
        writable=[Path(name).resolve() for name in request.writable],
    )
    return kind.open(config, on_output)


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
