"""Functions that make machines (boot(), attach(), live(), process() and host()), and functions that
need no machine.

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
from kinst.core.paths import cache_folder
from kinst.isa import load as load_isa
from kinst.kernels.fetch import Offered, offered
from kinst.kernels.releases import names_release
from kinst.session.file_image import expand_request_in_file
from kinst.session.options import WITH_VALUE, disagreement, option_of
from kinst.session.request import DEFAULT_ISA, Request
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
    accel: str = "",
    cold: bool = False,
    trace_boot: bool = False,
    root: PathLike | None = None,
    writable: Iterable[PathLike] = (),
    start: bool = True,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> Machine:
    """Boot a kernel in QEMU and return the machine. The kernel is Debian's, fetched on first use,
    or your own.

    Args:
        isa: amd64, arm64 or riscv64.
        kernel: path of your own kernel, which needs `debug`; or version of one of Debian's kernels
            ("6.12", "5.10-generic").
        debug: the vmlinux with symbols that belongs to `kernel`.
        initrd: an initial RAM disk in place of kinst's, which has busybox and runs commands.
        append: text to append to the kernel's command line.
        copies: files of the host to copy into the guest's /bin.
        modules: names of modules of the fetched kernel to load at boot.
        qemu_args: additional arguments for QEMU.
        debug_folders: folders with debug files of modules.
        cpus: number of CPUs of the guest; None for 2.
        memory: size of the guest's memory: bytes, or a text with a unit ("512m"); None for 1 GB.
        accel: "kvm" or "tcg"; "" for KVM if that works on this host, else TCG.
        cold: boot, even if there is a saved state of a guest with this configuration.
        trace_boot: stop the guest at the first function of its kernel. A trace then begins there.
        root: folder of the host, such as /, that is the root of the guest's commands; they see its
            files, and their changes stay in the guest.
        writable: folders of the host that the guest's commands may change.
        start: boot now. Otherwise the guest boots when it is first needed, with as much scratch
            memory as the program needs.
        on_message: gets messages for people.
        on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: the arguments do not agree, or a file is missing.
        TargetError: the guest does not come up.
    """
    options = MachineOptions(
        isa=isa, initrd=_path(initrd), append=append, debug=_path(debug),
        debug_folders=_paths(debug_folders), copies=_paths(copies), modules=tuple(modules),
        qemu_args=tuple(qemu_args), cpus=_read("cpus", cpus), memory=_read("memory", memory),
        accel=_word("accel", accel), cold=cold, trace_boot=trace_boot,
        root=_path(root), writable=_paths(writable),
        **_kernel(_path(kernel)),
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
    """Connect to a machine that runs already, and return it.

    Args:
        address: address of its GDB stub: host:port, :port or the path of a unix socket. With
            `machine` it is needed only if QEMU's command line does not have it.
        kernel: the machine's vmlinux with symbols. With `machine` it may be left out: kinst looks
            for it by the build-id of the kernel that runs there (docs/attach.md).
        debug_folders: folders with debug files of modules.
        machine: a QEMU of this host: its process id, the path of its QMP socket, or "auto" for the
            only QEMU of this user. kinst plants probes in its memory while it runs. Without
            `machine`, the machine at `address` stops at each hit.
        start: connect now. Otherwise kinst connects when the machine is first needed.
        on_message: gets messages for people.
        on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: the arguments do not agree.
        TargetError: the machine cannot be traced.
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
    """Return this host as a machine, whose kernel is traced while it runs (docs/live.md). Needs
    root.

    Args:
        debug: the kernel's vmlinux with symbols, if it is not where the distribution installs it.
        debug_folders: folders with debug files of modules.
        process: id of a process that runs already: $target is its id, and a trace ends with the
            process.
        start: load kinst's kernel module now. Otherwise it is loaded when it is first needed.
        on_message: gets messages for people.
        on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: a file is missing.
        TargetError: kinst's kernel module cannot be built or loaded, or another kinst traces this
            host.
    """
    options = MachineOptions(
        "live", debug=_path(debug), debug_folders=_paths(debug_folders), process=process
    )
    return _opened(options, start, on_message, on_progress)


