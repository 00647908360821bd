"""A kernel of a few hand-written functions, with debug information for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from kinst.core.columns import Columns, Scanned
from kinst.core.inline import FunctionDie, InlineCopy
from kinst.core.instruction import Flow, Instruction
from kinst.core.kernel import Exits
from kinst.core.probe import Function, Gap
from kinst.core.system import Tracepoint, TracepointSite
from kinst.isa import load

ISA = load("amd64")


def assemble(lines: Sequence[str], address: int) -> tuple[bytes, dict[str, int]]:
    """Return code and labels.

    Args:
        lines: each is "label:" or bytes in hexadecimal, in which >x8 and >x32 stand for the
            distance to label (or number) x from the instruction's end, in 1 and 4 bytes.
    """
    labels: dict[str, int] = {}
    sized: list[tuple[int, str]] = []
    at = address
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = at
            continue
        size = sum(
            (1 if w.endswith("/8") else 4) if w.startswith(">") else len(w) // 2
            for w in line.split()
        )
        sized.append((at, line))
        at += size
    code = b""
    for place, line in sized:
        piece = b""
        words = line.split()
        for word in words:
            if word.startswith(">"):
                name, _, bits = word[1:].partition("/")
                width = int(bits) // 8
                target = labels[name] if name in labels else int(name, 0)
                end = place + len(piece) + width
                piece += (target - end).to_bytes(width, "little", signed=True)
            else:
                piece += bytes.fromhex(word)
        code += piece
    return code, labels


@dataclass
class FakeKernel:
    """Implements core.kernel.Kernel over functions given as (name, address, lines)."""

    sources: Sequence[tuple[str, int, Sequence[str]]]
    forbidden: set[int] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)  # by function name
    targets: Sequence[int] = ()  # targets of computed jumps
    fixups: Mapping[int, int] = field(default_factory=dict)
    module: str = "vmlinux"
    call_sites: Collection[int] = ()  # sites that are left to the kernel's own tracer
    isa = ISA

    def __post_init__(self) -> None:
        self.functions: list[Function] = []
        self.code: dict[int, bytes] = {}
        self.labels: dict[str, int] = {}
        for name, address, lines in self.sources:
            code, labels = assemble(lines, address)
            self.labels |= {f"{name}.{k}": v for k, v in labels.items()} | {name: address}
            self.functions.append(Function(self.module, name, address, len(code)))
            self.code[address] = code

    def find(self, module: str, function: str) -> Sequence[Function]:
        return [
            f for f in self.functions
            if fnmatchcase(f.name, function) and (not module or fnmatchcase(f.module, module))
        ]  # fmt: skip

    def suggest(self, function: str) -> str:
        return ""

    def instructions(self, function: Function) -> Sequence[Instruction]:
        return list(ISA.decode(self.code[function.address], function.address))

    def beginning(self, function: Function) -> Sequence[Instruction]:
        return self.instructions(function)

    def fetch(self, functions: Sequence[Function]) -> None:
        pass

    def columns(self, functions: Sequence[Function]) -> Scanned:
        return ISA.scan([(f.address, self.code[f.address]) for f in functions])

    def exits(self, functions: Sequence[Function]) -> Sequence[Exits]:
        return [
            Exits(parts, [
                (part, one, flow)
                for part in parts
                for one, flow in zip(self.instructions(part), self.flows(part), strict=True)
            ])
            for parts in map(self.parts, functions)
        ]  # fmt: skip

    def gaps(self, functions: Sequence[Function]) -> Sequence[Gap]:
        return []

    def flows(self, function: Function) -> Sequence[Flow]:
        found = []
        for one in self.instructions(function):
            flow = ISA.flow(one.code, one.address)
            names = [f.name for f in self.functions if f.address == flow.target]
            flow = (ISA.thunk(names[0]) if names and flow.kind == "jump" else None) or flow
            found.append(replace(flow, fault=self.fixups.get(one.address)))
        return found

    def dead_ends(self) -> Sequence[str]:
        return ("panic",)

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return ()

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        return ()

    def computed(self, parts: Sequence[Function]) -> Sequence[int]:
        return self.targets

    def refused(
        self, sites: Sequence[tuple[int, int]], columns: Columns | None = None
    ) -> Sequence[bool]:
        return [address in self.forbidden for address, _ in sites]

    def function_refusal(self, function: Function) -> str:
        return self.refusals.get(function.name, "")

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return [address in self.call_sites for address, _ in sites]

    def parts(self, function: Function) -> Sequence[Function]:
        stem = function.name.partition(".cold")[0]
        return [
            *(f for f in self.functions if f.name == stem),
            *(f for f in self.functions if f.name.startswith(stem + ".cold")),
        ]

    def at(self, address: int) -> Function | None:
        return next((f for f in self.functions if f.address <= address < f.address + f.size), None)


def copy_of(
    function: str,
    entry: int | None,
    *ranges: tuple[int, int],
    caller: str = "f",
    within: tuple[str, ...] = (),
) -> InlineCopy:
    return InlineCopy(function, 0, 0, entry, ranges, "f.c", 1, within, caller)


@dataclass
class FakeIndex:
    """Implements core.inline.DebugIndex.

    Attributes:
        all_copies: inlined copies.
        dies: functions besides those that the copies name.
    """

    all_copies: Sequence[InlineCopy] = ()
    dies: Mapping[str, FunctionDie] = field(default_factory=dict)

    def functions(self, name: str) -> Sequence[FunctionDie]:
        return [self.dies[name]] if name in self.dies else []

    def copies(self, name: str) -> Sequence[InlineCopy]:
        return [c for c in self.all_copies if c.function == name]

    def inline_names(self) -> Sequence[str]:
        return sorted({c.function for c in self.all_copies})

    def copies_at(self, address: int) -> Sequence[InlineCopy]:
        return [c for c in self.all_copies if any(a <= address < b for a, b in c.ranges)]


def evaluate(condition: str, registers: Mapping[str, int]) -> bool:
    """Return the value of a D condition over regs[], by Python's operators, which mean the same
    here."""
    text = re.sub("!(?!=)", " not ", condition.replace("&&", " and ").replace("||", " or "))
    names = {f"R_{name}": name for name in registers}
    found: bool = eval(text, {"regs": dict(registers)} | names)
    return bool(found)
