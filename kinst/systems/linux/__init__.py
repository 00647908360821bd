"""Linux, as a SystemKind. The loader of kinst.systems finds the value SYSTEM by its name.

Facts about Linux on one ISA are in the file with the name of that ISA.

Tested by tests/test_contracts.py and tests/systems/linux.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinst.core.kernel_package import KernelBuild
from kinst.image.elf_file import PT_LOAD, SHT_SYMTAB
from kinst.systems.linux.dialect import dialect

if TYPE_CHECKING:
    from kinst.core.boot import Boot
    from kinst.core.isa import Isa
    from kinst.core.machine import KernelLocation, Target
    from kinst.core.system import System, VirtualLayout
    from kinst.image.debug_info import DebugInfo
    from kinst.image.elf import Elf
    from kinst.systems import FileRules
    from kinst.systems.linux.isafacts import IsaFacts

# Sections that only a vmlinux or a module has; symbols of a vmlinux's version line and notes.
_SECTIONS = ("__ksymtab", ".gnu.linkonce.this_module")
_SYMBOLS = ("linux_banner", "__start_notes")
_USER_END = 1 << 47  # kernels lie above
# The first two lines of the VMCOREINFO note, which has a page of its own.
_VMCOREINFO = re.compile(rb"OSRELEASE=([\x21-\x7e]{1,64})\nBUILD-ID=([0-9a-f]{40})\n")


def _module(name: str) -> Any:
    """Import and return a module of this package, for modules that are loaded only when a running
    kernel needs them."""
    return import_module(f"kinst.systems.linux.{name}")


def _facts_of(isa: str) -> IsaFacts:
    """Return the facts about Linux on an ISA. Raises KinstError if there are none."""
    facts: IsaFacts = _module("isafacts").facts_of(isa)
    return facts


class _Linux:
    """Linux as an operating system. Implements SystemKind (kinst/systems/__init__.py)."""

    name = "linux"
    fallback = False
    hosts = sys.platform == "linux"
    dialect = staticmethod(dialect)

    def knows(self, elf: Elf) -> bool:
        """Return whether an ELF file is that of a Linux kernel or of a Linux module."""
        if any(elf.section(name) is not None for name in _SECTIONS):
            return True
        starts = [s.address for s in elf.segments if s.kind == PT_LOAD]
        stripped = all(section.kind != SHT_SYMTAB for section in elf.sections)
        if stripped and starts and max(starts) < _USER_END:  # a program
            return False
        return any(elf.address(name) is not None for name in _SYMBOLS)

    def virtual_layout(self, isa: Isa) -> VirtualLayout | None:
        """Return where Linux is mapped on an ISA. Raises KinstError if kinst does not know Linux on
        it."""
        return _facts_of(isa.name).virtual_layout

    def boot(self, isa: Isa) -> Boot | None:
        """Return how QEMU boots Linux on an ISA. Raises KinstError if kinst does not know Linux on
        it."""
        return _facts_of(isa.name).boot

    def running_build(self, memory: Iterable[bytes]) -> KernelBuild | None:
        """Return the release and build-id of the Linux kernel that runs on a machine, from the
        VMCOREINFO note in its memory; None if no piece of memory has the note.

        Kernels with CONFIG_CRASH_CORE or CONFIG_VMCORE_INFO have the note, with a build-id since
        Linux 5.9. Source: Documentation/admin-guide/kdump/vmcoreinfo.rst; kernel/crash_core.c.
        """
        for piece in memory:
            if match := _VMCOREINFO.search(piece):
                return KernelBuild(match[1].decode(), match[2].decode())
        return None

    def lacks(self, name: str, elf: Elf) -> str:
        """Return "": a Linux kernel's file does not tell which parts of D the kernel lacks. The
        Facts of the running kernel tell it; the dialect has the parts that all Linux kernels lack.
        """
        return ""

    def of_file(self, elf: Elf) -> FileRules:
        """Return the rules for the code in a vmlinux or a module's file, from the tables in that
        file."""
        rules: FileRules = _module("file_rules").LinuxFile(elf)
        return rules

    def attach(self, target: Target, image: DebugInfo, location: KernelLocation) -> System:
        """Examine the Linux kernel that runs on a target, and return a System for that kernel.

        Raises KinstError if the running kernel is not that of `image`, or if `image` has no types.
        """
        arch, hooks = _facts_of(target.isa.name), target.abilities.writes_code
        notified = target.planter is not None
        system: System = _module("system").attach(
            target, image, location.text, arch, target.isa, hook_bugs=hooks, notified=notified,
            booting=target.cpus if location.booting else 0, time=location.time,
        )  # fmt: skip
        return system


SYSTEM = _Linux()
