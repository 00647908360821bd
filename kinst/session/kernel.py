"""Running kernel as providers see it: functions by name, and the live instructions of functions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import translate
from functools import cached_property
from itertools import islice, pairwise
from typing import Protocol

import numpy as np

from kinst.core.columns import (
    FLOW_KINDS,
    FOLLOWING,
    U16,
    Columns,
    Flows,
    Scanned,
    TrampolineBatch,
    concatenated,
    distinct,
    instructions_of,
    joined_flows,
)
from kinst.core.displaced import Refused
from kinst.core.errors import AmbiguousError, UnmappedError
from kinst.core.instruction import Flow, Instruction, JumpTable
from kinst.core.isa import Isa
from kinst.core.kernel import Exits
from kinst.core.probe import Function, Gap, Site
from kinst.core.system import SystemCall, Tracepoint, TracepointSite
from kinst.core.words import COLD, MASK
from kinst.patch.flows import BRANCH, CALL, INDIRECT, JUMP, RETURN, TRAP, flows_of
from kinst.session.report import MANY_PROBES

_GLOB = re.compile(r"[*?\[]")
_ORDINAL = re.compile(r"(.+)@([0-9]+)\Z")
REACHED = 1 << 26  # bytes that a direct jump reaches in every ISA that displaces instructions
MOST_ENTRIES = 1024  # entries read of a jump table whose code does not say how many it has
SUGGESTION_SPREAD = 3  # how much longer or shorter than the wrong name a suggestion may be


FIRST = 3  # instructions in a function's beginning
BEGINNING = 20  # bytes of a function's first instruction, and of a landing pad before it
# These bytes at a function's start may be a landing pad, so a jump to an address in them, even from
# the function itself, may be a tail call.
LANDING_SIZE = 8
NEXT, LANDING = map(FLOW_KINDS.index, FLOW_KINDS[:2])
_RETURN = Flow("return", falls_through=False)
SCANNED = 512  # functions or sites that are decoded at once
# Two functions at most this far apart are read at once; bytes of one such read.
READ_GAP, READ_MOST = 4096, 1 << 20


class Data(Protocol):
    """Source of kernel memory: a machine, or an ELF file in place of one."""

    def read(self, address: int, size: int) -> bytes: ...


class KernelSystem(Protocol):
    """Part of core.system.System that RunningKernel uses."""

    def code(self, address: int, size: int) -> bytes: ...
    def functions(self) -> Sequence[Function]: ...
    def lookup(self, name: str) -> Sequence[Function]: ...
    def glob(self, pattern: str) -> Sequence[Function]: ...
    def counterpart(self, name: str) -> str: ...
    def function_at(self, address: int) -> Function | None: ...
    def refusals(self, function: Function) -> str: ...
    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> Sequence[str]: ...
    def fixup(self, address: int) -> int | None: ...
    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]: ...
    def is_fatal(self, address: int) -> bool: ...
    def dead_ends(self) -> Sequence[str]: ...
    def system_calls(self) -> Sequence[SystemCall]: ...
    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]: ...
    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]: ...


class RunningKernel:
    """Implementation of core.kernel.Kernel over a target and its system, which caches its
    answers.
    """

    def __init__(
        self,
        target: Data,
        system: KernelSystem,
        isa: Isa,
        among: Collection[int] | None = None,
        *,
        is_inlined: Callable[[str], bool | None] | None = lambda _: False,
        progress: Callable[[str, float | None], None] | None = None,
    ) -> None:
        """Begin without reading anything.

        Args:
            target: memory of the kernel.
            among: addresses of the functions that find() may return, None for all.
            is_inlined: tells whether the function with a name has inlined copies, or returns None
                if this is not known yet; None if no debug information tells it.
            progress: called with the name of long work and the part of it that is done, 0 to 1;
                None to call nothing.
        """
        self._progress = progress
        self._among = among
        self._is_inlined = is_inlined
        self._target = target
        self._system = system
        self.isa = isa
        self._instructions: dict[int, Sequence[Instruction]] = {}
        self._beginnings: dict[int, Sequence[Instruction]] = {}
        self._code: dict[int, bytes] = {}
        self._columns: dict[int, Columns] = {}
        self._flow_columns: dict[int, Flows] = {}
        self._marks: dict[int, int] = {}  # by address, of sites that were scanned alone
        self._seen_whole = set[int]()  # functions whose instructions were searched for sequences
        self._unsafe: dict[int, str] = {}
        self._rerun_starts: dict[int, int] = {}
        self._flows: dict[int, Sequence[Flow]] = {}
        self._at: dict[int, Function] = {}
        self._paddings: dict[bytes, int] = {}
        self._parts: dict[int, Sequence[Function]] = {}
        self._computed: dict[int, Sequence[int]] = {}

    def find(self, module: str, function: str) -> Sequence[Function]:
        found = self._found(module, function)
        among = self._among
        return found if among is None else [f for f in found if f.address in among]

    def _found(self, module: str, function: str) -> Sequence[Function]:
        in_module = re.compile(translate(module)).match if module else lambda _: True
        if _GLOB.search(function):
            return _numbered(f for f in self._system.glob(function) if in_module(f.module))
        ordinal = _ORDINAL.match(function)
        plain = ordinal.group(1) if ordinal else function
        same = _numbered(f for f in self._system.lookup(plain) if in_module(f.module))
        if ordinal:
            same = [f for f in same if f.name == function]
        if len(same) > 1:
            raise AmbiguousError(
                f'"{function}" names {len(same)} functions: ' + ", ".join(map(self._where, same)),
                f"choose one: kinst:{_named(same[0])}:",
                [_named(f) for f in same],
            )
        return same

    def _where(self, function: Function) -> str:
        return f"{_named(function)} at {function.address:#x}"

    def suggest(self, function: str) -> str:
        spread = range(len(function) - SUGGESTION_SPREAD, len(function) + SUGGESTION_SPREAD + 1)
        if (ordinal := _ORDINAL.match(function)) and (same := self._system.lookup(ordinal[1])):
            return f"choose one: {', '.join(map(_named, _numbered(same)))}"
        if counterpart := self._system.counterpart(function):
            return f"here: {counterpart}"
        inlined = self._is_inlined(function) if self._is_inlined else None
        inline_probes = f"kinst::{function}:entry and kinst::{function}:return"
        if inlined:
            return f"it is inline: {inline_probes}"
        names = {f.name for f in self._system.functions()}
        # Names that gcc gives to variants of a function: NAME.isra.0, NAME.constprop.0,
        # NAME.part.0.
        made = sorted(n for n in names if n.startswith(f"{function}.") and not n.endswith(COLD))
        if made:
            return f"the compiler has made {' and '.join(made[:3])} of it"
        near = [n for n in names if len(n) in spread and n[:1] == function[:1]]
        # Names of the function in a newer kernel: __kmalloc_noprof.
        longer = sorted(n for n in names if n.startswith(f"{function}_"))
        longer = sorted(longer, key=len)[:2]
        close = list(dict.fromkeys([*longer, *get_close_matches(function, near, 3, 0.7)]))[:3]
        meant = [f"did you mean {' or '.join(close)}?"] if close else []
        if self._is_inlined is None:
            meant.append("no debug information says which functions are inline")
        elif inlined is None:
            meant.append(f"if it is inline: {inline_probes}")
        return " ".join(meant)

    def instructions(self, function: Function) -> Sequence[Instruction]:
        known = self._instructions.get(function.address)
        if known is None:
            known = tuple(self.isa.decode(self.code(function), function.address))
            self._instructions[function.address] = known
            self._bound(function)
        return known

    def beginning(self, function: Function) -> Sequence[Instruction]:
        at = function.address
        known = self._instructions.get(at) or self._beginnings.get(at)
        if known is None:
            if at in self._columns:
                known = tuple(instructions_of(self._columns[at].take(slice(FIRST))))
            else:
                known = tuple(islice(self.isa.decode(self.code(function)[:BEGINNING], at), FIRST))
            self._beginnings[at] = known
        return known

    def columns(self, functions: Sequence[Function]) -> Scanned:
        new = {f.address: f for f in functions if f.address not in self._columns}
        for some in _batches(list(new.values()), SCANNED):
            self.fetch(some)
            scanned = self.isa.scan([(f.address, self.code(f)) for f in some])
            bounds = scanned.bounds.tolist()
            for f, low, high in zip(some, bounds, bounds[1:], strict=False):
                self._columns[f.address] = scanned.columns.take(slice(low, high))
        found = [self._columns[f.address] for f in functions]
        return Scanned(concatenated(found), np.cumsum([0, *map(len, found)]))

    def gaps(self, functions: Sequence[Function]) -> Sequence[Gap]:
        some = _batches(functions, SCANNED)
        return [gap for functions in some for gap in self._gaps(functions)]

    def _gaps(self, functions: Sequence[Function]) -> Iterator[Gap]:
        scanned = self.columns(functions)
        low = np.array([f.address for f in functions], np.uint64)
        high = low + np.array([len(self.code(f)) for f in functions], np.uint64)
        first, last = scanned.bounds[:-1], scanned.bounds[1:]
        # A gap is between the end of an instruction, or the function's start, and the next
        # instruction, or the function's end.
        ends = np.insert(scanned.columns.after, first, low)
        starts = np.insert(scanned.columns.address, last, high)
        of = np.repeat(np.arange(len(functions)), last - first + 1)
        rows = np.flatnonzero(ends != starts)
        for k, end, start in zip(
            of[rows].tolist(), ends[rows].tolist(), starts[rows].tolist(), strict=True
        ):
            function, code = functions[k], self.code(functions[k])
            at, to = end - function.address, start - function.address
            at += self._padding(code[at:to])
            if at < to:  # the gap has more than padding
                yield Gap(function, at, to - at, self.isa.undecoded(code[at:]))

    def _padding(self, code: bytes) -> int:
        """Return how many bytes of a gap are padding (Isa.padding()).

        Results are cached by the gap's bytes, since many gaps have the same bytes.
        """
        if code not in self._paddings:
            self._paddings[code] = self.isa.padding(code)
        return self._paddings[code]

    def flow_columns(self, functions: Sequence[Function]) -> tuple[Scanned, Flows]:
        new = [f for f in functions if f.address not in self._flow_columns]
        for some in _batches(new, SCANNED):
            bounds, flows = self._new_flows(some)
            for f, low, high in zip(some, bounds, bounds[1:], strict=False):
                self._flow_columns[f.address] = flows.take(slice(low, high))
        found = [self._flow_columns[f.address] for f in functions]
        return self.columns(functions), joined_flows(found)

    def _new_flows(self, functions: Sequence[Function]) -> tuple[Sequence[int], Flows]:
        """Return where control goes from each instruction of some functions, as (bounds, flows).

        `flows` has the instructions of all functions, in the functions' order; `bounds` has the
        index in `flows` of each function's first instruction (Scanned.bounds).
        """
        scanned = self.columns(functions)
        columns, flows = scanned.columns, flows_of(scanned.columns, self.isa)
        kind, falls, target, fault = flows.kind, flows.falls, flows.target, flows.fault
        first = frozenset(scanned.bounds.tolist())
        for k in np.flatnonzero(np.isin(kind, (CALL, INDIRECT)) & (target == 0)).tolist():
            if k not in first:
                flow = self.isa.pair_flow(*instructions_of(columns.take(slice(k - 1, k + 1))))
                if flow is not None:
                    kind[k], falls[k] = FLOW_KINDS.index(flow.kind), flow.falls_through
                    target[k] = flow.target or 0
        fixup = self._system.fixup
        fault[:] = [fixup(at) is not None for at in columns.address.tolist()]
        for k in np.flatnonzero((kind == TRAP) & falls & ~fault).tolist():
            falls[k] = not self._system.is_fatal(int(columns.address[k]))
        thunks = np.array(sorted(self._thunks), np.uint64)
        for k in np.flatnonzero((kind == JUMP) & np.isin(target, thunks) & ~fault).tolist():
            flow = self._thunks[int(target[k])]
            kind[k], falls[k] = FLOW_KINDS.index(flow.kind), flow.falls_through
            target[k] = flow.target or 0
        return scanned.bounds.tolist(), flows

    def exits(self, functions: Sequence[Function]) -> Sequence[Exits]:
        work, found = f"finding the probes of {len(functions):,} functions", list[Exits]()
        progress = self._progress if len(functions) >= MANY_PROBES else None
        for some in _batches(functions, SCANNED):
            if progress is not None:
                progress(work, len(found) / len(functions))
            found += self._exits(some)
        if progress is not None:
            progress(work, 1.0)
        return found

    def _exits(self, functions: Sequence[Function]) -> list[Exits]:
        parts_of: dict[int, list[Function]] = {}
        for one in functions:
            whole = self.parts(one) if COLD in one.name else (one,)
            parts_of[one.address] = list(whole)
        leaving: dict[int, Sequence[tuple[Instruction, Flow]]] = {}
        new = {part.address: part for parts in parts_of.values() for part in parts}
        while new:
            leaving |= zip(new, self._leaving(list(new.values())), strict=True)
            new = {}
            for parts in parts_of.values():
                if COLD not in parts[0].name:
                    new |= {part.address: part for part in self._add_cold(parts, leaving)}
        found = []
        for function in functions:
            parts = parts_of[function.address]
            self._parts[function.address] = parts
            found.append(
                Exits(parts, [(p, one, flow) for p in parts for one, flow in leaving[p.address]])
            )
        return found

    def _add_cold(
        self, parts: list[Function], leaving: Mapping[int, Sequence[tuple[Instruction, Flow]]]
    ) -> Iterator[Function]:
        """Append to `parts` the cold parts that branches of the function lead to; yield the parts
        whose branches are not in `leaving` yet.

        The caller adds the branches of the yielded parts to `leaving`, and calls this again with
        the same `parts`, until no part is yielded.

        Args:
            parts: the function, and those of its cold parts that are known.
            leaving: by a part's address, the instructions by which control may leave the part.
        """
        for part in parts:  # grows meanwhile
            if part.address not in leaving:
                yield part
                continue
            for _, flow in leaving[part.address]:
                cold = self._cold_part(parts, flow)
                if cold is not None:
                    parts.append(cold)

    def _leaving(
        self, functions: Sequence[Function]
    ) -> Iterator[Sequence[tuple[Instruction, Flow]]]:
        """Yield, for each function, the instructions by which control may leave it."""
        scanned, flows = self.flow_columns(functions)
        columns, kind, target = scanned.columns, flows.kind, flows.target
        counts = np.diff(scanned.bounds)
        low = np.repeat(np.array([f.address for f in functions], np.uint64), counts)
        high = np.repeat(np.array([f.address + f.size for f in functions], np.uint64), counts)
        branches = np.isin(kind, (JUMP, BRANCH)) & flows.direct
        away = (target < low) | (target >= high) | (target <= low + np.uint64(LANDING_SIZE))
        ends = np.isin(kind, (BRANCH, NEXT, LANDING)) & (columns.after >= high)
        some = np.isin(kind, (RETURN, INDIRECT)) | branches & away | ends
        # Two instructions may be one branch, so each comes with the one before it.
        rows = np.flatnonzero(some)
        several = distinct(np.concatenate([rows, np.maximum(rows - 1, 0)]))
        at_row = dict(zip(several.tolist(), instructions_of(columns.take(several)), strict=True))
        returns = (kind == RETURN) & ~flows.fault
        for first, last in pairwise(scanned.bounds.tolist()):
            found = []
            for k in (first + np.flatnonzero(some[first:last])).tolist():
                one = at_row[k]
                flow = _RETURN
                if not returns[k]:
                    before = at_row[k - 1] if k > first else None
                    flow = self._seen_through(self._flow(before, one), one.address)
                found.append((one, flow))
            yield found

    def marks(self, sites: Sequence[Site]) -> U16:
        """Return the mark of each site's instruction: a number in which Isa.scan() notes facts
        about the instruction (Columns.marks).

        By the marks, the ISA answers questions about many instructions without decoding them. An
        instruction with mark 0 has to be decoded.

        If columns() has scanned the site's whole function, the mark is from that scan. Otherwise
        this scans the site's instruction alone.
        """
        addresses = np.array([s.address for s in sites], np.uint64)
        marks = np.zeros(len(sites), np.uint16)
        of = {s.function.address: s.function for s in sites}
        whole = [self._columns[at] for at in sorted(of) if at in self._columns]
        known = concatenated(whole)
        if len(known):
            at = np.minimum(np.searchsorted(known.address, addresses), len(known) - 1)
            marks = np.where(known.address[at] == addresses, known.marks[at], 0)
        alone = [k for k, s in enumerate(sites) if s.function.address not in self._columns]
        for k in alone:
            marks[k] = self._marks.get(sites[k].address, 0)
        apart = [k for k in alone if sites[k].address not in self._marks]
        for low in range(0, len(apart), SCANNED):
            some = apart[low : low + SCANNED]
            self.fetch([sites[k].function for k in some])
            pieces = []
            for k in some:
                site = sites[k]
                end = site.offset + len(site.code) + FOLLOWING
                pieces.append((site.address, self.code(site.function)[site.offset : end]))
            scanned = self.isa.scan(pieces)
            first = scanned.bounds[:-1]
            there = first < scanned.bounds[1:]
            marks[np.array(some)[there]] = scanned.columns.marks[first[there]]
            self._marks.update((sites[k].address, int(marks[k])) for k in some)
        return marks.astype(np.uint16)

    def fetch(self, functions: Sequence[Function]) -> None:
        """Read the code of functions into the cache, with one read for functions that are close
        together.
        """
        new = {f.address: f for f in functions if f.address not in self._code}
        for run in _neighbours([new[at] for at in sorted(new)]):
            start = run[0].address
            end = max(f.address + f.size for f in run)
            with suppress(UnmappedError):
                code = self._system.code(start, end - start)
                for f in run:
                    self._code[f.address] = code[f.address - start :][: f.size]

    def code(self, function: Function) -> bytes:
        """Return the live bytes of a function; empty if the kernel has unmapped them (boot
        code).
        """
        known = self._code.get(function.address)
        if known is None:
            try:
                known = self._system.code(function.address, function.size)
            except UnmappedError:
                known = b""
            self._code[function.address] = known
        return known

    def flows(self, function: Function) -> Sequence[Flow]:
        known = self._flows.get(function.address)
        if known is None:
            instructions = self.instructions(function)
            known = tuple(
                self._seen_through(self._flow(before, one), one.address)
                for before, one in zip((None, *instructions), instructions, strict=False)
            )
            self._flows[function.address] = known
        return known

    def _flow(self, before: Instruction | None, one: Instruction) -> Flow:
        flow = self.isa.flow(one.code, one.address)
        if before is None or flow.target is not None or flow.kind not in ("call", "indirect"):
            return flow
        return self.isa.pair_flow(before, one) or flow

    def _seen_through(self, flow: Flow, address: int) -> Flow:
        fixup = self._system.fixup(address)
        if fixup is not None:
            return replace(flow, fault=fixup)
        if flow.kind == "trap" and flow.falls_through and self._system.is_fatal(address):
            return replace(flow, falls_through=False)
        if flow.kind == "jump" and flow.target in self._thunks:
            return self._thunks[flow.target]
        return flow

    @cached_property
    def _thunks(self) -> dict[int, Flow]:
        """Control flow of a jump to a thunk, by the thunk's address.

        A jump to a retpoline is an indirect jump; a jump to a return thunk is a return.
        """
        found: dict[int, Flow] = {}
        for pattern in self.isa.thunks:
            for function in self._system.glob(pattern):
                flow = self.isa.thunk(function.name)
                if flow is not None:
                    found[function.address] = flow
        return found

    def computed(self, parts: Sequence[Function]) -> Sequence[int]:
        known = self._computed.get(parts[0].address)
        if known is None:
            known = self._table_targets(parts)
            self._computed[parts[0].address] = known
        return known

    def _table_targets(self, parts: Sequence[Function]) -> Sequence[int]:
        if not any(flow.kind == "indirect" for part in parts for flow in self.flows(part)):
            return ()
        # No jump table leads to the function's entry.
        places = {i.address for part in parts for i in self.instructions(part)} - {parts[0].address}
        tables = [t for part in parts for t in self.isa.jump_tables(self.instructions(part))]
        tables = [t for t in tables if len(self._entries(t, 2, places)) == 2]
        starts = sorted({t.address for t in tables})
        found = set[int]()
        for table in tables:
            if table.count:
                found.update(self._entries(table, table.count, places, whole=True))
                continue
            following = starts[bisect_right(starts, table.address) :]
            room = (following[0] - table.address) // table.size if following else MOST_ENTRIES
            found.update(self._entries(table, min(room, MOST_ENTRIES), places))
        return sorted(found)

    def _entries(
        self, table: JumpTable, count: int, places: Collection[int], *, whole: bool = False
    ) -> list[int]:
        """Return the branch targets in the first `count` entries of a jump table.

        Args:
            places: the only addresses that a jump table of this function can lead to.
            whole: whether the table is known to have `count` entries. If it may have fewer, it ends
                before the first entry that leads elsewhere; otherwise such entries are left out.
        """
        found = []
        raw = self._data(table.address, count * table.size, table.size)
        for at in range(0, len(raw) - table.size + 1, table.size):
            entry = int.from_bytes(raw[at : at + table.size], "little", signed=bool(table.base))
            target = table.base + table.scale * entry & MASK
            if target in places:
                found.append(target)
            elif not whole:
                break
        return found

    def _data(self, address: int, size: int, step: int) -> bytes:
        """Return kernel memory from an address on, up to the first unmapped piece of `step` bytes.

        Args:
            size: bytes wanted.
        """
        try:
            return self._target.read(address, size)
        except UnmappedError:
            found = b""
        for at in range(address, address + size, step):
            try:
                found += self._target.read(at, step)
            except UnmappedError:
                break
        return found

    def refused(
        self, sites: Sequence[tuple[int, int]], columns: Columns | None = None
    ) -> Sequence[bool]:
        """Return, for each site (address, size), whether the system or the ISA refuses to
        plant it.

        Args:
            columns: the instructions of the sites, as Isa.scan() has found them. If None, the
                instructions are read from memory one by one, which is slower.
        """
        movable = [False] * len(sites) if columns is None else self._movable(columns)

        def code(k: int) -> bytes:
            if columns is None:
                return self._system.code(*sites[k])
            return columns.code[k, : columns.size[k]].tobytes()

        reasons = self._system.site_refusals(sites)
        before = [(start := self._rerun_starts.get(a, a), a - start) for a, _ in sites]
        spans = [span for span in before if span[1]]
        changed = self._system.site_refusals(spans)
        rerun = {span for span, reason in zip(spans, changed, strict=True) if reason}
        return [
            bool(reason or address in self._unsafe or span in rerun)
            or self._faults(*span)
            or (not movable[k] and self._stays(code(k), address))
            for k, ((address, _), reason, span) in enumerate(
                zip(sites, reasons, before, strict=True)
            )
        ]

    def function_refusal(self, function: Function) -> str:
        return self._system.refusals(function)

    def _movable(self, columns: Columns) -> Sequence[bool]:
        """Return, for each instruction, True if its mark (Columns.marks) is enough to know that
        the ISA can displace it.

        This saves time: one computation serves all instructions. False means that the mark is not
        enough, and that _stays() has to decode the instruction.
        """
        if not len(columns):
            return ()
        near = int(columns.address.min()) - REACHED & MASK
        batch = TrampolineBatch.without_work(columns, near)
        movable: list[bool] = (
            (columns.marks != 0) & (self.isa.trampoline_sizes(batch) >= 0)
        ).tolist()
        return movable

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return self._system.left_to_tracer(sites)

    def _faults(self, address: int, size: int) -> bool:
        """Return whether the kernel expects an instruction at [address, address + size) to fault:
        its exception table has an entry for the instruction.
        """
        return any(self._system.fixup(a) is not None for a in range(address, address + size))

    def _stays(self, code: bytes, address: int) -> bool:
        """Return whether the ISA refuses to displace an instruction for any reason but the
        distance: scratch is assumed to be in reach of branches.

        False for an ISA without trampolines: there, no instruction needs to be displaced.

        Args:
            code: bytes of the instruction.
            address: address of the instruction.
        """
        moved = self.isa.displace(code, address, address - REACHED & MASK)
        return isinstance(moved, Refused) and not self.isa.no_trampolines

    def forget(self, functions: Iterable[Function]) -> None:
        for function in functions:
            self._instructions.pop(function.address, None)
            self._flows.pop(function.address, None)

    def has_sequences(self, function: Function) -> bool:
        return self.isa.has_sequences(self.code(function))

    def unsafe(self, function: Function, address: int) -> str:
        self._bound(function)
        return self._unsafe.get(address, "")

    def _bound(self, function: Function) -> None:
        """Find the instructions of a function that belong to a sequence such as LL/SC, and cache
        them.

        Some cannot be planted (Isa.unsafe()). Others can be planted if the trampoline runs earlier
        instructions again (Isa.rerun_starts()). A second call for a function does nothing.
        """
        if function.address not in self._seen_whole:
            self._seen_whole.add(function.address)
            if self.isa.has_sequences(self.code(function)):
                instructions = self._instructions.get(function.address) or self._plain(function)
                self._unsafe.update(self.isa.unsafe(instructions))
                self._rerun_starts.update(self.isa.rerun_starts(instructions))

    def _plain(self, function: Function) -> Sequence[Instruction]:
        """Return a function's instructions without their disassembly, which takes longest."""
        scanned = self.isa.scan([(function.address, self.code(function))])
        return instructions_of(scanned.columns)

    def dead_ends(self) -> Sequence[str]:
        return self._system.dead_ends()

    def system_calls(self) -> Sequence[SystemCall]:
        return self._system.system_calls()

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return self._system.tracepoints(name)

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        return self._system.tracepoint_sites(name)

    def parts(self, function: Function) -> Sequence[Function]:
        known = self._parts.get(function.address)
        if known is None:
            stem, cold, _ = function.name.partition(COLD)
            mains = _numbered(self._system.lookup(stem)) if cold else []
            candidates = [self._moved(main) for main in mains]
            known = next(
                (c for c in candidates if function.address in [p.address for p in c]), None
            )
            known = known or self._moved(function)
            self._parts[function.address] = known
        return known

    def _moved(self, function: Function) -> tuple[Function, ...]:
        """Return a function, then its cold parts: functions named FUNCTION.cold or the like, to
        which the function or another cold part jumps.
        """
        parts = [function]
        for part in parts:
            for flow in self.flows(part):
                cold = self._cold_part(parts, flow)
                if cold is not None:
                    parts.append(cold)
        return tuple(parts)

    def _cold_part(self, parts: Sequence[Function], flow: Flow) -> Function | None:
        """Return the cold part of a function that an instruction branches to; None if it branches
        elsewhere, or to one of `parts`.

        Args:
            parts: the function, and the cold parts that are known.
            flow: where control goes from the instruction.
        """
        target = flow.target
        if target is None or flow.kind not in ("jump", "branch"):
            return None
        if any(p.address <= target < p.address + p.size for p in parts):
            return None
        there = self._system.function_at(target)
        stem = parts[0].name.split("@")[0] + COLD
        return self.at(target) if there is not None and there.name.startswith(stem) else None

    def at(self, address: int) -> Function | None:
        function = self._system.function_at(address)
        if function is None:
            return None
        if function.address not in self._at:
            same = [f for f in self._system.lookup(function.name) if f.module == function.module]
            for one in _numbered(same):
                self._at[one.address] = one
        return self._at.get(function.address, function)

    def live(self, address: int, size: int) -> bytes:
        """Return bytes of the kernel's text as they are now, not as they are cached."""
        return self._system.code(address, size)

    def rerun_prefix(self, function: Function, address: int) -> bytes:
        self._bound(function)
        start = self._rerun_starts.get(address, address) - function.address
        return self.code(function)[start : address - function.address]

    def following(self, function: Function, address: int, size: int) -> bytes:
        start = address - function.address
        return self.code(function)[start : start + size]


