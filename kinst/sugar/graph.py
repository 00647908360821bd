"""The flow graph of a function with its .cold parts, cut where inlined copies begin and end.

A node is a run of instructions that control enters only at the first.  The rules for edges:

- A call continues behind itself, unless the callee never returns: with an edge back from panic()
  the graph would have paths that nothing takes.
- A computed jump leads to the entries of the function's jump tables, and to every node without
  another predecessor.  One edge too many makes a copy smaller; a missing one would put its entry in
  the wrong place.
- An instruction that may fault on purpose also leads to its fix-up code, for the same reason.

Tested by tests/sugar/test_inline.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kinst.core.instruction import Flow
from kinst.core.kernel import Kernel
from kinst.core.probe import Function

OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge to a node, or to OUTSIDE of the function.

    condition: a D expression that holds when the edge is taken, "" if it always is.  known: D can
    tell at the node's last instruction whether the edge is taken; it cannot if that instruction may
    fault.  fault: the edge is taken when it does."""

    to: int
    condition: str = ""
    known: bool = True
    fault: bool = False


class Graph:
    """parts: the function, then the parts that the compiler moved elsewhere.  starts: the address
    of each node, ascending.  last: the address of each node's last instruction.  edges, before:
    each node's outgoing edges and its predecessors."""

    def __init__(
        self,
        kernel: Kernel,
        parts: Sequence[Function],
        cuts: Collection[int],
        alone: Collection[int],
        dead_ends: Collection[int],
    ) -> None:
        """cuts: addresses at which nodes must begin.  alone: cuts behind whose first instruction
        the next node must begin.  dead_ends: of functions that never return."""
        self.parts = tuple(parts)
        self._dead_ends = dead_ends
        instructions: dict[int, tuple[int, Flow]] = {}  # start -> (end, flow)
        self._padding = set[int]()
        for part in parts:
            for one, flow in zip(kernel.instructions(part), kernel.flows(part), strict=True):
                instructions[one.address] = (one.end, flow)
                if kernel.isa.is_nop(one.code):
                    self._padding.add(one.address)
        self._addresses = sorted(instructions)
        self._flows = instructions
        leaders = {part.address for part in parts} | {c for c in cuts if c in instructions}
        # Entries outside of their copy's ranges stand alone.
        leaders |= {instructions[a][0] for a in alone if a in instructions}
        for address, following in pairwise([*self._addresses, 0]):
            end, flow = instructions[address]
            if flow.fault is not None:
                leaders |= {following, flow.fault}
            on = flow.kind in ("next", "landing") or (flow.kind == "call" and self._returns(flow))
            if not on or end != following:
                # Between them is padding, or another function.
                leaders.add(following)
            if flow.kind in ("jump", "branch") and flow.target is not None:
                leaders.add(flow.target)
        computed = set(kernel.computed(self.parts))
        leaders |= computed
        self.starts = sorted(a for a in leaders if a in instructions)
        self.root = bisect_left(self.starts, parts[0].address)
        self._index = {start: node for node, start in enumerate(self.starts)}
        self.last = [self._last(node) for node in range(len(self.starts))]
        self.edges = [self._edges(node) for node in range(len(self.starts))]
        self._join_computed({self._index[a] for a in computed if a in self._index})
        self.before: list[list[int]] = [[] for _ in self.starts]
        for node, edges in enumerate(self.edges):
            for edge in edges:
                if edge.to != OUTSIDE:
                    self.before[edge.to].append(node)

    def _join_computed(self, targets: set[int]) -> None:
        """Add the ways of computed jumps: to what tables say, and to code that has no way to it."""
        led_to = {edge.to for edges in self.edges for edge in edges} | {self.root}
        heads = (n for n in range(len(self.starts)) if n not in led_to)
        targets = targets | {n for n in heads if not self._padding.issuperset(self.instructions(n))}
        for node, edges in enumerate(self.edges):
            flow = self._flows[self.last[node]][1]
            if flow.kind == "indirect":
                place = flow.destination
                self.edges[node] = (*edges, *(
                    Edge(to, f"{place} == {self.starts[to]:#x}" if place else "", bool(place))
                    for to in sorted(targets)
                ))  # fmt: skip

    def _returns(self, flow: Flow) -> bool:
        return flow.target not in self._dead_ends

    def _last(self, node: int) -> int:
        """The last instruction before the next node, or before a gap."""
        if node + 1 < len(self.starts):
            at = bisect_left(self._addresses, self.starts[node + 1]) - 1
        else:
            at = len(self._addresses) - 1
        return self._addresses[at]

    def _edges(self, node: int) -> tuple[Edge, ...]:
        found = self._plain_edges(node)
        fixup = self._index.get(self._flows[self.last[node]][1].fault or 0)
        if fixup is None:
            return found
        return (
            *(replace(edge, known=False) for edge in found),
            Edge(fixup, known=False, fault=True),
        )

    def _plain_edges(self, node: int) -> tuple[Edge, ...]:
        """Without faults, and without what computed jumps find in tables."""
        end, flow = self._flows[self.last[node]]
        going = self._index.get(end, OUTSIDE)
        if flow.kind in ("jump", "branch"):
            assert flow.target is not None
            taken = Edge(self._index.get(flow.target, OUTSIDE), flow.condition)
            return (taken, Edge(going, flow.otherwise)) if flow.falls_through else (taken,)
        if flow.kind == "return":
            return (Edge(OUTSIDE),)
        if flow.kind == "indirect":
            elsewhere = self._elsewhere(flow.destination)
            out = Edge(OUTSIDE, elsewhere, bool(elsewhere))
            # An instruction that is not known may go on as well.
            return (out, Edge(going, known=False)) if flow.falls_through else (out,)
        if flow.kind == "call" and (not self._returns(flow) or going == OUTSIDE):
            # Behind the last instruction of a function there is nothing to return to.
            return ()
        if flow.kind == "trap" and (not flow.falls_through or going == OUTSIDE):
            return ()
        return (Edge(going),)

    def _elsewhere(self, destination: str) -> str:
        """That an indirect jump leaves the function, as a condition."""
        return " && ".join(
            f"({destination} < {p.address:#x} || {destination} >= {p.address + p.size:#x})"
            for p in self.parts
        ) if destination else ""  # fmt: skip

    def instructions(self, node: int) -> Sequence[int]:
        """The addresses of a node's instructions."""
        first = bisect_left(self._addresses, self.starts[node])
        return self._addresses[first : bisect_right(self._addresses, self.last[node])]

    def size(self, address: int) -> int:
        """Bytes of the instruction at this address."""
        return self._flows[address][0] - address

    def node_at(self, address: int) -> int | None:
        """The node that begins at this address."""
        return self._index.get(address)

    def nodes_in(self, ranges: Sequence[tuple[int, int]]) -> set[int]:
        """The nodes inside address ranges; both ends of each were cuts."""
        found: set[int] = set()
        for low, high in ranges:
            found.update(range(bisect_left(self.starts, low), bisect_left(self.starts, high)))
        return found

    def is_instruction(self, address: int) -> bool:
        """Whether a live instruction begins here."""
        return address in self._flows

    def reached(self, start: int, avoiding: int) -> set[int]:
        """The nodes on the ways from `start` that do not go through another."""
        if start == avoiding:
            return set()
        found, todo = {start}, [start]
        while todo:
            for edge in self.edges[todo.pop()]:
                if edge.to not in found and edge.to not in (OUTSIDE, avoiding):
                    found.add(edge.to)
                    todo.append(edge.to)
        return found
