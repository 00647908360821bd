"""Rules for planting in the Linux kernel's own code: which code is never planted, and why.

After boot, the kernel changes its text only at jump labels, static calls and ftrace's nops. It
rewrites alternatives, paravirtual calls, retpolines and return thunks before the first process
runs, and never again; kinst plants this code like any other code. It rewrites lock prefixes only if
it booted with one CPU and then gets a second CPU. It leaves out a prefix that kinst has patched:
the byte there is not the one that boot wrote.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.core.probe import Function
from kinst.core.words import COLD, MASK
from kinst.image.function_table import FunctionTable
from kinst.systems.linux.ftrace import MANY, Ftrace
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.special_names import (
    HOOKED,
    NAME_REASONS,
    NOTIFIED_REASONS,
    REGION_REASONS,
)
from kinst.systems.linux.tables import KernelTables, Spans, spans

U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

JUMP_LABEL = "the kernel rewrites it: a jump label (static key)"
STATIC_CALL = "the kernel rewrites it: a static call"
BUG = "it is a BUG or WARN trap, which the kernel knows by its address"
CHANGED = "its live bytes are not the file's: something else has patched it"
NOT_FINAL = "boot replaces the code around it (alternatives), and may leave no instruction here"
FIXUP = "it may fault on purpose, and the kernel's fault lookup cannot be hooked"


class KernelRules:
    """Rules for planting in the code of one running kernel, except the code of its modules."""

    def __init__(self, kernel: LinuxMemory, tables: KernelTables, table: FunctionTable,
                 ftrace: Ftrace, names: IsaFacts, *, notified: bool = False,
                 booting: bool = False) -> None:  # fmt: skip
        """Store the sources of the rules.

        Args:
            notified: whether breakpoints reach kinst by a die notifier instead of a hook. If so,
                some functions are refused that a hook would allow.
            booting: whether the kernel is at the beginning of its boot. Probes are then breakpoints
                that are not written into its code, so they are allowed in init code and at code
                that the kernel rewrites later. If boot replaces several bytes, as for an
                alternative, a probe is allowed only at the first byte: perhaps no instruction
                begins at any other byte afterwards.
        """
        self._booting = booting
        self._notified = notified
        self._kernel = kernel
        self._tables = tables
        self._functions = table
        self._ftrace = ftrace
        self._names = names

    @cached_property
    def _regions(self) -> list[tuple[int, int, str]]:
        slide = self._kernel.slide
        return [
            (r.start + slide & MASK, r.end + slide & MASK, REGION_REASONS[r.name])
            for r in self._tables.regions
            if r.name in REGION_REASONS and not (self._booting and r.name == "init")
        ]

    @cached_property
    def _by_address(self) -> dict[int, str]:
        """Reasons why single functions may not be planted, by the function's running address."""
        reasons: dict[int, str] = {}
        for linked in self._tables.blacklist.tolist():
            function = self._functions.at(linked + self._kernel.slide & MASK)
            if function is not None:
                reasons[function.address] = "it is on the kernel's own do-not-probe list"
        for name, reason in {
            **NAME_REASONS,
            **(NOTIFIED_REASONS if self._notified else {}),
            **dict.fromkeys(self._names.trap_hooks, HOOKED),
        }.items():
            for function in self._functions.lookup(name):
                reasons[function.address] = reason
        return reasons

    def function(self, function: Function) -> str:
        """Return why no instruction of a kernel function may be planted, or "" if instructions may
        be planted."""
        for start, end, reason in self._regions:
            if start <= function.address < end:
                return reason
        if function.address in self._by_address:
            return self._by_address[function.address]
        # The compiler moves a function's unlikely part out of the function's section.
        parent, dot, _ = function.name.partition(COLD)
        if dot:
            for whole in self._functions.lookup(parent):
                reason = self.function(whole)
                if reason:
                    return f"it is a part of {parent}: {reason}"
        return ""

    def _spans(self, start: U64, size: U64) -> Spans:
        return spans(start + np.uint64(self._kernel.slide & MASK), size)

    def _points(self, start: U64, size: int) -> Spans:
        return self._spans(start, np.full(len(start), size, dtype=np.uint64))

    @cached_property
    def _rewritten(self) -> list[tuple[str, Spans]]:
        tables = self._tables
        return [
            (JUMP_LABEL, self._spans(tables.jump_labels.start, tables.jump_labels.size)),
            (STATIC_CALL, self._spans(tables.static_calls.start, tables.static_calls.size)),
        ]

    @cached_property
    def _bugs(self) -> Spans:
        return self._points(self._tables.bugs, 2)

    @cached_property
    def _exceptions(self) -> Spans:
        return self._points(self._tables.exceptions, 1)

    @cached_property
    def _ftrace_sites(self) -> Spans:
        return _live(self._ftrace.sites, self._ftrace.size)

    @cached_property
    def _final(self) -> list[Spans]:
        """Spans of code, at running addresses, that boot may have rewritten: they may differ from
        the file."""
        tables, before = self._tables, self._ftrace.layout.before
        return [
            self._spans(tables.alternatives.start, tables.alternatives.size),
            self._spans(tables.paravirt.start, tables.paravirt.size),
            self._points(tables.retpolines, 6),
            self._points(tables.returns, 5),
            self._points(tables.calls, 5),
            self._points(tables.seals, 4),
            self._locks,
            _live(self._ftrace.sites - np.uint64(before), before),
        ]

    def has_fixup(self, address: int) -> bool:
        """Return whether the instruction at a running address has an exception-table entry."""
        return address in self._fixups

    @cached_property
    def _fixups(self) -> frozenset[int]:
        return frozenset(self._exceptions.start.tolist())

    def is_bug(self, address: int) -> bool:
        """Return whether a running address is in a BUG or WARN trap instruction."""
        starts, ends = self._bug_spans
        at = bisect_right(starts, address)
        return at > 0 and address < ends[at - 1]

    @cached_property
    def _bug_spans(self) -> tuple[list[int], list[int]]:
        """Starts and ends of the trap instructions, in order; they do not overlap."""
        return self._bugs.start.tolist(), (self._bugs.start + self._bugs.size).tolist()

    def sites(
        self, sites: Sequence[tuple[int, int]], fault_hook: bool, bug_hook: bool
    ) -> list[str]:
        """Return why each instruction may not be planted, "" for an instruction that may, in the
        order of `sites`.

        Args:
            sites: (running address, size) of each instruction.
            fault_hook: whether faults of displaced instructions can be reported at the original
                address.
            bug_hook: whether BUG and WARN traps can be reported at the original address.
        """
        reasons = [""] * len(sites)
        if not sites:
            return reasons
        address = np.array([a for a, _ in sites], dtype=np.uint64)
        size = np.array([s for _, s in sites], dtype=np.uint64)
        if self._booting:
            one = np.ones(len(address), dtype=np.uint64)
            for where in self._final:
                inside = spans(where.start + np.uint64(1), where.size - np.uint64(1))
                self._mark(reasons, inside.overlaps(address, one), NOT_FINAL)
        for reason, where in () if self._booting else self._rewritten:
            self._mark(reasons, where.overlaps(address, size), reason)
        if not bug_hook:
            self._mark(reasons, self._bugs.overlaps(address, size), BUG)
        if not fault_hook:
            one = np.ones(len(address), dtype=np.uint64)
            self._mark(reasons, self._exceptions.overlaps(address, one), FIXUP)
        at_ftrace = self._ftrace_sites.overlaps(address, size)
        boot = np.zeros(len(address), dtype=np.bool_)
        for where in self._final:
            boot |= where.overlaps(address, size)
        asking = ~boot & ~at_ftrace
        many = np.count_nonzero(at_ftrace) > MANY
        flags = self._ftrace.flags_now() if many else None
        for i, live, linked in self._bytes(address, size, at_ftrace, asking):
            if at_ftrace[i]:
                reasons[i] = reasons[i] or self._ftrace.refusal(*sites[i], live, flags) or ""
            elif not reasons[i] and not self._slid(live, linked):
                reasons[i] = CHANGED
        return reasons

    def at_call_sites(self, sites: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
        """Return, for each (address, size) in the order of `sites`, whether the instruction
        overlaps a call site of ftrace."""
        address = np.array([a for a, _ in sites], dtype=np.uint64)
        size = np.array([s for _, s in sites], dtype=np.uint64)
        return self._ftrace_sites.overlaps(address, size)

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
        """Return, for each (address, size) in the order of `sites`, whether the kernel itself may
        overwrite the instruction after boot.

        Call sites of ftrace do not count, since Ftrace.claims() keeps ftrace from writing them.
        Lock prefixes count: boot replaces them if there is one CPU, and the kernel restores them
        when a second CPU comes.
        """
        address = np.array([a for a, _ in sites], dtype=np.uint64)
        size = np.array([s for _, s in sites], dtype=np.uint64)
        rewritten = self._locks.overlaps(address, size)
        for _, where in self._rewritten:
            rewritten |= where.overlaps(address, size)
        return rewritten

    @cached_property
    def _locks(self) -> Spans:
        return self._points(self._tables.locks, 1)

    @staticmethod
    def _mark(reasons: list[str], which: npt.NDArray[np.bool_], reason: str) -> None:
        for i in np.flatnonzero(which).tolist():
            reasons[i] = reasons[i] or reason

    def _bytes(
        self, address: U64, size: U64, always: Bools, different: Bools
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (index, live bytes, the file's bytes) of each instruction that is selected. The
        code of neighbouring instructions is read together.

        Args:
            address: running address of each instruction.
            size: size of each instruction.
            always: for each instruction, True to select it.
            different: for each instruction, True to select it if its live bytes differ from the
                file's.
        """
        order = np.argsort(address, kind="stable")
        there = address[order]
        at = 0
        while at < len(order):
            start = int(there[at])
            end = int(np.searchsorted(there, np.uint64(min(start + _TOGETHER, MASK))))
            run = order[at : max(end, at + 1)]
            at += len(run)
            offset = (address[run] - np.uint64(start)).astype(np.int64)
            end_offset = offset + size[run].astype(np.int64)
            length = int(end_offset.max())
            now, then = self._kernel.read(start, length), self._file(start, length)
            asked = always[run] | different[run]
            if len(then) == length:
                wrong = np.frombuffer(now, np.uint8) != np.frombuffer(then, np.uint8)
                before = np.concatenate([[0], np.cumsum(wrong)])
                asked = always[run] | (different[run] & (before[end_offset] > before[offset]))
            rows = run[asked].tolist(), offset[asked].tolist(), end_offset[asked].tolist()
            for k, low, high in zip(*rows, strict=True):
                yield k, now[low:high], then[low:high]

    def _file(self, address: int, size: int) -> bytes:
        try:
            return self._kernel.elf.read(address - self._kernel.slide & MASK, size)
        except KinstError:
            return b""

    def _slid(self, live: bytes, linked: bytes) -> bool:
        """Return whether live bytes and the file's bytes differ only by 32- or 64-bit addresses
        that KASLR relocated.

        KASLR adds the slide to absolute addresses. Per-CPU variables do not move, so KASLR
        subtracts the slide from distances to them.
        """
        slide = self._kernel.slide
        return bool(slide) and len(live) == len(linked) and _relocated(live, linked, slide, 2)


_TOGETHER = 1 << 16  # bytes of code that are read at once


def _live(start: U64, size: int) -> Spans:
    """Return a span of `size` bytes at each of these running addresses."""
    return spans(start, np.full(len(start), size, dtype=np.uint64))


def _relocated(live: bytes, linked: bytes, slide: int, fields: int) -> bool:
    """Return whether KASLR can have turned the file's bytes `linked` into the live bytes `live` by
    relocating at most `fields` fields of 4 or 8 bytes."""
    first = next((i for i, (a, b) in enumerate(zip(live, linked, strict=True)) if a != b), None)
    if first is None:
        return True
    if not fields:
        return False
    for width in (4, 8):
        # The slide is a multiple of 2 MB: a field's first differing byte is its third.
        for at in range(max(0, first - 3), min(first, len(linked) - width) + 1):
            old = int.from_bytes(linked[at : at + width], "little")
            for delta in (slide, -slide):
                new = (old + delta & (1 << 8 * width) - 1).to_bytes(width, "little")
                if live[at : at + width] == new and _relocated(
                    live[at + width :], linked[at + width :], slide, fields - 1
                ):
                    return True
    return False