def process(
    command: str = "",
    *,
    pid: int = 0,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> Machine:
    """Return a machine for a user program, whose instructions can be counted while it runs. The
    program is one that kinst starts, or a process that runs already.

    A program that kinst starts begins to run with the first trace, and runs only once. The caller
    gives the same `command` to Machine.trace() again. The program's input, output and error output
    are those of this process. A process that runs already is stopped while kinst plans a trace, and
    runs on after it.

    Args:
        command: the program and its arguments, quoted as for a shell.
        pid: id of a process that runs already, in place of `command`. If the process is a child of
            the caller, the caller must not wait for it during a trace (for example by
            Popen.poll()).
        on_message: gets messages for people.
        on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: there is no such program, or the arguments do not agree.
        TargetError: the program cannot be traced.
    """
    request = Request(MachineOptions("process", process=pid), command=command)
    error = disagreement(request, _parameter)
    if error is not None:
        raise error
    return Machine(request, on_message=on_message, on_progress=on_progress)


def host(*, on_message: Say = ignore) -> Machine:
    """Return a machine without a kernel. Its programs can have only BEGIN, END and tick probes,
    which run in this process."""
    return Machine(Request(), on_message=on_message, has_kernel=False)


def kernel_files(
    isa: str = "amd64", release: str = "", *, on_progress: ShowProgress = ignore
) -> Files:
    """Return the files of the Debian kernel that boot() boots; they are fetched on first use.

    Args:
        isa: amd64, arm64 or riscv64.
        release: a release that list_kernels() returned, or a version as boot() takes it; "" for the
            kernel that boot() takes without `kernel`.
        on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: the files cannot be fetched.
    """
    return find_files(Request(MachineOptions(isa=isa, release=release)), on_progress)


def list_kernels(isa: str = "amd64", *, on_progress: ShowProgress = ignore) -> list[Offered]:
    """Return the kernels of Debian that boot() can take for an ISA.

    These are the newest kernel of each version and flavour in Debian's releases, and all kernels
    that have been fetched before. Package lists are read from a mirror.

    Raises KinstError if apt is not installed or no mirror answers.
    """
    return offered(isa, on_progress)


def describe_host(request: Request) -> str:
    """Return a sentence for kinst --version -v: how this host runs machines of the kind that a
    request selects (for --vm: under KVM or TCG, and why). "" if there is nothing to say. Raises
    KinstError."""
    isa = load_isa(request.machine.isa or DEFAULT_ISA)
    return request.kind.describe_host(isa, request.machine, cache_folder())


def expand_in_file(
    program: Source,
    kernel: PathLike,
    debug: PathLike | None = None,
    options: Mapping[str, Setting] | None = None,
    *,
    on_message: Say = ignore,
    on_progress: ShowProgress = ignore,
) -> str:
    """Return the text of a D program, expanded for the code in an ELF file, which need not be a
    kernel. Probes at instructions replace probes of inline functions and of source lines.
    Expressions over registers and memory replace local variables.

    Args:
        program: D text, the path of a script, or texts as the command line's options give them.
        kernel: the ELF file.
        debug: its debug file, if debug information is in another file.
        options: values of -x options by name.
        on_message: gets messages for people.
        on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        DError: the program is wrong.
        KinstError: a file or an option is wrong.
    """
    request = Request(MachineOptions(kernel=_path(kernel), debug=_path(debug)))
    return expand_request(with_program(request, program, options, ()), on_message, on_progress)


def expand_request(request: Request, on_message: Say, on_progress: ShowProgress) -> str:
    """Return the expanded text of a request's program, as expand_in_file() does for its
    arguments."""
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
    """Return how the caller of this library set a field of a request, for an error message:
    "kernel='6.12'"."""
    if field == "machine":
        return "attach()"
    value = getattr(request.machine, field, "") if field in WITH_VALUE else ""
    name = {"release": "kernel"}.get(field, field)
    return f"{name}={value!r}" if value else f"{name}="


def _read(field: str, value: int | str | None) -> int:
    """Return the value of an argument of boot() as a number; 0 for None.

    Args:
        field: name of the argument. The command line has an option for it, with rules for its
            value.
        value: a number, or a text with a unit such as "512m"; None if the argument is not given.

    Raises KinstError if the value breaks a rule.
    """
    if value is None:
        return 0
    option = option_of(field)
    assert option is not None
    return int(str(option.parse(str(value), f"{field}={value}")))


def _word(field: str, value: str) -> str:
    """Check an argument of boot() that must be one of a few words, and return it.

    Args:
        field: name of the argument. The command line has an option for it, with the same words.
        value: the argument; "" if it is not given, which is always right.

    Raises KinstError if the value is another word.
    """
    option = option_of(field)
    assert option is not None
    return str(option.parse(value, f"{field}={value}")) if value else ""


def _kernel(name: str) -> dict[str, Any]:
    return {"release" if names_release(name) else "kernel": name}


def _path(path: PathLike | None) -> str:
    return "" if path is None else os.fspath(path)


def _paths(paths: Iterable[PathLike]) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path in paths)
