"""Entries and exits of the inlined copies of a function.

The entry of a copy is the address that debug information gives (kinst/core/inline.py). The returns
of a copy are the edges that leave it in the flow graph of the function that contains the copy:

- A copy consists of the instructions in its ranges that can run only after its entry. The ranges in
  the debug information also contain instructions that the compiler moved before the entry, and
  duplicates that control reaches without passing the entry. Control that runs these instructions
  has not entered the copy.
- The compiler mixes the copy's instructions with the caller's. Control in the caller's instructions
  has not left the copy if it comes back to the copy without passing the entry.
- If control comes to the entry again, one stay in the copy ends and the next begins.

So a copy has as many returns as entries, except for stays that have not ended. For a copy with a
single address range that is entered at its start, this is simple: its exits are the instructions
that can be followed by an instruction outside the range. Calls come back, so a call is an exit only
if it is the last instruction of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.inline import InlineCopy
from kinst.core.kernel import Kernel
from kinst.core.probe import Function
from kinst.sugar.graph import OUTSIDE, Edge, Graph

MOVES = 8  # number of nodes that are searched for a replacement of a refused entry

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CopyRegion:
    """Inlined copies of one function that control enters at the same instruction.

    The debug information may describe several copies with the same entry address. Control enters
    all of them at once, so kinst traces them as one copy that has the ranges of all.
    """

    entry: int  # address in the running kernel
    ranges: Ranges  # nonempty address ranges [low, high) in the running kernel
    copies: int  # number of copies
    within: tuple[str, ...]  # the inline functions that the first copy is nested in


@dataclass(frozen=True, slots=True)
class CopyExit:
    """A site at which control leaves an inlined copy."""

    address: int
    condition: str = ""  # a D expression that holds if control leaves; "" if control always leaves


@dataclass(frozen=True, slots=True)
class Stay:
    """The nodes of a flow graph in which control is inside an inlined copy."""

    entry: int  # the node by which control enters
    nodes: frozenset[int]  # empty if no instruction begins at the entry: the kernel rewrote it
    mixed: bool  # whether the nodes include code of the caller
    around: bool  # whether control can reach code in the region's ranges without passing the entry


@dataclass(frozen=True, slots=True)
class Regions:
    regions: tuple[CopyRegion, ...]  # in the order of the debug information
    empty: int  # number of copies without code


def regions_of(copies: Iterable[InlineCopy]) -> Regions:
    """Group inlined copies by their entry addresses, and leave out copies without code."""
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


def graphs_of(
    regions: Sequence[CopyRegion],
    kernel: Kernel,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[int, Graph]:
    """Return, for the entry address of each region, the flow graph of the function that contains
    the region. A region whose entry is in no function is left out.

    Args:
        progress: called with the part of the functions whose graphs are made, 0 to 1.
    """
    whole: dict[int, tuple[Sequence[Function], list[CopyRegion]]] = {}
    for region in regions:
        function = kernel.at(region.entry)
        if function is not None:
            parts = kernel.parts(function)
            whole.setdefault(parts[0].address, (parts, []))[1].append(region)
    dead_ends = dead_ends_of(kernel) if whole else frozenset[int]()
    graphs = {}
    for number, (parts, inside) in enumerate(whole.values()):
        progress(number / len(whole))
        cuts = {r.entry for r in inside} | {a for r in inside for pair in r.ranges for a in pair}
        alone = {
            r.entry for r in inside if not any(low <= r.entry < high for low, high in r.ranges)
        }
        graph = Graph(kernel, parts, cuts, alone, dead_ends)
        graphs.update({region.entry: graph for region in inside})
    return graphs


def dead_ends_of(kernel: Kernel) -> frozenset[int]:
    """Return the addresses of the kernel's functions that never return."""
    addresses: set[int] = set()
    for name in kernel.dead_ends():
        try:
            addresses.update(f.address for f in kernel.find("", name))
        except KinstError:  # the name is ambiguous
            continue
    return frozenset(addresses)


def stay(region: CopyRegion, graph: Graph) -> Stay:
    """Return the nodes of the flow graph in which control is inside the inlined copies of a
    region.
    """
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
    """Return False: the instruction at `address` can be planted. This is the default of the
    parameters named `refused`, which tell whether an instruction cannot be planted.
    """
    return False


