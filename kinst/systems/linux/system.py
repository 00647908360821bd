"""A running Linux kernel, as a System (core/system.py).

attach() checks that the vmlinux file is the running kernel's, and returns a Linux.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.columns import distinct
from kinst.core.errors import KinstError, TargetError
from kinst.core.isa import Isa
from kinst.core.machine import KernelMemory
from kinst.core.paths import cache_folder
from kinst.core.probe import Function
from kinst.core.system import (
    Clock,
    Facts,
    PageAllocator,
    SystemCall,
    Tracepoint,
    TracepointSite,
)
from kinst.core.words import MASK
from kinst.image.btf import Btf, open_btf
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import Elf
from kinst.image.elf_file import SHF_EXECINSTR, build_id_in
from kinst.image.function_table import NO_FUNCTIONS, FunctionTable
from kinst.image.variable_table import VariableTable
from kinst.systems.linux.backtrace import by_frames, by_rules
from kinst.systems.linux.counterparts import counterpart_in
from kinst.systems.linux.facts import clock, gather, online_cpus
from kinst.systems.linux.frames import FindFrames, Frames
from kinst.systems.linux.ftrace import LEFT, Ftrace
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.modules import LinuxModules, Module, ModuleRules
from kinst.systems.linux.page_allocator import allocator
from kinst.systems.linux.refusals import KernelRules
from kinst.systems.linux.special_names import NEVER_RETURN
from kinst.systems.linux.static_keys import StaticKeys
from kinst.systems.linux.system_calls import calls_of_kernel, result_sites
from kinst.systems.linux.tables import KernelTables
from kinst.systems.linux.tracepoints import LinuxTracepoints
from kinst.systems.linux.waiting import waits_in

# How far after the text's start the banner of an unknown kernel is searched.
SEARCH = 48 << 20
CHUNK = 1 << 20
TICKS = "jiffies_64"
_PANIC_CPU = "panic_cpu"
_FLAGS = "gfpflag_names"
_FLAG_SIZE, _MOST_FLAGS = 16, 1000  # bytes of an element; elements at most
_PANICKED = "the guest's kernel has panicked"
_BANNER = 256  # bytes that hold a version line (init/version.c)
MODULE = "vmlinux"
# Prefixes of symbols that are no functions: padding before functions (since 6.2), and marks and
# local labels of code that the kernel's build links under another name.
PADDING = (*NO_FUNCTIONS, "__pfx_", "__cfi_", "__efistub_$", "__efistub_.L", "__pi_$", "__pi_.L",
           "__kvm_nvhe_$")  # fmt: skip


class Linux:
    """A running Linux kernel. Implements System (core/system.py). attach() makes it."""

    def __init__(
        self,
        kernel: LinuxMemory,
        btf: Btf,
        facts: Facts,
        arch: IsaFacts,
        image: DebugInfo,
        isa: Isa,
        *,
        notified: bool = False,
        booting: bool = False,
        ahead: int = 0,
    ) -> None:
        """Describe a running kernel whose file, slide and facts are known.

        Args:
            notified: whether breakpoints reach kinst by a die notifier instead of a hook.
            booting: whether the kernel is at the beginning of its boot.
            ahead: how many ns D's timestamp is ahead of the kernel's clock.
        """
        self._booting = booting
        self._ahead = ahead
        self.facts = facts
        self._btf = btf
        self._arch = arch
        self._isa = isa
        self._kernel = kernel
        self._tables = KernelTables(kernel.elf, arch.label_size)
        self.table = FunctionTable(kernel.elf, kernel.slide, MODULE, PADDING)
        self._variables = VariableTable(kernel.elf, kernel.slide)
        self.ftrace = Ftrace(kernel, btf, arch.call_sites)
        self._refusals = KernelRules(
            kernel, self._tables, self.table, self.ftrace, arch, notified=notified,
            booting=booting,
        )  # fmt: skip
        self._modules = LinuxModules(
            kernel, btf, arch, self._tables.bug_size, self._tables.exception_size
        )
        self.frames = Frames(kernel, image, self._modules, arch)
        self._module_rules = ModuleRules(kernel, self._modules, self.ftrace)
        keys = StaticKeys(kernel, btf, arch, self._tables, self._modules)
        self._keys = keys
        self._tracepoints = LinuxTracepoints(
            kernel, btf, self._tables, self._modules, keys, isa, self.lookup, self.function_at
        )
        self._leaves_call_sites = False

    def leaving_call_sites(self) -> Linux:
        system = copy(self)
        system._leaves_call_sites = True
        return system

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> list[bool]:
        if not self._leaves_call_sites:
            return [False] * len(sites)
        inside: list[bool] = self._refusals.at_call_sites(sites).tolist()
        return inside

    def modules(self) -> Sequence[Module]:
        """Return the modules that were loaded when this method was first called."""
        return self._modules.all

    def find_frames_with(self, find: FindFrames) -> None:
        self.frames.find_with(find)

    def code(self, address: int, size: int) -> bytes:
        """Return live bytes of the kernel or a module at a running address. Raises KinstError if
        nothing is mapped there."""
        return self._kernel.read(address, size)

    def clock(self) -> Clock | None:
        if self._booting:
            return None
        now = clock(self._kernel, self._btf, self._arch, self.facts.per_cpu_bases[0])
        return now and now.ahead(self._ahead)

    def online_cpus(self) -> Sequence[int]:
        return online_cpus(self._kernel)

    def functions(self) -> Sequence[Function]:
        """Return the kernel's functions in address order, followed by the functions of the loaded
        modules. A function with several symbols is there once, under one of its names, preferably a
        global one."""
        return (*self.table.all, *(f for m in self._modules.all for f in m.functions))

    def lookup(self, name: str) -> list[Function]:
        of_modules = [f for m in self._modules.all for f in m.functions if f.name == name]
        return self.table.lookup(name) + of_modules

    def glob(self, pattern: str) -> list[Function]:
        match = re.compile(translate(pattern)).match
        of_modules = [f for m in self._modules.all for f in m.functions if match(f.name)]
        return self.table.glob(pattern) + of_modules

    def function_at(self, address: int) -> Function | None:
        module = self._modules.at(address)
        if module is None:
            return self.table.at(address)
        inside = (f for f in module.functions if f.address <= address < f.address + f.size)
        return next(inside, None)

    def variable_at(self, address: int) -> tuple[str, str, int] | None:
        """Return (module, name, start) of the kernel variable that contains a running address; None
        if there is none. Variables of modules are not known."""
        variable = self._variables.at(address)
        return None if variable is None else (MODULE, *variable)

    def system_calls(self) -> Sequence[SystemCall]:
        return self._system_calls

    @cached_property
    def _system_calls(self) -> Sequence[SystemCall]:
        return calls_of_kernel(self._kernel, self.table, self._btf, self._arch, self._isa)

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return self._tracepoints.named(name)

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        return self._tracepoints.sites(name)

    def switched(
        self, switches: Collection[int], *, on: bool
    ) -> Sequence[tuple[int, bytes]] | None:
        """Return the memory writes (address, bytes) that turn static keys on for kinst, or undo
        that; None if the kernel is in the middle of changing a key. The machine must be stopped.

        Args:
            switches: running addresses of the keys.
            on: True to turn the keys on, False to undo that.
        """
        return self._keys.switched(switches, on=on)

    def exempt(self) -> frozenset[int]:
        """Return the addresses of the instructions at which results of system calls are known.

        On some ISAs these instructions are in noinstr functions, in which kinst refuses all other
        instructions. They are safe: the kernel's state there is the same as between
        instrumentation_begin() and instrumentation_end(), where traced functions may be called.
        """
        return result_sites(self.system_calls())

    def refusals(self, function: Function) -> str:
        if function.module != MODULE:
            return self._module_rules.function(function)
        return self._refusals.function(function)

    def call_refusal(self, function: Function) -> str:
        return ""

    def site_refusal(self, address: int, size: int) -> str:
        """Return why the instruction at a running address may not be planted, or "" if it may."""
        return self.site_refusals([(address, size)])[0]

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> list[str]:
        """Return why each instruction may not be planted, "" for an instruction that may, in the
        order of `sites`.

        The live bytes of neighbouring instructions are read together.

        Args:
            sites: (running address, size) of each instruction.
        """
        reasons = self._site_refusals(sites)
        if self._leaves_call_sites:
            pairs = zip(reasons, self.left_to_tracer(sites), strict=True)
            reasons = [reason or LEFT * left for reason, left in pairs]
        return reasons

    def _site_refusals(self, sites: Sequence[tuple[int, int]]) -> list[str]:
        hooks = bool(self.facts.fault_hook), bool(self.facts.bug_hook)
        of_modules = [
            i
            for i, (at, _) in enumerate(sites)
            if not self._is_own(at) and self._modules.at(at) is not None
        ]
        if not of_modules:
            return self._refusals.sites(sites, *hooks)
        reasons = {i: self._module_rules.site(*sites[i], *hooks) for i in of_modules}
        others = [i for i in range(len(sites)) if i not in reasons]
        of_kernel = self._refusals.sites([sites[i] for i in others], *hooks)
        reasons.update(zip(others, of_kernel, strict=True))
        return [reasons[i] for i in range(len(sites))]

    def has_fixup(self, address: int) -> bool:
        rules = self._refusals if self._is_own(address) else self._module_rules
        return rules.has_fixup(address)

    def fixup(self, address: int) -> int | None:
        return self._fixups.get(address)

    @cached_property
    def _fixups(self) -> dict[int, int]:
        slide = self._kernel.slide
        fixups = {at + slide & MASK: to + slide & MASK for at, to in self._tables.fixups.items()}
        for module in self._modules.all:
            fixups.update(module.fixups)
        return fixups

    def landings(self) -> npt.NDArray[np.uint64]:
        """Return running addresses at which control may arrive because of Linux's own tables,
        ascending: after a fault (fix-ups), and after the jump of a static key."""
        labels = self._tables.label_targets + np.uint64(self._kernel.slide & MASK)
        of_modules = [m.label_targets for m in self._modules.all]
        fixups = np.array(list(self._fixups.values()), np.uint64)
        return distinct(np.concatenate([fixups, labels, *of_modules]))

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> list[bool]:
        rewritten: list[bool] = self._refusals.rewritten(sites).tolist()
        for i, (address, size) in enumerate(sites):
            if not rewritten[i] and self._modules.at(address) is not None:
                rewritten[i] = self._module_rules.rewritten(address, size)
        if self._leaves_call_sites:
            rewritten = list(map(operator.or_, rewritten, self.left_to_tracer(sites)))
        return rewritten

    def is_bug(self, address: int) -> bool:
        rules = self._refusals if self._is_own(address) else self._module_rules
        return rules.is_bug(address)

    def _is_own(self, address: int) -> bool:
        """Return whether a running address is in the kernel's own text, not in a module."""
        low, high = self._own_text
        return low <= address < high

    @cached_property
    def _own_text(self) -> tuple[int, int]:
        return self.text

    def is_fatal(self, address: int) -> bool:
        """Return whether the trap instruction at a running address is a BUG, after which control
        never continues. After a WARN, control continues."""
        return address - self._kernel.slide & MASK in self._fatal

    @cached_property
    def _fatal(self) -> frozenset[int]:
        return frozenset(self._tables.fatal_bugs.tolist())

    def counterpart(self, name: str) -> str:
        return counterpart_in(self.table, name, self._arch.system_calls)

    def dead_ends(self) -> Sequence[str]:
        return NEVER_RETURN

    def claims(self, addresses: Iterable[int]) -> list[tuple[int, bytes]]:
        """Return the memory writes that make ftrace ignore the call sites among these instructions,
        so that kinst may overwrite them. The caller makes the writes while the machine is stopped.

        Args:
            addresses: running addresses of the instructions that kinst will overwrite, including
                those of its hooks.
        """
        return self.ftrace.claims(addresses)

    def releases(self, claimed: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return self.ftrace.releases(claimed)

    def frame_rule(self, address: int) -> tuple[str, int, int] | None:
        """Return the rule that finds the caller at an instruction; None if there is no rule.

        Returns:
            (D name of the base register, offset of the CFA from it, offset of the return address
            from the CFA). If the return address is still in a register: (D name of that register,
            0, RA_IN_SLOT).
        """
        return self.frames.rule(address)

    def frame_address(self, address: int) -> tuple[str, int] | None:
        return self.frames.cfa(address)

    def saved_frame_pointer(self, address: int) -> int | None:
        """Return where the caller's frame pointer is saved at an instruction, as an offset from the
        CFA. Return None if it is not saved or if there is no ORC table."""
        return self.frames.saved_frame_pointer(address)

    def backtrace(self, pc: int, registers: Mapping[str, int]) -> tuple[int, ...]:
        memory, chain = self._kernel.memory, self._arch.chain
        if chain is not None:
            return by_frames(chain, self, memory, pc, registers)
        return by_rules(self, memory, pc, registers)

    def waits_in(self, thread: int) -> str:
        return waits_in(
            self._kernel, self._btf, self._arch.chain, thread, self.backtrace, self.function_at
        )

    @property
    def page_tables(self) -> int:
        """Running address of the top level of the kernel's page tables. Raises KinstError if the
        kernel has no symbol for it."""
        return self._kernel.symbol(self._arch.page_tables)

    def panicked(self) -> str:
        return _PANICKED if _has_panicked(self._kernel) else ""

    def allocation_flag(self, name: str) -> int:
        return allocation_flag(self._kernel, name)

    @property
    def heartbeat(self) -> int | None:
        """Address of the kernel's counter of timer ticks; None if the kernel has no symbol for
        it."""
        return self._kernel.symbol(TICKS) if self._kernel.has(TICKS) else None

    @property
    def allocator(self) -> PageAllocator | None:
        return allocator(self._kernel, self._btf, self.facts)

    @property
    def text(self) -> tuple[int, int]:
        return self._kernel.symbol("_stext"), self._kernel.symbol("_etext")


def _running_banners(memory: KernelMemory, text_base: int) -> Iterator[tuple[int, bytes]]:
    """Yield (address, text) of each version line ("Linux version ...") in the memory around
    text_base.

    Some of these lines may be copies of the running kernel's version line, such as in the kernel's
    log.

    Args:
        text_base: running address at which the kernel's executable mappings begin. This is the
            start of its image only once the kernel has protected its text, late in boot.
    """
    tail = b""
    for low in range(text_base - SEARCH, text_base + SEARCH, CHUNK):
        try:
            chunk = tail + memory.read(low, CHUNK)
        except KinstError:
            tail = b""
            continue
        start = low - len(tail)
        for match in re.finditer(rb"Linux version [^\0\n]{1,240}[\0\n]", chunk):
            if b"%s" not in match[0]:
                yield start + match.start(), match[0][:-1]
        # A line that this chunk cuts short is found whole in the next one.
        tail = chunk[-_BANNER:] if b"Linux version" in chunk[-_BANNER:] else b""


def _slides(elf: Elf, text_base: int) -> list[int]:
    """Return the possible slides of the kernel (running address minus linked address), most likely
    first.

    Args:
        text_base: running address at which the kernel's executable mappings begin. On some ISAs
            this is _text, on others _stext or the first section with code.
    """
    code = [s.address for s in elf.sections if s.flags & SHF_EXECINSTR and s.address]
    linked = (elf.address("_text"), elf.address("_stext"), min(code, default=None))
    return list(dict.fromkeys(text_base - at for at in linked if at is not None))


def _build_id(kernel: LinuxMemory, notes: tuple[int, int]) -> str:
    """Return the build-id in the notes of the running kernel, or "" if the notes cannot be read or
    have no build-id.

    Args:
        notes: linked addresses [start, end) of the notes.
    """
    try:
        return build_id_in(kernel.read(notes[0] + kernel.slide & MASK, notes[1] - notes[0]))
    except KinstError:
        return ""


def _verified(memory: KernelMemory, elf: Elf, text_base: int) -> LinuxMemory:
    """Find the slide at which the build-id in memory equals the file's, and return the kernel's
    memory with that slide.

    Raises KinstError if there is no such slide. The error names the running kernel and the kernel
    of the file.
    """
    first, last = elf.address("__start_notes"), elf.address("__stop_notes")
    if first is None or last is None:
        raise KinstError(f"{elf.path}: no kernel notes (not a vmlinux?)")
    kernels = [LinuxMemory(memory, elf, slide) for slide in _slides(elf, text_base)]
    build_ids = [_build_id(kernel, (first, last)) for kernel in kernels]
    for kernel, running in zip(kernels, build_ids, strict=True):
        if running and running == elf.build_id:
            return kernel
    running = next((build_id for build_id in build_ids if build_id), "")
    banner = elf.address("linux_banner")
    name = re.split(rb"[\0\n]", elf.read(banner, _BANNER))[0] if banner else b""
    other = b""
    for address, line in _running_banners(memory, text_base):
        other = other or line
        kernel = LinuxMemory(memory, elf, address - (banner or 0))
        if line == name and elf.build_id and _build_id(kernel, (first, last)) == elf.build_id:
            return kernel
    theirs = " ".join(other.decode("utf-8", "replace").split()[:3]) or "not known"
    ours = " ".join(name.decode("utf-8", "replace").split()[:3]) or elf.path
    raise KinstError(
        f"the running kernel is {theirs} (build-id {running or 'not found'}), "
        f"the file is {ours} (build-id {elf.build_id})",
        "give the vmlinux of the running kernel with --debug",
    )


def allocation_flag(kernel: LinuxMemory, name: str) -> int:
    """Return the bits of a flag of memory allocations, by its name; 0 if the kernel does not tell
    them.

    Source: mm/debug.c, gfpflag_names[] (since Linux 4.6): struct trace_print_flags has a flag's
    bits and the address of its name, which is 0 in the last element.
    """
    if not kernel.has(_FLAGS):
        return 0
    table = kernel.symbol(_FLAGS)
    for flag in range(table, table + _MOST_FLAGS * _FLAG_SIZE, _FLAG_SIZE):
        text = kernel.number(flag + 8)
        if not text:
            break
        if kernel.text(text, len(name) + 1) == name:
            return kernel.number(flag)
    return 0


def _has_panicked(kernel: LinuxMemory) -> bool:
    """Return whether the kernel has panicked, as far as that is known.

    Source: kernel/panic.c, panic_cpu is -1 (PANIC_CPU_INVALID) until the first panic() (since Linux
    4.5, commit subject "panic, x86: Fix re-entrance problem due to panic on NMI").
    """
    if not kernel.has(_PANIC_CPU):
        return False
    try:
        return kernel.read(kernel.symbol(_PANIC_CPU), 4) != b"\xff" * 4
    except KinstError:
        return False


def _refuse_panicked(kernel: LinuxMemory) -> None:
    """Raise TargetError if the kernel has panicked, since nothing runs in a panicked kernel that
    could be traced."""
    if _has_panicked(kernel):
        raise TargetError(
            f"{_PANICKED}: nothing runs in it", "its console says why; start the guest again"
        )


def attach(
    memory: KernelMemory,
    image: DebugInfo,
    text_base: int | None,
    arch: IsaFacts,
    isa: Isa,
    *,
    cache: Path | None = None,
    hook_bugs: bool = False,
    notified: bool = False,
    booting: int = 0,
    time: int | None = None,
) -> Linux:
    """Examine a running Linux kernel, and return a System for it.

    Args:
        image: the kernel's vmlinux.
        text_base: running address at which the kernel's executable mappings begin, from which the
            slide (KASLR) is found; None to take the linked address of _text.
        arch: facts about Linux on the kernel's ISA.
        isa: the kernel's ISA.
        cache: folder for saved indexes; None for kinst's own.
        hook_bugs: whether the caller will hook facts.bug_hook, so that BUG and WARN traps may be
            planted; otherwise they are refused.
        notified: whether breakpoints reach kinst by a die notifier, so that nothing is hooked.
        booting: number of CPUs of a machine whose kernel is at the beginning of its boot; 0 for a
            kernel that is up.
        time: what D's timestamp shows now, in ns; None if it shows what the kernel's clock shows.

    Raises KinstError if the file is another kernel's, or has no symbols or no BTF; TargetError if
    the kernel has panicked.
    """
    elf = image.elf
    linked = elf.address("_text")
    if linked is None:
        raise KinstError(f"{elf.path}: no symbol _text", "a Linux vmlinux is needed")
    kernel = _verified(memory, elf, linked if text_base is None else text_base)
    _refuse_panicked(kernel)
    btf = open_btf(elf, cache or cache_folder())
    if btf is None:
        raise KinstError(
            f"{elf.path}: no .BTF section: kinst cannot tell where task_struct's members lie",
            "it needs a kernel built with CONFIG_DEBUG_INFO_BTF",
        )
    facts, ahead = gather(kernel, btf, arch, booting), 0
    if time is not None and facts.clock is not None:
        ahead = time - facts.clock.now_ns
        facts = gather(kernel, btf, arch, ahead=ahead)
    if not hook_bugs:
        facts = replace(facts, bug_hook=0)
    if notified:
        facts = replace(facts, fault_hook=0)
    return Linux(
        kernel, btf, facts, arch, image, isa, notified=notified, booting=bool(booting), ahead=ahead
    )
