"""The vm machine: a kernel that kinst boots in QEMU.  MACHINE is found by name.

Tested by tests/vm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kinst.core.boot import Boot
from kinst.core.errors import TargetError
from kinst.core.machine import MachineConfig, MachineKind, Target
from kinst.machines.vm.cpus import cpus_of
from kinst.machines.vm.files import shares, surroundings
from kinst.machines.vm.kvm import accelerator
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import MEMORY, VmConfig, scratch_size
from kinst.machines.vm.saved_guest import SavedGuest
from kinst.machines.vm.warm import EarlyGuest, early_guest, warm_start


class _Booted(MachineKind):
    """Implements MachineKind for guests that kinst boots."""

    name = "vm"
    option = ""
    abilities = Vm.abilities

    def cpus(self, arguments: Sequence[str]) -> int:
        return cpus_of(arguments)

    def start_early(self, config: MachineConfig) -> EarlyGuest | None:
        """Start a guest from a saved state; return None if there is none, or if the guest is only
        read."""
        if config.read_only:
            return None
        if config.kernel is None or config.boot is None:
            return None
        return early_guest(_wanted(config, config.kernel, config.boot), config.isa.board)

    def open(
        self, config: MachineConfig, on_output: Callable[[bytes], None] | None = None
    ) -> Target:
        """Start QEMU with config.kernel, and return at once.  If the guest is only read and its
        state was saved, no QEMU is needed.

        Raises TargetError without a kernel, and for one of an unknown system, since kinst cannot
        tell when that is up."""
        if config.kernel is None:
            raise TargetError("there is no kernel to boot")
        if config.virtual_layout is None or config.boot is None:
            raise TargetError(
                f"{config.image}: not the vmlinux of a system that kinst knows; it boots no other",
                "start the machine yourself, with -gdb, and use --gdb",
            )
        wanted = _wanted(config, config.kernel, config.boot)
        warm = warm_start(wanted, config.isa.board) if config.read_only else None
        if warm is not None and warm.is_there:
            with suppress(TargetError):  # it is damaged; a guest that boots replaces it
                return SavedGuest(config.isa, wanted, warm)
        early_start = config.early_start.take(wanted) if config.early_start else None
        if config.terminal is not None:
            on_output = config.terminal.show
        return Vm(
            config.isa, wanted, config.virtual_layout, on_output, early_start, config.terminal
        )


def _wanted(config: MachineConfig, kernel: Path, boot: Boot) -> VmConfig:
    """Return what to boot."""
    board = config.isa.board
    modules = boot.modules if config.modules else ""
    return VmConfig(
        kernel=kernel,
        boot=boot,
        initrd=config.initrd,
        control=config.control,
        append=f"{modules} {config.append}".strip(),
        qemu_args=config.arguments,
        cpus=config.cpus or cpus_of(config.arguments),
        memory=config.memory or MEMORY,
        scratch=scratch_size(config.scratch),
        shares=shares(config.root, config.writable),
        surroundings=surroundings(config.root) if config.root else None,
        beside=config.beside,
        states=None if config.cold else config.cache,
        accel=accelerator(config.cache, board) if config.cache else "tcg",
    )


MACHINE = _Booted()
