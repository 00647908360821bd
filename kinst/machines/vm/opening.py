"""Opening of a guest that kinst boots: from a machine's configuration to a running QEMU.

start_early() runs before most of kinst is imported, so this module imports little.

Tested by tests/vm.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kinst.core.boot import Boot
from kinst.core.errors import TargetError
from kinst.core.machine import MachineConfig, Target
from kinst.core.options import MachineOptions
from kinst.machines.vm.accelerators import TCG
from kinst.machines.vm.cpus import cpus_of
from kinst.machines.vm.files import shares, surroundings
from kinst.machines.vm.kvm import DEVICE, Accelerator, choose
from kinst.machines.vm.qemu import MEMORY, VmConfig, scratch_size
from kinst.machines.vm.warm import EarlyGuest, early_guest, warm_start

if TYPE_CHECKING:
    from kinst.core.isa import Isa


def start_early(config: MachineConfig, device: Path = DEVICE) -> EarlyGuest | None:
    """Start a QEMU that can load a guest's saved state, before the D program is compiled.

    None if the guest has no saved state, or is only to be read.

    Args:
        config: the configuration as far as it is known; how much scratch the D program wants is not
            known yet. If the final configuration needs a different QEMU, open_guest() starts one.
        device: path of KVM's device.
    """
    if config.read_only or config.kernel is None or config.boot is None:
        return None
    accel = _accelerator(config, device).name
    wanted = _wanted(config, config.kernel, config.boot, accel)
    return early_guest(wanted, config.isa.board, config.command)


def open_guest(
    config: MachineConfig, on_output: Callable[[bytes], None] | None, device: Path = DEVICE
) -> Target:
    """Start QEMU with a configuration's kernel, or open a saved state that is only to be read.

    Returns the guest as a target, without waiting for its boot. Raises TargetError.

    Args:
        on_output: called with the output of the guest's command.
        device: path of KVM's device.
    """
    if config.kernel is None:
        raise TargetError("there is no kernel to boot")
    if config.virtual_layout is None or config.boot is None:
        raise TargetError(
            f"{config.image}: not the vmlinux of a system that kinst can boot",
            "start the machine yourself, with -gdb, and use --gdb",
        )
    if config.options.trace_boot and config.span is None:
        raise TargetError(
            f"{config.image}: it lacks the symbols that tell where its boot begins",
            "trace it after its boot, without --boot",
        )
    accelerator = _accelerator(config, device)
    wanted = _wanted(config, config.kernel, config.boot, accelerator.name)
    warm = warm_start(wanted, config.isa.board) if config.read_only else None
    if warm is not None and warm.is_there:
        with suppress(TargetError):  # it is damaged; a guest that boots replaces it
            saved: Target = import_module("kinst.machines.vm.saved_guest").SavedGuest(
                config.isa, wanted, warm
            )
            return saved
    early = config.early_start.take(wanted) if config.early_start else None
    if config.terminal is not None:
        on_output = config.terminal.show
    if config.span is not None:
        booting: Target = import_module("kinst.machines.vm.booting").BootingVm(
            config.isa, wanted, config.virtual_layout, config.span, accelerator, on_output,
            config.terminal,
        )  # fmt: skip
        return booting
    guest: Target = import_module("kinst.machines.vm.machine").Vm(
        config.isa, wanted, config.virtual_layout, on_output, early, config.terminal, accelerator
    )
    return guest


# Each instruction takes 2^1 ns of the guest's time, and an idle guest does not wait.
STEADY_TIME = ("-icount", "shift=1,sleep=off")


def describe_host(isa: Isa, options: MachineOptions, cache: Path) -> str:
    """Return a sentence that says whether guests run under KVM or TCG on this host, and why."""
    return f"{isa.name} guests run under {choose(isa, options, None, cache).text}"


def _accelerator(config: MachineConfig, device: Path) -> Accelerator:
    if config.options.trace_boot:
        return Accelerator(TCG, "its boot is traced", required=True)
    return choose(config.isa, config.options, config.kernel, config.cache, device)


def _wanted(config: MachineConfig, kernel: Path, boot: Boot, accel: str) -> VmConfig:
    """Convert the configuration of a machine into the configuration of a QEMU.

    Args:
        accel: the accelerator, KVM or TCG.
    """
    options = config.options
    root = Path(options.root).resolve() if options.root else None
    writable = [Path(name).resolve() for name in options.writable]
    modules = boot.modules if options.modules else ""
    return VmConfig(
        kernel=kernel,
        boot=boot,
        initrd=config.initrd,
        control=not options.initrd or config.runs_command,
        append=f"{modules} {config.append}".strip(),
        qemu_args=(*(STEADY_TIME if options.steady_time else ()), *options.qemu_args),
        cpus=options.cpus or cpus_of(options.qemu_args),
        memory=options.memory or MEMORY,
        scratch=scratch_size(config.scratch),
        shares=shares(root, writable),
        surroundings=surroundings(root) if root else None,
        beside=bool(options.initrd),
        states=None if options.cold or options.initrd or options.trace_boot else config.cache,
        accel=accel,
        halted=options.trace_boot,
    )
