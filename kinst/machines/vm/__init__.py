"""Kind of machine `vm`: a kernel that kinst boots in QEMU.

MACHINE is its MachineKind, which kinst.machines finds by name.

Tested by tests/vm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinst.core.errors import KinstError
from kinst.core.layout import LEAF
from kinst.core.machine import Abilities
from kinst.core.machine_kind import MachineKind
from kinst.core.options import Option, Rule
from kinst.isa import names as isa_names
from kinst.machines.vm.accelerators import KVM, TCG, says_accelerator
from kinst.machines.vm.cpus import cpus_of, says_cpus

if TYPE_CHECKING:
    from pathlib import Path

    from kinst.core.isa import Isa
    from kinst.core.machine import EarlyStart, MachineConfig, Target
    from kinst.core.options import MachineOptions

# Every command asks for these abilities; the rest of this folder is not loaded for that.
ABILITIES = Abilities(boots=True, writes_code=True, runs_commands=True, switches=True)
MOST_CPUS = 255  # of QEMU's machines
LEAST_MEMORY = 128 << 20


def _opening() -> Any:
    return import_module("kinst.machines.vm.opening")


def _cpus(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_CPUS):
        raise KinstError("the value is not a number of CPUs", f"1 to {MOST_CPUS}")
    return int(text)


def _memory(text: str) -> int:
    """Return the size in bytes of guest memory that an option's text means, rounded up to 2 MB.

    Raises KinstError if the text is not a size, or the size is too small to boot in.
    """
    try:
        size: int = import_module("kinst.dlang.vocabulary.d_options").parse_size("memory", text)
    except KinstError as error:
        raise KinstError("the value is not a size", error.hint) from error
    if size < LEAST_MEMORY:
        raise KinstError("too little memory to boot in", f"at least {LEAST_MEMORY >> 20}m")
    return size + LEAF - 1 & -LEAF


class BootedKind(MachineKind):
    """Kind of machine for guests that kinst boots."""

    name = "vm"
    option = Option(
        "--vm", "ISA", "trace a kernel that kinst boots in QEMU (the default); ISA: amd64 (as"
        " without it), arm64, riscv64", "isa", optional=True, words=isa_names(),
    )  # fmt: skip
    options = (
        Option("--initrd", "FILE", "initial RAM disk to boot with, instead of kinst's", "initrd"),
        Option("--append", "TEXT", "more kernel command line, e.g. nokaslr", "append"),
        Option("--cpus", "N", "how many CPUs the guest has (2)", "cpus", _cpus),
        Option("--memory", "SIZE", "how much memory it has (1g)", "memory", _memory),
        Option(
            "--accel", "NAME", "run it under kvm or tcg; without this, under KVM if that works on"
            " this host", "accel", words=(KVM, TCG),
        ),
        Option("--cold", "", "boot the guest, even if a saved state of one like it exists", "cold"),
        Option(
            "--boot", "", "trace the guest's boot, from the kernel's first function on; it ends"
            " where the first program starts or, with -c, with the command", "trace_boot",
        ),
        Option("--qemu-arg", "ARG", "one more argument for QEMU", "qemu_args", repeats=True),
        Option("--copy", "FILE", "put FILE into the guest's /bin", "copies", repeats=True),
        Option(
            "--root", "DIR", "run the guest's commands on DIR (such as /), where they change"
            " nothing", "root",
        ),
        Option("--rw", "DIR", "a folder that they may write to", "writable", repeats=True),
        Option(
            "--module", "NAME", "load a module of the kernel, or a file NAME.ko, into the guest"
            " at boot", "modules",
            repeats=True,
        ),
    )  # fmt: skip
    takes = frozenset(("command", "shell", "kernel", "release", "debug", "debug_folders", "build"))
    rules = (
        Rule(
            ("kernel",), "{given} needs its vmlinux with symbols", "{debug} VMLINUX",
            without=("debug", "build"),
        ),
        Rule(
            ("release",), "{given} is fetched with its vmlinux: {beside} is for kernels of your"
            " own", "leave out {beside}", ("debug",),
        ),
        Rule(
            ("modules",), "{given} is for kernels that kinst fetches, and {beside} is a file",
            "leave out {kernel}, or give it a version", ("kernel",),
        ),
        Rule(
            ("copies", "modules", "root", "writable"),
            "{given} changes kinst's initial RAM disk, which {beside} replaces",
            "leave out {beside}", ("initrd",),
        ),
        Rule(
            ("root",), "with {given}, commands see only that folder, not the file of {beside}",
            "put the file into the folder", ("copies",),
        ),
        Rule(
            ("cpus",), "{given} and -smp in {qemu_args} both say how many CPUs there are",
            "leave out one of them", when=lambda options: says_cpus(options.qemu_args),
        ),
        Rule(
            ("accel",), "{given} and -accel in {qemu_args} both say what runs the guest",
            "leave out one of them", when=lambda options: says_accelerator(options.qemu_args),
        ),
        Rule(
            ("trace_boot",), "{given} stops the guest at each hit, which works under TCG alone",
            "leave out {beside}", ("accel",), when=lambda options: options.accel != TCG,
        ),
        Rule(
            ("trace_boot",), "{given} stops the guest at each hit, which works under TCG alone",
            "leave out -accel in {qemu_args}", ("qemu_args",),
            when=lambda options: says_accelerator(options.qemu_args),
        ),
    )  # fmt: skip

    @property
    def abilities(self) -> Abilities:
        return ABILITIES

    def cpus(self, arguments: Sequence[str]) -> int:
        return cpus_of(arguments)

    def describe_host(self, isa: Isa, options: MachineOptions, cache: Path) -> str:
        """Return a sentence that says whether guests run under KVM or TCG on this host, and why."""
        return str(_opening().describe_host(isa, options, cache))

    def start_early(self, config: MachineConfig) -> EarlyStart | None:
        early: EarlyStart | None = _opening().start_early(config)
        return early

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start QEMU with a configuration's kernel, and return the guest as a target without
        waiting for its boot.

        If the guest is only to be read and has a saved state, kinst opens that state and starts no
        QEMU.

        Raises TargetError if there is no kernel. Also raises it for a kernel of an unknown system:
        kinst could not tell when that kernel is up.
        """
        target: Target = _opening().open_guest(config, on_output)
        return target


MACHINE = BootedKind()
