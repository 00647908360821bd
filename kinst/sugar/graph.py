"""Flow graph of a function and its .cold parts, with a node boundary wherever an inlined copy
begins or ends.

A node is a basic block: control enters it only at its first instruction. The rules for edges:

- A call continues at the next instruction, unless the callee never returns: an edge after panic()
  would give the graph paths that control never takes.
- A computed jump leads to the branch targets in the function's jump tables, and to every node
  without another predecessor. An edge that control never takes does little harm: less code counts
  as part of an inlined copy. A missing edge does more harm: code that control reaches without
  passing the copy's entry counts as part of the copy. Also, if the entry cannot be planted, the
  instruction that replaces it may run more often than the entry.
- An instruction that may fault on purpose also leads to its fix-up code, for the same reason.

Tested by tests/sugar/test_inline.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from kinst.core.dataclass import dataclass
from kinst.core.instruction import Flow
from kinst.core.kernel import Kernel
from kinst.core.probe import Function

OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the flow graph from one node to another, or out of the function."""

    to: int  # a node, or OUTSIDE
    # A D expression that holds if the edge is taken; "" if the edge is always taken.
    condition: str = ""
    # Whether a D expression can tell, at the node's last instruction, that the edge is taken. It
    # cannot if this instruction may fault.
    known: bool = True
    fault: bool = False  # whether the edge is taken if the instruction faults


class Graph:
    """The flow graph of one function. Nodes are numbered from 0, in the order of their addresses.

    Attributes:
        parts: the function, then its .cold parts.
        starts: the address of each node, ascending.
        root: the node at the function's entry.
        last: the address of each node's last instruction.
        edges: the outgoing edges of each node.
        before: the predecessors of each node.
    """

    def __init__(
        self,
        kernel: Kernel,
        parts: Sequence[Function],
        cuts: Collection[int],
        alone: Collection[int],
        dead_ends: Collection[int],
    ) -> None:
        """Build the flow graph of a function.

        Args:
            kernel: the kernel.
            parts: the function, then its .cold parts.
            cuts: addresses at which a node must begin.
            alone: those of the cuts at which a node of only one instruction must begin.
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
        # If a copy's entry is outside its ranges, the entry is a node of one instruction.
        leaders |= {instructions[a][0] for a in alone if a in instructions}
        for address, following in pairwise([*self._addresses, 0]):
            end, flow = instructions[address]
            if flow.fault is not None:
                leaders |= {following, flow.fault}
            falls = flow.kind in ("next", "landing") or (
                flow.kind == "call" and self._returns(flow)
            )
            if not falls or end != following:
                # Between two instructions that are not adjacent is padding or another function.
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
        """Add the edges of computed jumps. They lead to the targets in jump tables, and to each
        node that no other edge leads to.

        Args:
            targets: the nodes that are targets in jump tables.
        """
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
        """Return a node's outgoing edges, apart from edges for faults and edges to targets in jump
        tables.
        """
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
        """Return a D expression that is true if an indirect jump leaves the function.

        Args:
            destination: D expression for the jump's target; "" if the target is not known. The
                result is then "" as well.
        """
        return " && ".join(
            f"({destination} < {p.address:#x} || {destination} >= {p.address + p.size:#x})"
            for p in self.parts
        ) if destination else ""  # fmt: skip

    def instructions(self, node: int) -> Sequence[int]:
        """Return the addresses of a node's instructions, ascending."""
        first = bisect_left(self._addresses, self.starts[node])
        return self._addresses[first : bisect_right(self._addresses, self.last[node])]

    def size(self, address: int) -> int:
        """Return the size in bytes of the instruction at an address."""
        return self._flows[address][0] - address

    def node_at(self, address: int) -> int | None:
        """Return the node that begins at an address; None if no node begins there."""
        return self._index.get(address)

    def nodes_in(self, ranges: Sequence[tuple[int, int]]) -> set[int]:
        """Return the nodes inside address ranges [low, high). No node may be partly inside: the
        ends of all ranges were given as cuts when the graph was built.
        """
        nodes: set[int] = set()
        for low, high in ranges:
            nodes.update(range(bisect_left(self.starts, low), bisect_left(self.starts, high)))
        return nodes

    def is_instruction(self, address: int) -> bool:
        """Return whether an instruction of the function begins at an address."""
        return address in self._flows

    def reached(self, start: int, avoiding: int) -> set[int]:
        """Return the nodes that control can reach from the node `start` without passing the node
        `avoiding`.
        """
        if start == avoiding:
            return set()
        nodes, pending = {start}, [start]
        while pending:
            for edge in self.edges[pending.pop()]:
                if edge.to not in nodes and edge.to not in (OUTSIDE, avoiding):
                    nodes.add(edge.to)
                    pending.append(edge.to)
        return nodes
