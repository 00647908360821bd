"""boot(), attach(), live() and host(), which make machines, and what needs none.

Tested by tests/test_api_docs.py, tests/session/test_options.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from kinst.api.machine import Machine, Say, ShowProgress, ignore, report_to
from kinst.api.program import PathLike, Setting, Source, with_program
from kinst.core.errors import KinstError
from kinst.core.options import MachineOptions
from kinst.kernels.fetch import Offered, offered
from kinst.kernels.releases import names_release
from kinst.session.file_image import expand_request_in_file
from kinst.session.options import WITH_VALUE, disagreement, option_of
from kinst.session.request import Request
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
    """Boot a kernel in QEMU: Debian's, fetched on first use, or your own.

    Args:
        isa: amd64, arm64 or riscv64.
        kernel: your own kernel, which needs `debug`; or the version of another kernel of Debian's
            ("6.12", "5.10-generic").
        debug: the vmlinux with symbols of `kernel`.
        initrd: an initial RAM disk in place of kinst's, which has busybox and runs commands.
        append: more of the kernel's command line.
        copies: files for the guest's /bin.
        modules: modules of the fetched kernel, which are loaded at boot.
        qemu_args: more arguments for QEMU.
        debug_folders: folders with debug files of modules.
        cpus: how many CPUs the guest has; None for 2.
        memory: bytes, or a text with a unit ("512m"); None for 1 GB.
        cold: boot, even if a saved state of such a guest exists.
        root: the folder of the host, such as /, on which commands run without changing it.
        writable: folders of the host that they write to.
        start: boot now; else it boots when it is first needed, with as much scratch memory as the
            program needs.

    Raises KinstError if the arguments do not agree or a file is missing, TargetError if the guest
    does not come up.
    """
    options = MachineOptions(
        isa=isa, initrd=_path(initrd), append=append, debug=_path(debug),
        debug_folders=_paths(debug_folders), copies=_paths(copies), modules=tuple(modules),
        qemu_args=tuple(qemu_args), cpus=_read("cpus", cpus), memory=_read("memory", memory),
        cold=cold, root=_path(root), writable=_paths(writable), **_kernel(_path(kernel)),
    )  # fmt: skip
    return _opened(options, start, on_message, on_progress)


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
    """Connect to a machine that runs already.

    Args:
        address: of its GDB stub: host:port, :port or the path of a unix socket.  With `machine` it
            is needed only if QEMU's command line does not say it.
        kernel: its vmlinux with symbols.  That of a `machine` is looked for by the build-id of the
            kernel that runs there, if it is not given (docs/attach.md).
        debug_folders: folders with debug files of modules.
        machine: a QEMU of this host: its process id, the path of its QMP socket, or "auto" for the
            only one of this user.  Probes are planted in its memory while it runs; without it, the
            machine at `address` stops at each hit.
        start: connect now, rather than when it is first needed.

    Raises KinstError if the arguments do not agree, TargetError if the machine cannot be traced.
    """
    if not (address or machine):
        raise KinstError("attach() needs a machine", "machine= or address=")
    at = str(machine) if isinstance(machine, int) else _path(machine)
    options = MachineOptions(
        "attach" if machine else "gdb", address=at or address,
        stub_address=address if machine else "",
        kernel=_path(kernel), debug_folders=_paths(debug_folders),
    )  # fmt: skip
    return _opened(options, start, on_message, on_progress)


def live(
    debug: PathLike = "",
    debug_folders: Iterable[PathLike] = (),
    *,
    process: int = 0,
    start: bool = True,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> Machine:
    """Trace the machine that this process runs on, as root, while it runs (docs/live.md).

    Args:
        debug: its vmlinux with symbols, if it is not where the distribution installs it.
        debug_folders: folders with debug files of modules.
        process: the id of a process that runs already: it is $target, and a trace ends with it.
        start: load kinst's module now, rather than when it is first needed.

    Raises KinstError if files are missing, TargetError if kinst's module cannot be built or loaded,
    or another kinst traces this machine."""
    options = MachineOptions(
        "live", debug=_path(debug), debug_folders=_paths(debug_folders), process=process
    )
    return _opened(options, start, on_message, on_progress)


def host(*, on_message: Say = ignore) -> Machine:
    """Return a machine without a kernel, for programs of BEGIN, END and tick alone: they run in
    this process."""
    return Machine(Request(), on_message=on_message, has_kernel=False)


def kernel_files(
    isa: str = "amd64", release: str = "", *, on_progress: ShowProgress = ignore
) -> Files:
    """Return the files of Debian's kernel that boot() boots, fetched on first use.

    release: one of list_kernels(), or a version as boot() takes it.  Raises KinstError if they
    cannot be fetched."""
    return find_files(Request(MachineOptions(isa=isa, release=release)), on_progress)


def list_kernels(isa: str = "amd64", *, on_progress: ShowProgress = ignore) -> list[Offered]:
    """Return Debian's kernels of this ISA: the newest of each version and flavour that can be
    fetched, and those that are fetched already.  Reads package lists.

    Raises KinstError if there is no apt or no mirror."""
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
    """Return the D program with inline functions, source lines and local variables replaced by
    plain clauses, for an ELF file as it is, which need not be a kernel.

    Raises DError and KinstError."""
    request = Request(MachineOptions(kernel=_path(kernel), debug=_path(debug)))
    return expand_request(with_program(request, program, options, ()), on_message, on_progress)


def expand_request(request: Request, on_message: Say, on_progress: ShowProgress) -> str:
    """Do what expand_in_file() does, for a command line."""
    return expand_request_in_file(request, report_to(on_message, on_progress))


def _opened(options: MachineOptions, start: bool, say: Say, progress: ShowProgress) -> Machine:
    request = Request(options)
    error = disagreement(request, _parameter)
    if error is not None:
        raise error
    machine = Machine(request, on_message=say, on_progress=progress)
    if start:
        machine.start()
    return machine


def _parameter(field: str, request: Request) -> str:
    """Return how the caller has set a field of a request."""
    if field == "machine":
        return "attach()"
    value = getattr(request.machine, field, "") if field in WITH_VALUE else ""
    name = {"release": "kernel"}.get(field, field)
    return f"{name}={value!r}" if value else f"{name}="


def _read(field: str, value: int | str | None) -> int:
    """Return a number as its option takes it, 0 for None."""
    if value is None:
        return 0
    option = option_of(field)
    assert option is not None
    return int(str(option.parse(str(value), f"{field}={value}")))


def _kernel(name: str) -> dict[str, Any]:
    return {"release" if names_release(name) else "kernel": name}


def _path(path: PathLike | None) -> str:
    return "" if path is None else os.fspath(path)


def _paths(paths: Iterable[PathLike]) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path in paths)
