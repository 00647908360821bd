"""Where the copies of an inline function begin, and where control leaves them.

The entry of a copy is the address that debug information gives (kinst/core/inline.py).  A
return is every way out of it, by the flow graph of the function that it is in:

- A copy's code is what its ranges hold and what can run only after its entry.  The compiler
  also gives a copy instructions that it moved to before the entry, and second sets of
  instructions that are reached around it; control that comes that way has not entered.
- Between two of its instructions the caller's may run, since the compiler mixes them.  As long
  as control comes back to the copy without going through its entry, it has not left.
- Going to the entry again ends one stay and begins the next one.

So in every run the returns are as many as the entries, apart from stays that have not ended.
A copy in one piece that is entered at its start is left exactly by the instructions whose
successors lie outside of its ranges; calls come back and so are none of them, unless they are
the last instruction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.inline import InlineCopy
from kinst.core.kernel import Kernel
from kinst.core.probe import Function
from kinst.sugar.graph import NEVER_RETURN, Graph

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The copies that share one entry.  Addresses are running ones; ranges have no empty ones.

    within: names of the inline functions that the first of them is nested in."""

    entry: int
    ranges: Ranges
    copies: int
    within: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """An instruction that leaves a copy, when the D expression holds ("" always)."""

    address: int
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Stay:
    """The nodes of a graph in which control is inside a region, and its entry among them.

    No nodes: no instruction begins at the entry (the kernel rewrote it).  mixed: code of the
    caller is among them.  around: the ranges hold code that is reached without the entry.
    """

    entry: int
    nodes: frozenset[int]
    mixed: bool
    around: bool


@dataclass(frozen=True, slots=True)
class Regions:
    """regions: in the order of the debug information.  empty: copies without code."""

    regions: tuple[Region, ...]
    empty: int


def regions_of(copies: Iterable[InlineCopy], slide: int) -> Regions:
    """The copies that have code, those of one entry together."""
    found: dict[int, Region] = {}
    empty = 0
    for copy in copies:
        ranges = tuple((low + slide, high + slide) for low, high in copy.ranges if low < high)
        if copy.entry is None or not ranges:
            empty += 1
            continue
        entry = copy.entry + slide
        known = found.get(entry)
        if known is None:
            found[entry] = Region(entry, ranges, 1, copy.within)
        else:
            ranges = tuple(dict.fromkeys((*known.ranges, *ranges)))
            found[entry] = Region(entry, ranges, known.copies + 1, known.within)
    return Regions(tuple(found.values()), empty)


def graphs_of(regions: Sequence[Region], kernel: Kernel) -> dict[int, Graph]:
    """The graph of the function around each region, by the region's entry; entries that no
    function covers are left out."""
    whole: dict[int, tuple[Sequence[Function], list[Region]]] = {}
    for region in regions:
        function = kernel.at(region.entry)
        if function is not None:
            parts = kernel.parts(function)
            whole.setdefault(parts[0].address, (parts, []))[1].append(region)
    dead_ends = _dead_ends(kernel) if whole else frozenset[int]()
    found = {}
    for parts, inside in whole.values():
        cuts = {r.entry for r in inside} | {a for r in inside for pair in r.ranges for a in pair}
        graph = Graph(kernel, parts, cuts, dead_ends)
        found.update({region.entry: graph for region in inside})
    return found


def _dead_ends(kernel: Kernel) -> frozenset[int]:
    found: set[int] = set()
    for name in NEVER_RETURN:
        try:
            found.update(f.address for f in kernel.find("", name))
        except KinstError:  # two of that name: neither is the known one
            continue
    return frozenset(found)


def stay(region: Region, graph: Graph) -> Stay:
    """Where control is inside the region."""
    entry = graph.node_at(region.entry)
    if entry is None:
        return Stay(-1, frozenset(), False, False)
    own = graph.nodes_in(region.ranges)
    reached = graph.reached(graph.root, entry)
    inside = own - reached - {entry}
    todo = list(inside)
    while todo:
        for node in graph.before[todo.pop()]:
            if node != entry and node not in inside and node not in reached:
                inside.add(node)
                todo.append(node)
    nodes = frozenset(inside | {entry})
    return Stay(entry, nodes, not nodes <= own | {entry}, bool(own & reached))


def exits(stay: Stay, graph: Graph) -> list[Exit]:
    """Every way out, by address; one that is taken only sometimes says when."""
    return _leaving(stay.nodes, stay.entry, graph)


def _leaving(inside: Collection[int], entry: int, graph: Graph) -> list[Exit]:
    found = []
    for node in sorted(inside):
        out = [e for e in graph.edges[node] if e.to not in inside or e.to == entry]
        if out:
            # A branch that leaves both ways leaves always.
            found.append(Exit(graph.last[node], out[0].condition if len(out) == 1 else ""))
    return found


def successors_outside(region: Region, graph: Graph) -> list[Exit]:
    """For comparison: every instruction of the ranges that has a successor outside of them."""
    return _leaving(graph.nodes_in(region.ranges), -2, graph)


def range_ends(region: Region, graph: Graph) -> list[Exit]:
    """For comparison: the last instruction of each range, which is how the paper (section V.D)
    finds the returns."""
    found = [graph.last_in(low, high) for low, high in region.ranges]
    return [Exit(a) for a in sorted({a for a in found if a is not None})]
