"""The files and the machine that a request means.

A guest takes a third of a second to go on from where another had booted, and so does loading the
rest of kinst: with start_early() both happen at once.  So this module imports little.

Tested by tests/session/test_cli_options.py and tests/kernels/test_fetch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from kinst.core.boot import Boot
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.machine import EarlyStart, MachineConfig
from kinst.core.paths import cache_folder
from kinst.isa import load as load_isa
from kinst.kernels import fetch, host_kernel
from kinst.kernels.apt import Confirm
from kinst.kernels.fetch import Prepared
from kinst.machines.vm.files import MODULES as DRIVERS
from kinst.providers import names_kernel_probe
from kinst.session.request import DEFAULT_ISA, Request
from kinst.systems import of_host


@dataclass(frozen=True, slots=True)
class Files:
    """What to boot or to read symbols from.  kernel, busybox: None for a machine that runs.

    ready: what kinst fetched, where that is booted.  modules: files of --module, in the order
    to load them.  drivers: modules that kinst itself needs in the guest.  folders: of --debug DIR.
    """

    debug: Path
    kernel: Path | None = None
    busybox: Path | None = None
    ready: Prepared | None = None
    modules: tuple[Path, ...] = ()
    drivers: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()


def _wants_guest(request: Request) -> bool:
    """Whether a guest is needed for sure, or nearly so."""
    if request.compile_only or request.dump or request.of_file:
        return False
    return request.runs_command or any(names_kernel_probe(one.text) for one in request.programs)


def start_early(request: Request) -> EarlyStart | None:
    """Start what can be started of the request's machine, before its program is understood.

    Return None if nothing can be started yet, or if no guest may be needed; open_target() reports
    errors in the request."""
    if not _wants_guest(request):
        return None
    if not request.machine.abilities.boots or request.kernel or request.initrd or request.build:
        return None
    try:
        name = request.vm or DEFAULT_ISA
        if fetch.prepared(name, request.release) is None:
            return None
        files = find_files(request, lambda what, part: None)
        isa = load_isa(name)
        boot = of_host().boot(isa)
        return request.machine.start_early(machine_config(request, isa, files, 0, boot))
    except KinstError:
        return None


def machine_config(
    request: Request, isa: Isa, files: Files, scratch: int, boot: Boot | None
) -> MachineConfig:
    """The machine, as far as the request says it.

    scratch: bytes to set aside.  boot: how the kernel's system is started.  Raises KinstError."""
    boots = request.machine.abilities.boots
    return MachineConfig(
        isa,
        address=request.address,
        stub=request.gdb,
        kernel=files.kernel,
        initrd=_initrd(request, files, isa, boot) if boots and boot else None,
        boot=boot,
        control=not request.initrd or request.runs_command,
        beside=bool(request.initrd),
        read_only=request.names_alone,
        process=request.process,
        modules=bool(files.modules),
        append=guest_append(request, boot),
        arguments=request.qemu_args,
        cpus=request.cpu_count,
        memory=request.memory,
        cold=request.cold or bool(request.initrd),
        scratch=scratch,
        cache=cache_folder(),
        root=Path(request.root).resolve() if request.root else None,
        writable=[Path(name).resolve() for name in request.writable],
    )


def guest_append(request: Request, boot: Boot | None) -> str:
    """More of the kernel's command line: with an initrd of the user's and something to run, kinst's
    helper is started first."""
    if boot is None or not (request.initrd and request.runs_command):
        return request.append
    return boot.files.starting_beside(request.append)


def find_files(
    request: Request,
    progress: Callable[[str, float | None], None],
    confirm: Confirm | None = None,
) -> Files:
    """Return the kernel's files: the user's own, or Debian's, fetched on first use.

    Args:
        request: options that agree with one another.
        confirm: asks before a kernel is downloaded; None: do not ask.

    Raises:
        KinstError: a file is missing, or cannot be fetched.
    """
    for name in (request.kernel, request.debug, request.initrd):
        if name and not Path(name).is_file():
            raise KinstError(f"{name}: no such file")
    for option, name in (("--root", request.root), *(("--rw", rw) for rw in request.writable)):
        if name and not Path(name).is_dir():
            raise KinstError(f"{option} {name}: no such folder")
    if not (request.names_alone or request.compile_only):
        request.machine.check()
    folders = tuple(Path(name) for name in request.debug_folders)
    if not request.machine.abilities.boots:
        if request.live:
            found = host_kernel.files()
            debug = Path(request.debug) if request.debug else host_kernel.vmlinux(found, progress)
            return Files(debug, folders=(*folders, *found.folders))
        return Files(Path(request.debug or request.kernel), folders=folders)
    if request.kernel and request.initrd and not request.runs_command:
        return Files(Path(request.debug), Path(request.kernel), folders=folders)
    isa = request.vm or DEFAULT_ISA
    if request.kernel:
        busybox = fetch.busybox(isa, progress)
        modules, drivers = _modules(request, Path(request.build)) if request.build else ((), ())
        return Files(
            Path(request.debug), Path(request.kernel), busybox,
            modules=modules, drivers=drivers, folders=folders,
        )  # fmt: skip
    ready = fetch.prepare(isa, progress, request.release, confirm=confirm)
    debug = Path(request.debug) if request.debug else ready.debug
    modules, drivers = _modules(request, ready.modules)
    return Files(debug, ready.kernel, ready.busybox, ready, modules, drivers, folders)


def _modules(request: Request, folder: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files of --module, and what the guest needs for the host's folders; what has no file of
    the latter is taken to be built in."""
    wanted = DRIVERS if request.root or request.writable else ()
    return _resolve(folder, request.modules), _resolve(folder, wanted, absent=True)


def _initrd(request: Request, files: Files, isa: Isa, boot: Boot) -> Path | bytes:
    if request.initrd and not request.runs_command:
        return Path(request.initrd)
    if request.root:
        import_module("kinst.session.guest_files").check_root(Path(request.root), isa)
    assert files.busybox is not None
    if request.initrd:
        return boot.files.beside(Path(request.initrd).read_bytes(), files.busybox)
    copies = {}
    for name in request.copies:
        path = Path(name)
        if not path.is_file():
            raise KinstError(f"--copy {name}: no such file")
        beside = [Path(other).name for other in request.copies]
        import_module("kinst.session.guest_files").check_copy(path, isa, beside)
        copies[f"/bin/{path.name}"] = path
    modules = [*files.drivers, *(m for m in files.modules if m not in files.drivers)]
    return boot.files.build(files.busybox, copies, modules)


def _resolve(folder: Path, names: Sequence[str], *, absent: bool = False) -> tuple[Path, ...]:
    """Module files, see kmod.resolve(), which is loaded only where there are any."""
    if not names:
        return ()
    return tuple(import_module("kinst.kernels.kmod").resolve(folder, names, absent=absent))
