"""boot(), attach(), live() and host(), which make machines, and what needs none: files, and what a
program means in one.

Tested by tests/test_api_docs.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from kinst.api.machine import Machine, Say, ShowProgress, ignore, report_to
from kinst.api.program import PathLike, Setting, Source, with_program
from kinst.core.errors import KinstError
from kinst.kernels.fetch import Offered, offered
from kinst.kernels.releases import names_release
from kinst.session.file_image import expand_request_in_file
from kinst.session.request import Request, parse_cpus, parse_memory
from kinst.session.request_machine import Files, find_files


def boot(
    isa: str = "amd64",
    kernel: PathLike | None = None,
    debug: PathLike | None = None,
    initrd: PathLike | None = None,
    append: str = "",
    copies: Iterable[PathLike] = (),
    modules: Iterable[str] = (),
    qemu_args: Iterable[str] = (),
    debug_folders: Iterable[PathLike] = (),
    *,
    cpus: int | None = None,
    memory: int | str | None = None,
    cold: bool = False,
    root: PathLike | None = None,
    writable: Iterable[PathLike] = (),
    start: bool = True,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> Machine:
    """A kernel that kinst boots in QEMU: Debian's, fetched on first use, or one's own.

    isa: amd64, arm64 or riscv64.  kernel, debug: one's own kernel, and its vmlinux with symbols;
    kernel alone: another one of Debian's, by its version ("6.12", "5.10-generic").
    initrd: instead of kinst's own, which has busybox and runs commands.  append: more of the
    kernel's command line.  copies: files for the guest's /bin.  modules: of the fetched kernel,
    to be loaded at boot.  debug_folders: with debug files of modules.  cpus: 2 without it.
    memory: bytes or, as in "512m", with a unit; 1 GB without it.  cold: boot it, rather than to go
    on from where one like it had booted.  root: the folder of the host, such as /, that commands
    run on, of which they change nothing.  writable: folders that they write to.  start: boot now,
    rather than when first needed, and with as much scratch memory as that needs.

    Raises KinstError where the arguments do not agree or a file is missing, TargetError when the
    guest does not come up.
    """
    name = _path(kernel)
    release = name if names_release(name) else ""
    request = Request(
        vm=isa, kernel="" if release else name, release=release, debug=_path(debug),
        initrd=_path(initrd), append=append,
        copies=_paths(copies), modules=tuple(modules), qemu_args=tuple(qemu_args),
        debug_folders=_paths(debug_folders),
        cpu_count=0 if cpus is None else parse_cpus(str(cpus)),
        memory=0 if memory is None else parse_memory(str(memory)), cold=cold,
        root=_path(root), writable=_paths(writable),
    )  # fmt: skip
    if request.release and request.debug:
        raise KinstError(f"{request.release} is fetched with its vmlinux", "leave out debug=")
    if request.kernel and not request.debug:
        raise KinstError(f"{request.kernel} needs its vmlinux with symbols", "debug=VMLINUX")
    if request.kernel and request.modules:
        raise KinstError("modules are of the kernel that kinst fetches", "leave out kernel=")
    if request.initrd and (request.copies or request.modules or request.root or request.writable):
        raise KinstError(
            "copies, modules, root and writable need kinst's own initrd", "leave out initrd="
        )
    return _opened(request, start, on_message, on_progress)


def attach(
    address: str = "",
    kernel: PathLike = "",
    debug_folders: Iterable[PathLike] = (),
    *,
    machine: int | PathLike = "",
    start: bool = True,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> Machine:
    """A machine that somebody else has started.

    machine: the process id of a QEMU on this host, the path of its QMP socket, or "auto" for the
    only one of this user's: probes are planted in its memory while it runs.  Without it, the
    machine is what is behind a GDB stub, and stops at each hit.  address: of that stub: host:port,
    :port or the path of a unix socket; with `machine` only where its command line does not say it.
    kernel: its vmlinux with symbols; of a `machine`, without one, it is looked for by the build-id
    of the kernel that runs there (docs/attach.md).  Raises KinstError, and TargetError where that
    cannot be traced."""
    if not (address or machine):
        raise KinstError("attach() needs a machine or the address of a GDB stub")
    if not (_path(kernel) or machine):
        raise KinstError("attach() needs the kernel's symbols", "kernel=VMLINUX")
    request = Request(
        gdb=address, attach=str(machine) if isinstance(machine, int) else _path(machine),
        kernel=_path(kernel), debug_folders=_paths(debug_folders),
    )  # fmt: skip
    return _opened(request, start, on_message, on_progress)


def live(
    debug: PathLike = "",
    debug_folders: Iterable[PathLike] = (),
    *,
    process: int = 0,
    start: bool = True,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> Machine:
    """The machine that this process runs on, as root: probes are planted in its kernel while it
    runs (docs/live.md).

    debug: its vmlinux with symbols, where that is not where the distribution puts it.  process:
    the id of one that runs, which is $target, and with which a trace ends.  Raises
    KinstError where its files are not there, and TargetError where kinst's module cannot be
    built or loaded, or another kinst traces it."""
    request = Request(
        live=True, debug=_path(debug), debug_folders=_paths(debug_folders), process=process
    )
    return _opened(request, start, on_message, on_progress)


def host(*, on_message: Say = ignore) -> Machine:
    """No kernel at all: for programs of BEGIN, END and tick alone, which run in this process."""
    return Machine(Request(), on_message=on_message, has_kernel=False)


def kernel_files(
    isa: str = "amd64", release: str = "", *, on_progress: ShowProgress = ignore
) -> Files:
    """Debian's kernel that boot() boots, its debug file and a busybox; fetched on first use.

    release: one of list_kernels(), or a version, as boot() takes it.  Raises KinstError where they
    cannot be fetched."""
    return find_files(Request(vm=isa, release=release), on_progress)


def list_kernels(isa: str = "amd64", *, on_progress: ShowProgress = ignore) -> list[Offered]:
    """Debian's kernels of this ISA that boot() can fetch, the newest of each version and flavour,
    and those that are fetched already.  Reads package lists.

    Raises KinstError where there is no apt or no mirror."""
    return offered(isa, on_progress)


def expand_in_file(
    program: Source,
    kernel: PathLike,
    debug: PathLike | None = None,
    options: Mapping[str, Setting] | None = None,
    *,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> str:
    """The D program after inline functions, source lines and local variables are looked up in an
    ELF file as it is, which need not be a kernel.  Raises DError and KinstError."""
    request = Request(kernel=_path(kernel), debug=_path(debug))
    return expand_request(with_program(request, program, options, ()), on_message, on_progress)


def expand_request(request: Request, on_message: Say, on_progress: ShowProgress) -> str:
    """The same for a command line that was understood."""
    return expand_request_in_file(request, report_to(on_message, on_progress))


def _opened(request: Request, start: bool, say: Say, progress: ShowProgress) -> Machine:
    machine = Machine(request, on_message=say, on_progress=progress)
    if start:
        machine.start()
    return machine


def _path(path: PathLike | None) -> str:
    return "" if path is None else os.fspath(path)


def _paths(paths: Iterable[PathLike]) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path in paths)
