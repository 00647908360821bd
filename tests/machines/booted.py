"""Guests for the tests of targets: booted with kinst's initramfs, ended with the test."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinst.core.boot import Boot
from kinst.core.isa import Isa
from kinst.core.machine import CommandEnded, Gone, MachineEvent
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import VmConfig
from kinst.systems import of_host
from kinst.systems.linux.guest.initramfs import build
from kinst.systems.linux.isafacts import facts_of
from tests.second_boot import FIRST_SECONDS

# Long enough for a busy machine: only a hang takes longer.
SECONDS = 240.0

ISA = load("amd64")


@dataclass
class Guest:
    """A Vm that is ready and stopped, and the output of its commands."""

    vm: Vm
    output: bytearray = field(default_factory=bytearray)

    def run(self, command: str) -> str:
        """Run a command to its end, without breakpoints; return its output.  Leaves the guest
        stopped."""
        del self.output[:]
        self.vm.prepare_command(command)
        self.vm.start_command()
        self.vm.resume()
        event = self.vm.wait(SECONDS)
        assert event == CommandEnded(0), (event, bytes(self.output))
        self.vm.stop()
        return self.output.decode()

    def symbol(self, name: str) -> int:
        """Return a symbol's address, as the guest's own kernel lists it."""
        line = self.run(f"grep -E ' {name}$' /proc/kallsyms")
        return int(line.split()[0], 16)


def boot_of(isa: Isa) -> Boot:
    """Return how Linux is started on an ISA."""
    boot = of_host().boot(isa)
    assert boot is not None
    return boot


def boot(
    prepared: Prepared, programs: dict[str, Path] | None = None, *, isa: Isa = ISA, **config: Any
) -> Guest:
    """Start a guest and wait until it is ready."""
    files = {f"/bin/{name}": path for name, path in (programs or {}).items()}
    initrd = build(prepared.busybox, files)
    output = bytearray()
    virtual_layout = facts_of(isa.name).virtual_layout
    vm = Vm(
        isa,
        VmConfig(prepared.kernel, boot_of(isa), initrd, **config),
        virtual_layout,
        output.extend,
    )
    try:
        if not vm.boots(FIRST_SECONDS):
            vm.start_again()
        vm.wait_ready(SECONDS)
    except BaseException:
        vm.close()
        raise
    return Guest(vm, output)


def wait_for(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def is_gone(event: MachineEvent | None, pattern: str) -> bool:
    return isinstance(event, Gone) and re.search(pattern, event.reason) is not None