def _batches(functions: Sequence[Function], most: int) -> Iterator[Sequence[Function]]:
    for low in range(0, len(functions), most):
        yield functions[low : low + most]


def _neighbours(functions: Sequence[Function]) -> Iterator[Sequence[Function]]:
    """Yield groups of functions that are close enough to be read with one read of memory.

    Args:
        functions: in the order of their addresses.
    """
    low = 0
    for k, function in enumerate(functions):
        before = functions[k - 1] if k > low else None
        far = before is not None and function.address > before.address + before.size + READ_GAP
        if far or function.address + function.size > functions[low].address + READ_MOST:
            if k > low:
                yield functions[low:k]
            low = k
    if functions:
        yield functions[low:]


def _named(function: Function) -> str:
    return f"{function.module}:{function.name}"


def _numbered(functions: Iterable[Function]) -> list[Function]:
    """Return functions with @1, @2, ... added to the names that several functions of one module
    have, in the order of their addresses. So the module and the name stand for one function.
    """
    same_name: dict[tuple[str, str], list[Function]] = {}
    for one in functions:
        same_name.setdefault((one.name, one.module), []).append(one)
    found: list[Function] = []
    for same in same_name.values():
        ordered = sorted(same, key=lambda f: f.address)
        more = len(same) > 1
        found += [replace(f, name=f"{f.name}@{k}") if more else f for k, f in enumerate(ordered, 1)]
    return found