def entry_address(entry: int, graph: Graph, refused: Callable[[int], bool] = never) -> int | None:
    """Return the address to plant for a copy's entry: the entry itself or, if it cannot be planted,
    the next instruction that runs exactly as often as the entry. None if there is no such
    instruction.

    Args:
        entry: address of the entry.
        refused: tells whether the instruction at an address cannot be planted.
    """
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
    """Return every exit of an inlined copy, sorted by address, each with the condition on which
    control leaves the copy.

    The usual exit is the last instruction of a node. If only some of the node's edges leave the
    copy, this instruction is unsuitable in two cases: it cannot be planted, or no D expression
    tells there which edge control will take. Then the exit is the instruction to which the edge
    leads, provided that no edge from outside the copy leads there.

    Sometimes neither instruction can be the exit, mostly at the instruction of a static key. Then
    the copy is made smaller: the node counts as outside the copy, and so do all nodes that control
    can reach from it without passing the copy's entry. So control leaves the smaller copy when it
    comes to this node, and there are still as many returns as entries.

    Args:
        stay: the nodes in which control is inside the copy.
        refused: tells whether the instruction at an address cannot be planted.
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
    """Return the exits of a copy that kinst can plant, and the nodes from which control can leave
    the copy without passing one of these exits.

    Args:
        inside: the nodes of the copy.
        entry: the node at the copy's entry.
        refused: tells whether the instruction at an address cannot be planted.
    """
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
            # If other edges lead to the fix-up code of a fault, the exit by this fault is missed.
            ways = {k for k in ways if not edges[k].fault}
        place = _exit_address(node, entry, len(ways) == len(edges), graph, refused)
        told = len(ways) == len(edges) or all(edges[k].known for k in ways)
        if ways and place is not None and (told or any(e.fault for e in edges)):
            condition = _condition(edges, ways) if place == graph.last[node] else ""
            exits_found.append(CopyExit(place, condition))
        elif ways:
            stuck.append(node)
    return exits_found, stuck


def _is_clear(
    node: int, edges_out: Collection[int], graph: Graph, refused: Callable[[int], bool]
) -> bool:
    """Return whether a probe at a node's last instruction can see control leave the inlined copy by
    some of the node's edges: the instruction can be planted, and a D expression tells there whether
    control will take one of these edges.

    Args:
        edges_out: indexes of the edges among the node's outgoing edges.
    """
    told = all(graph.edges[node][k].known for k in edges_out)
    return told and not refused(graph.last[node])


def _site_after(
    to: int, inside: Collection[int], graph: Graph, refused: Callable[[int], bool]
) -> int | None:
    """Return the address to plant in a node that control comes to directly after leaving a copy.
    None if no instruction there can be planted, or if control can also come to the node in another
    way than out of the copy. None also if `to` is in the copy or outside the function.

    Args:
        to: the node.
        inside: the nodes of the copy.
    """
    if to == OUTSIDE or to in inside or to == graph.root:
        return None
    if any(node not in inside for node in graph.before[to]):
        return None
    return entry_address(graph.starts[to], graph, refused)


def _exit_address(
    node: int, entry: int, always: bool, graph: Graph, refused: Callable[[int], bool]
) -> int | None:
    """Return the address to plant in a node from which control leaves the copy; None if no
    instruction is suitable.

    Usually this is the address of the node's last instruction. If that one cannot be planted, and
    every edge of the node leaves the copy, an earlier instruction of the node replaces it. If no
    instruction of the node can be planted and the node is the copy's entry, the instruction that
    replaces the entry (entry_address) also replaces the exit.

    Args:
        entry: the node at the copy's entry.
        always: whether every edge of the node leaves the copy.
    """
    if not refused(graph.last[node]):
        return graph.last[node]
    if not always:
        return None
    before = [a for a in graph.instructions(node) if not refused(a)]
    if before:
        return before[-1]
    return entry_address(graph.starts[node], graph, refused) if node == entry else None


def _condition(edges: Sequence[Edge], edges_out: Collection[int]) -> str:
    """Return a D expression that is true, at the end of a node, if control will leave the copy: if
    it will take one of the edges `edges_out`. "" if control always leaves the copy.

    A computed jump without a known jump table counts as leaving the copy only if it leaves the
    function.

    Args:
        edges: all edges of the node.
        edges_out: indexes of the edges that leave the copy.
    """
    conditions = [e.condition for e in edges]
    leaving = [conditions[k] for k in sorted(edges_out)]
    staying = [c for k, c in enumerate(conditions) if k not in edges_out]
    if len(leaving) == 1:
        return leaving[0] if staying or len(edges) == 1 else ""
    if not staying or "" in leaving:
        return ""
    if len(staying) < len(leaving):
        return f"!({' || '.join(f'({c})' for c in dict.fromkeys(staying))})"
    return " || ".join(f"({c})" for c in dict.fromkeys(leaving))


def _edges_out(inside: Collection[int], entry: int, graph: Graph) -> dict[int, set[int]]:
    """Return the edges that lead out of a copy. The result maps each node that has such edges to
    the indexes of these edges in Graph.edges.

    Args:
        inside: the nodes of the copy.
        entry: the node at the copy's entry. An edge back to the entry counts as leading out.
    """
    leaving = {}
    for node in inside:
        out = {k for k, e in enumerate(graph.edges[node]) if e.to not in inside or e.to == entry}
        if out:
            leaving[node] = out
    return leaving
