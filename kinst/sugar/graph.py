"""The flow graph of a function with its .cold parts, cut where inlined copies begin and end.

A node is a basic block: control enters it only at its first instruction. The rules for edges:

- A call continues after itself, unless the callee never returns: an edge back from panic() would
  give the graph paths that control never takes.
- A computed jump leads to the entries of the function's jump tables, and to every node without
  another predecessor. One edge too many makes a copy smaller; a missing one would put its entry in
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
    """An edge to a node, or out of the function."""

    to: int  # a node, or OUTSIDE
    condition: str = ""  # a D expression that holds if the edge is taken; "" if it always is
    # D can tell at the node's last instruction whether the edge is taken. It cannot if that
    # instruction may fault.
    known: bool = True
    fault: bool = False  # taken if the instruction faults


class Graph:
    """The flow graph of one function.

    Attributes:
        parts: the function, then its .cold parts.
        starts: the address of each node, ascending.
        last: the address of each node's last instruction.
        edges: each node's outgoing edges.
        before: each node's predecessors.
    """

    def __init__(
        self,
        kernel: Kernel,
        parts: Sequence[Function],
        cuts: Collection[int],
        alone: Collection[int],
        dead_ends: Collection[int],
    ) -> None:
        """
        Args:
            cuts: addresses at which a node must begin.
            alone: cuts whose node has one instruction only.
            dead_ends: addresses of functions that never return.
        """
        self.parts = tuple(parts)
        self._dead_ends = dead_ends
        instructions: dict[int, tuple[int, Flow]] = {}  # start -> (end, flow)
        self._padding = set[int]()
        for part in parts:
            for instruction, flow in zip(
                kernel.instructions(part), kernel.flows(part), strict=True
            ):
                instructions[instruction.address] = (instruction.end, flow)
                if kernel.isa.is_nop(instruction.code):
                    self._padding.add(instruction.address)
        self._addresses = sorted(instructions)
        self._flows = instructions
        leaders = {part.address for part in parts} | {c for c in cuts if c in instructions}
        # An entry outside of its copy's ranges is a node of one instruction.
        leaders |= {instructions[a][0] for a in alone if a in instructions}
        for address, following in pairwise([*self._addresses, 0]):
            end, flow = instructions[address]
            if flow.fault is not None:
                leaders |= {following, flow.fault}
            falls = flow.kind in ("next", "landing") or (
                flow.kind == "call" and self._returns(flow)
            )
            if not falls or end != following:
                # If they are not adjacent, padding or another function is between them.
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
        """Add the edges of computed jumps: to the targets in tables, and to nodes that no other
        edge leads to."""
        reached = {edge.to for edges in self.edges for edge in edges} | {self.root}
        heads = (n for n in range(len(self.starts)) if n not in reached)
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
        """Return the address of a node's last instruction."""
        if node + 1 < len(self.starts):
            at = bisect_left(self._addresses, self.starts[node + 1]) - 1
        else:
            at = len(self._addresses) - 1
        return self._addresses[at]

    def _edges(self, node: int) -> tuple[Edge, ...]:
        edges = self._plain_edges(node)
        fixup = self._index.get(self._flows[self.last[node]][1].fault or 0)
        if fixup is None:
            return edges
        return (
            *(replace(edge, known=False) for edge in edges),
            Edge(fixup, known=False, fault=True),
        )

    def _plain_edges(self, node: int) -> tuple[Edge, ...]:
        """Return a node's edges without faults and without the targets of jump tables."""
        end, flow = self._flows[self.last[node]]
        next_node = self._index.get(end, OUTSIDE)
        if flow.kind in ("jump", "branch"):
            assert flow.target is not None
            taken = Edge(self._index.get(flow.target, OUTSIDE), flow.condition)
            return (taken, Edge(next_node, flow.otherwise)) if flow.falls_through else (taken,)
        if flow.kind == "return":
            return (Edge(OUTSIDE),)
        if flow.kind == "indirect":
            elsewhere = self._elsewhere(flow.destination)
            out = Edge(OUTSIDE, elsewhere, bool(elsewhere))
            # An unknown instruction may fall through as well.
            return (out, Edge(next_node, known=False)) if flow.falls_through else (out,)
        if flow.kind == "call" and (not self._returns(flow) or next_node == OUTSIDE):
            # A call that is the last instruction of a function cannot return into it.
            return ()
        if flow.kind == "trap" and (not flow.falls_through or next_node == OUTSIDE):
            return ()
        return (Edge(next_node),)

    def _elsewhere(self, destination: str) -> str:
        """Return the condition on which an indirect jump leaves the function."""
        return " && ".join(
            f"({destination} < {p.address:#x} || {destination} >= {p.address + p.size:#x})"
            for p in self.parts
        ) if destination else ""  # fmt: skip

    def instructions(self, node: int) -> Sequence[int]:
        """Return the addresses of a node's instructions."""
        first = bisect_left(self._addresses, self.starts[node])
        return self._addresses[first : bisect_right(self._addresses, self.last[node])]

    def size(self, address: int) -> int:
        """Return the size of the instruction at an address, in bytes."""
        return self._flows[address][0] - address

    def node_at(self, address: int) -> int | None:
        """Return the node that begins at an address, or None."""
        return self._index.get(address)

    def nodes_in(self, ranges: Sequence[tuple[int, int]]) -> set[int]:
        """Return the nodes inside address ranges, whose ends have to be cuts."""
        nodes: set[int] = set()
        for low, high in ranges:
            nodes.update(range(bisect_left(self.starts, low), bisect_left(self.starts, high)))
        return nodes

    def is_instruction(self, address: int) -> bool:
        """Whether an instruction begins at an address."""
        return address in self._flows

    def reached(self, start: int, avoiding: int) -> set[int]:
        """Return the nodes that can be reached from `start` without passing `avoiding`."""
        if start == avoiding:
            return set()
        nodes, pending = {start}, [start]
        while pending:
            for edge in self.edges[pending.pop()]:
                if edge.to not in nodes and edge.to not in (OUTSIDE, avoiding):
                    nodes.add(edge.to)
                    pending.append(edge.to)
        return nodes
