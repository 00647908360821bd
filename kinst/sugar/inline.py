"""Entries and exits of the inlined copies of a function.

The entry of a copy is the address that debug information gives (kinst/core/inline.py). A return is
every edge that leaves the copy in the flow graph of the function around it:

- A copy consists of the instructions in its ranges that can run only after its entry. The compiler
  also gives a copy instructions that it moved before the entry, and duplicates that control reaches
  without passing it; control that runs these has not entered.
- The caller's instructions may run between two of the copy's, since the compiler mixes them.
  Control has not left as long as it comes back to the copy without passing its entry.
- Control that comes to the entry again ends one stay and begins the next.

So every run has as many returns as entries, except for stays that have not ended. A copy in one
piece that is entered at its start is left exactly by the instructions with a successor outside of
its ranges. Calls come back, so they are none of these, unless they are the last instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.inline import InlineCopy
from kinst.core.kernel import Kernel
from kinst.core.probe import Function
from kinst.sugar.graph import OUTSIDE, Edge, Graph

MOVES = 8  # nodes in which a replacement for a refused entry is looked for

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CopyRegion:
    """The copies of an inline function that share one entry."""

    entry: int  # running address
    ranges: Ranges  # running addresses, none empty
    copies: int
    within: tuple[str, ...]  # the inline functions that the first copy is nested in


@dataclass(frozen=True, slots=True)
class CopyExit:
    """An instruction that leaves a copy."""

    address: int
    condition: str = ""  # a D expression that holds if it leaves; "" if it always does


@dataclass(frozen=True, slots=True)
class Stay:
    """The nodes of a graph in which control is inside a region."""

    entry: int  # the node by which control enters
    nodes: frozenset[int]  # empty if no instruction begins at the entry, as the kernel rewrote it
    mixed: bool  # the nodes include code of the caller
    around: bool  # the region's ranges include code that is reached without passing the entry


@dataclass(frozen=True, slots=True)
class Regions:
    regions: tuple[CopyRegion, ...]  # in the order of the debug information
    empty: int  # copies without code


def regions_of(copies: Iterable[InlineCopy]) -> Regions:
    """Return the copies that have code, those of one entry as one region."""
    regions: dict[int, CopyRegion] = {}
    empty = 0
    for copy in copies:
        ranges = tuple((low, high) for low, high in copy.ranges if low < high)
        if copy.entry is None or not ranges:
            empty += 1
            continue
        entry = copy.entry
        old = regions.get(entry)
        if old is None:
            regions[entry] = CopyRegion(entry, ranges, 1, copy.within)
        else:
            ranges = tuple(dict.fromkeys((*old.ranges, *ranges)))
            regions[entry] = CopyRegion(entry, ranges, old.copies + 1, old.within)
    return Regions(tuple(regions.values()), empty)


def graphs_of(regions: Sequence[CopyRegion], kernel: Kernel) -> dict[int, Graph]:
    """Return the graph of the function around each region, by the region's entry; entries outside
    of every function are left out."""
    whole: dict[int, tuple[Sequence[Function], list[CopyRegion]]] = {}
    for region in regions:
        function = kernel.at(region.entry)
        if function is not None:
            parts = kernel.parts(function)
            whole.setdefault(parts[0].address, (parts, []))[1].append(region)
    dead_ends = dead_ends_of(kernel) if whole else frozenset[int]()
    graphs = {}
    for parts, inside in whole.values():
        cuts = {r.entry for r in inside} | {a for r in inside for pair in r.ranges for a in pair}
        alone = {
            r.entry for r in inside if not any(low <= r.entry < high for low, high in r.ranges)
        }
        graph = Graph(kernel, parts, cuts, alone, dead_ends)
        graphs.update({region.entry: graph for region in inside})
    return graphs


def dead_ends_of(kernel: Kernel) -> frozenset[int]:
    """Return the addresses of functions that never return."""
    addresses: set[int] = set()
    for name in kernel.dead_ends():
        try:
            addresses.update(f.address for f in kernel.find("", name))
        except KinstError:  # the name is ambiguous
            continue
    return frozenset(addresses)


def stay(region: CopyRegion, graph: Graph) -> Stay:
    """Find the nodes in which control is inside the region."""
    entry = graph.node_at(region.entry)
    if entry is None:
        return Stay(-1, frozenset(), False, False)
    in_ranges = graph.nodes_in(region.ranges)
    reached = graph.reached(graph.root, entry)
    inside = in_ranges - reached - {entry}
    todo = list(inside)
    while todo:
        for node in graph.before[todo.pop()]:
            if node != entry and node not in inside and node not in reached:
                inside.add(node)
                todo.append(node)
    nodes = frozenset(inside | {entry})
    return Stay(entry, nodes, not nodes <= in_ranges | {entry}, bool(in_ranges & reached))


def never(address: int) -> bool:
    """Refuse no address, as if every instruction could be planted."""
    return False


def entry_place(entry: int, graph: Graph, refused: Callable[[int], bool] = never) -> int | None:
    """Return the address to plant for an entry: the entry itself or, if that is refused, the next
    instruction that runs exactly as often; None if there is none."""
    node = graph.node_at(entry)
    if node is None:
        return None
    for _ in range(MOVES):
        for address in graph.instructions(node):
            if not refused(address):
                return address
        edges = graph.edges[node]
        if len(edges) != 1 or edges[0].to == OUTSIDE or edges[0].condition:
            return None
        node = edges[0].to
        if len(graph.before[node]) != 1 or node == graph.root:
            return None
    return None


def exits(stay: Stay, graph: Graph, refused: Callable[[int], bool] = never) -> list[CopyExit]:
    """Return every exit, by address, with its condition.

    If an instruction that leaves sometimes cannot be planted (it is inside of an exclusive
    sequence), or D cannot tell whether it will leave (it may fault), the exit is the instruction
    after it, provided no other edge leads there. Otherwise an instruction that cannot be planted
    (mostly a static key's) is taken out of the copy, with everything that can only follow it:
    control leaves by coming to it, so there are still as many returns as entries.
    """
    inside = set(stay.nodes)
    while True:
        leaving, stuck = _exits(inside, stay.entry, graph, refused)
        if not stuck or inside == {stay.entry}:
            return sorted(leaving, key=lambda one: one.address)
        for node in stuck:
            inside -= inside if node == stay.entry else graph.reached(node, stay.entry)
            inside.add(stay.entry)


def _exits(
    inside: Collection[int], entry: int, graph: Graph, refused: Callable[[int], bool]
) -> tuple[list[CopyExit], list[int]]:
    """Return the exits of these nodes, and the nodes with an exit for which there is no site."""
    leaving = _edges_out(inside, entry, graph)
    exits_found: list[CopyExit] = []
    asked = set[int]()
    todo = sorted(leaving)
    while todo:
        node = todo.pop()
        ways = leaving[node]
        if not ways or len(ways) == len(graph.edges[node]) or _is_clear(node, ways, graph, refused):
            continue
        for to in {graph.edges[node][k].to for k in ways} - asked:
            asked.add(to)
            place = _site_after(to, inside, graph, refused)
            if place is None:
                continue
            exits_found.append(CopyExit(place))
            for one in graph.before[to]:
                leaving[one] -= {k for k, e in enumerate(graph.edges[one]) if e.to == to}
                todo.append(one)
    stuck = []
    for node, ways in sorted(leaving.items()):
        edges = graph.edges[node]
        if len(ways) < len(edges):
            # A fault whose fix-up code others lead to as well is not seen.
            ways = {k for k in ways if not edges[k].fault}
        place = _place(node, entry, len(ways) == len(edges), graph, refused)
        told = len(ways) == len(edges) or all(edges[k].known for k in ways)
        if ways and place is not None and (told or any(e.fault for e in edges)):
            condition = _condition(edges, ways) if place == graph.last[node] else ""
            exits_found.append(CopyExit(place, condition))
        elif ways:
            stuck.append(node)
    return exits_found, stuck


def _is_clear(
    node: int, ways: Collection[int], graph: Graph, refused: Callable[[int], bool]
) -> bool:
    """Whether a probe at a node's last instruction can tell that one of these edges is taken."""
    told = all(graph.edges[node][k].known for k in ways)
    return told and not refused(graph.last[node])


def _site_after(
    to: int, inside: Collection[int], graph: Graph, refused: Callable[[int], bool]
) -> int | None:
    """Return the address to plant in the node that an edge leads to; None if nodes outside lead
    there, too."""
    if to == OUTSIDE or to in inside or to == graph.root:
        return None
    if any(node not in inside for node in graph.before[to]):
        return None
    return entry_place(graph.starts[to], graph, refused)


def _place(
    node: int, entry: int, always: bool, graph: Graph, refused: Callable[[int], bool]
) -> int | None:
    """Return the address to plant in a node that control leaves: its last instruction or, if every
    edge leaves, an earlier one; for the entry node, the instruction that replaces the entry."""
    if not refused(graph.last[node]):
        return graph.last[node]
    if not always:
        return None
    before = [a for a in graph.instructions(node) if not refused(a)]
    if before:
        return before[-1]
    return entry_place(graph.starts[node], graph, refused) if node == entry else None


def _condition(edges: Sequence[Edge], ways: Collection[int]) -> str:
    """Return the D expression that holds if one of these edges is taken, "" if one always is.

    A computed jump without known targets leaves the copy if it leaves the function.
    """
    conditions = [e.condition for e in edges]
    leaving = [conditions[k] for k in sorted(ways)]
    staying = [c for k, c in enumerate(conditions) if k not in ways]
    if len(leaving) == 1:
        return leaving[0] if staying or len(edges) == 1 else ""
    if not staying or "" in leaving:
        return ""
    if len(staying) < len(leaving):
        return f"!({' || '.join(f'({c})' for c in dict.fromkeys(staying))})"
    return " || ".join(f"({c})" for c in dict.fromkeys(leaving))


def _edges_out(inside: Collection[int], entry: int, graph: Graph) -> dict[int, set[int]]:
    """Return the indexes of the edges that lead out, for each node that has any."""
    leaving = {}
    for node in inside:
        out = {k for k, e in enumerate(graph.edges[node]) if e.to not in inside or e.to == entry}
        if out:
            leaving[node] = out
    return leaving
