"""Opening the target that the user asked for, and what is known of its kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.paths import cache_folder
from kinst.core.target import Target
from kinst.image.dwarf.file import open_file
from kinst.image.elf import Elf
from kinst.isa import load as load_isa
from kinst.isa import of_machine
from kinst.kernels import fetch
from kinst.kernels.fetch import Progress
from kinst.kernels.fetch_modules import module_debug
from kinst.kernels.kmod import resolve
from kinst.machines import gdb
from kinst.machines.vm import initramfs
from kinst.machines.vm import machine as vm
from kinst.machines.vm.kvm import accelerator
from kinst.machines.vm.qemu import VmConfig
from kinst.session.values import CPUS, Files, Request
from kinst.systems.linux import system as linux

DEFAULT_ISA = "amd64"
BOOT_SECONDS = 180.0  # on a busy host; a panic is told at once
# What stands in its boot, and could not be set going (kinst.machines.vm.stale), is started
# again, once.
FIRST_BOOT_SECONDS = 60.0
NAME_KEPT = 31  # bytes of a program's name that are recorded


def module_folders(files: Files, isa: Isa, progress: Progress) -> list[Path]:
    """Where debug files of modules are looked for: --debug DIR, and Debian's, fetched on first
    use.  Raises KinstError when they cannot be fetched."""
    folders = list(files.folders)
    if files.ready is not None and files.modules:
        folders.append(module_debug(isa.name, files.ready, files.modules, progress))
    return folders


def isa_of(request: Request) -> Isa:
    """The ISA of the target: --vm's; behind a stub, that of the kernel's file; else amd64.

    Raises KinstError for one that kinst does not know, and for a file that is not there.
    """
    vmlinux = request.debug or request.kernel
    if request.gdb and vmlinux:
        return isa_of_file(vmlinux)
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
    folders = tuple(Path(name) for name in request.debug_folders)
    if request.gdb:
        return Files(Path(request.debug or request.kernel), folders=folders)
    if request.kernel and request.initrd:
        return Files(Path(request.debug), Path(request.kernel), folders=folders)
    isa = request.vm or DEFAULT_ISA
    if request.kernel:
        busybox = fetch.busybox(isa, progress)
        return Files(Path(request.debug), Path(request.kernel), busybox, folders=folders)
    ready = fetch.prepare(isa, progress)
    debug = Path(request.debug) if request.debug else ready.debug
    modules = tuple(resolve(ready.modules, request.modules))
    return Files(debug, ready.kernel, ready.busybox, ready, modules, folders)


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
    return initramfs.build(files.busybox, copies, files.modules)


def load_machine(isa: Isa) -> ModuleType:
    """What QEMU is asked for to run this ISA: kinst.isa.<name>.machine."""
    return importlib.import_module(f"kinst.isa.{isa.name}.board")


def open_target(
    request: Request,
    isa: Isa,
    files: Files,
    scratch: int,
    on_output: Callable[[bytes], None],
) -> Target:
    """Start the VM (it boots while the caller goes on) or connect to the stub.

    scratch: bytes to set aside.  on_output: what the guest's command prints.
    Raises KinstError and TargetError.
    """
    if request.gdb:
        return gdb.GdbStub(isa, request.gdb)
    assert files.kernel is not None
    machine = load_machine(isa)
    config = VmConfig(
        kernel=files.kernel,
        initrd=_initrd(request, files),
        control=not request.initrd,
        append=f"{machine.MODULES_APPEND if files.modules else ''} {request.append}".strip(),
        qemu_args=request.qemu_args,
        cpus=CPUS,
        scratch=scratch,
        accel=accelerator(cache_folder(), machine),
    )
    return vm.Vm(isa, config, on_output)


def attach(target: Target, isa: Isa, elf: Elf, say: Callable[[str], None]) -> linux.Linux:
    """Wait until the kernel is up, stop it, and find out about it.

    say: gets a line for the user when the guest had to be started again.
    Raises TargetError when it does not come up, KinstError when elf is another kernel's.
    """
    if isinstance(target, gdb.GdbStub):
        text = target.find_text()
        text = (elf.address("_text") or 0) if text is None else text
        personality = linux.attach(target, elf, text, isa=isa.name)
        target.set_tables(personality.page_tables())
        return personality
    assert isinstance(target, vm.Vm)
    if not target.boots(FIRST_BOOT_SECONDS):
        say("kinst: the guest stands in its boot and is started again")
        target.start_again()
    target.wait_ready(BOOT_SECONDS)
    target.stop()
    personality = linux.attach(target, elf, target.find_text(), isa=isa.name, hook_bugs=True)
    target.set_tables(personality.page_tables())
    ticks = elf.address("jiffies_64")
    if ticks is not None:
        target.watch_heartbeat(ticks + personality.facts.slide)
    return personality


def programs_of(request: Request, files: Files) -> dict[str, Path]:
    """The programs in a guest that kinst made, by the name of their file there."""
    if request.gdb or request.initrd or files.busybox is None:
        return {}
    copies = {Path(name).name: Path(name) for name in request.copies}
    return {name[:NAME_KEPT]: path for name, path in {"busybox": files.busybox, **copies}.items()}
