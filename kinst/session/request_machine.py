"""Files and machine that a request needs.

QEMU takes a third of a second to start and to continue from a saved state. Python takes as long to
load kinst and to compile a program. start_early() starts QEMU first, so that both happen at the
same time. For this, the module imports little.

Tested by tests/session/test_cli_options.py and tests/kernels/test_fetch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kinst.core.boot import Boot
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.machine import EarlyStart, MachineConfig
from kinst.core.paths import cache_folder
from kinst.isa import load_later
from kinst.kernels import fetch, host_kernel
from kinst.kernels.apt import Confirm
from kinst.kernels.fetch import Prepared
from kinst.machines.vm.files import MODULES as DRIVERS
from kinst.providers import names_kernel_probe
from kinst.session.request import DEFAULT_ISA, Request
from kinst.systems import of_host

if TYPE_CHECKING:
    from kinst.core.isa import Isa


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of files to boot, or to read symbols from."""

    debug: Path
    # None for a machine that runs already.
    kernel: Path | None = None
    busybox: Path | None = None
    # Set if a kernel is booted that kinst fetched.
    ready: Prepared | None = None
    # The user's kernel modules, in the order to load them.
    modules: tuple[Path, ...] = ()
    # Modules that kinst needs in the guest.
    drivers: tuple[Path, ...] = ()
    # Folders with debug files of modules.
    folders: tuple[Path, ...] = ()


def _wants_guest(request: Request) -> bool:
    """Return whether a request certainly, or almost certainly, needs a guest."""
    if request.compile_only or request.dump or request.of_file:
        return False
    texts = [one.text for one in request.programs]
    if request.runs_command or any(map(names_kernel_probe, texts)):
        return True
    libraries = [one for one in of_host().dialect().libraries if one.by_provider]
    return any(f"{one.provider}:" in text for one in libraries for text in texts)


def start_early(request: Request) -> EarlyStart | None:
    """Start the request's machine before its program is compiled, to save time.

    Returns None if the request may need no machine, or if its machine cannot be started yet. Errors
    in the request are reported later, when the machine is opened.
    """
    options = request.machine
    if not _wants_guest(request):
        return None
    if not request.kind.abilities.boots or options.kernel or options.initrd or options.build:
        return None
    try:
        name = options.isa or DEFAULT_ISA
        if fetch.prepared(name, options.release) is None:
            return None
        files = find_files(request, lambda what, part: None)
        isa = load_later(name)
        boot = of_host().boot(isa)
        return request.kind.start_early(machine_config(request, isa, files, 0, boot))
    except KinstError:
        return None


def machine_config(
    request: Request, isa: Isa, files: Files, scratch: int, boot: Boot | None
) -> MachineConfig:
    """Return the configuration of the machine that a request needs.

    Args:
        files: the kernel's files.
        scratch: bytes of memory to set aside for scratch.
        boot: how the kernel's system is booted; None if no system is known.

    Raises KinstError for files that cannot be used.
    """
    boots = request.kind.abilities.boots
    return MachineConfig(
        isa,
        request.machine,
        kernel=files.kernel,
        initrd=_initrd(request, files, isa, boot) if boots and boot else None,
        append=guest_append(request, boot),
        boot=boot,
        runs_command=request.runs_command,
        read_only=request.names_alone,
        scratch=scratch,
        cache=cache_folder(),
        command=request.command,
    )


def guest_append(request: Request, boot: Boot | None) -> str:
    """Return the words to add to the kernel's command line.

    If the user gave an initial RAM disk and a command, these words make the kernel start kinst's
    helper before init.

    Args:
        boot: how the kernel's system is booted; None if no system is known.
    """
    options = request.machine
    if boot is None or not (options.initrd and request.runs_command):
        return options.append
    return boot.files.starting_beside(options.append)


def find_files(
    request: Request,
    progress: Callable[[str, float | None], None],
    confirm: Confirm | None = None,
) -> Files:
    """Return the paths of the kernel's files: the user's own, or Debian's, fetched on first use.

    Args:
        request: a request whose options agree with one another.
        progress: called with the name of long work and the part of it that is done.
        confirm: called to ask before a kernel is downloaded; None to download without asking.

    Raises KinstError if a file is missing, or cannot be fetched.
    """
    options = request.machine
    for name in (options.kernel, options.debug, options.initrd):
        if name and not Path(name).is_file():
            raise KinstError(f"{name}: no such file")
    for option, name in (("--root", options.root), *(("--rw", rw) for rw in options.writable)):
        if name and not Path(name).is_dir():
            raise KinstError(f"{option} {name}: no such folder")
    if not (request.names_alone or request.compile_only):
        request.kind.check()
    folders = tuple(Path(name) for name in options.debug_folders)
    if not request.kind.abilities.boots:
        if "kernel" in request.kind.takes or options.kernel:
            return Files(Path(options.debug or options.kernel), folders=folders)
        host = host_kernel.files()
        debug = Path(options.debug) if options.debug else host_kernel.vmlinux(host, progress)
        return Files(debug, folders=(*folders, *host.folders))
    if options.kernel and options.initrd and not request.runs_command:
        return Files(Path(options.debug), Path(options.kernel), folders=folders)
    isa = options.isa or DEFAULT_ISA
    if options.kernel:
        busybox = fetch.busybox(isa, progress)
        modules, drivers = _modules(request, Path(options.build)) if options.build else ((), ())
        return Files(
            Path(options.debug), Path(options.kernel), busybox,
            modules=modules, drivers=drivers, folders=folders,
        )  # fmt: skip
    ready = fetch.prepare(isa, progress, options.release, confirm=confirm)
    debug = Path(options.debug) if options.debug else ready.debug
    modules, drivers = _modules(request, ready.modules)
    return Files(debug, ready.kernel, ready.busybox, ready, modules, drivers, folders)


def _modules(request: Request, folder: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the files of the modules that --module names, and of the modules that --root or --rw
    needs.

    A module that --root or --rw needs may have no file, since it may be built into the kernel. It
    is then left out.

    Args:
        folder: the kernel's folder of modules.
    """
    options = request.machine
    wanted = DRIVERS if options.root or options.writable else ()
    return _resolve(folder, options.modules), _resolve(folder, wanted, absent=True)


def _initrd(request: Request, files: Files, isa: Isa, boot: Boot) -> Path | bytes:
    options = request.machine
    if options.initrd and not request.runs_command:
        return Path(options.initrd)
    if options.root:
        import_module("kinst.session.guest_files").check_root(Path(options.root), isa)
    assert files.busybox is not None
    if options.initrd:
        return boot.files.beside(Path(options.initrd).read_bytes(), files.busybox)
    copies = {}
    for name in options.copies:
        path = Path(name)
        if not path.is_file():
            raise KinstError(f"--copy {name}: no such file")
        beside = [Path(other).name for other in options.copies]
        import_module("kinst.session.guest_files").check_copy(path, isa, beside)
        copies[f"/bin/{path.name}"] = path
    modules = [*files.drivers, *(m for m in files.modules if m not in files.drivers)]
    return boot.files.build(files.busybox, copies, modules)


def _resolve(folder: Path, names: Sequence[str], *, absent: bool = False) -> tuple[Path, ...]:
    """Return the files of modules and of the modules that they depend on, in the order to load
    them.

    Args:
        folder: the kernel's folder of modules.
        names: names or paths of modules.
        absent: whether modules without a file are left out rather than refused.
    """
    if not names:
        return ()
    return tuple(import_module("kinst.kernels.kmod").resolve(folder, names, absent=absent))
