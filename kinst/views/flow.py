"""Counts of the edges of a function's flow graph, computed from counts of instructions.

A block's first instruction runs as often as the edges into the block are taken, and its last
instruction as often as the edges out of it. So each block gives two equations, one for the edges
into it and one for the edges out of it. The count of each edge is a variable of two equations: one
of the block where the edge starts, one of the block where it ends. The equations determine the
count of an edge unless the edge is part of a cycle of edges with unknown counts.

questions() chooses an edge of each cycle. The trace counts these edges itself: how often a branch's
condition held, or where an indirect jump went. solve() computes the counts of all other edges and
reports counts that do not add up.

A thread may be inside a call or a fault when a trace begins or ends. So the instructions of a block
may have different counts. A block that ends with a call has an additional edge, INSIDE, which
counts the threads that did not come back from the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from kinst.core.code import OUTSIDE, CodeBlock, FunctionCode
from kinst.core.dataclass import dataclass

# An edge: (block, number among the block's edges). ENTRY is the edge into the function;
# (block, INSIDE) stands for threads that did not come back from the block's last instruction.
EdgeKey = tuple[int, int]
ENTRY: EdgeKey = (OUTSIDE, 0)
INSIDE = -1


@dataclass(frozen=True, slots=True)
class Question:
    """An edge of the flow graph that a trace must count itself. The trace evaluates a D expression
    at the last instruction of the block where the edge starts: the condition under which control
    takes the edge, or the target of an indirect jump.

    Attributes:
        block: number of the block where the edge starts.
        edge: number of the edge among the block's edges; OUTSIDE to count all targets of an
            indirect jump.
        expression: a D expression for the condition of the edge, or for the target of the jump.
    """

    block: int
    edge: int
    expression: str


@dataclass(frozen=True)
class FlowCounts:
    """Counts of the instructions, blocks and edges of a function.

    Attributes:
        instructions: how often each instruction ran, by address; instructions that were not counted
            are missing.
        entries: how often the first counted instruction of each block ran; None if the block was
            not counted.
        exits: how often the last counted instruction of each block ran; None if the block was not
            counted.
        edges: how often each edge was taken; edges whose count is not known are missing.
        asked: the edges that the trace itself counted, to answer questions().
        mismatches: sentences about counts that do not add up.
    """

    instructions: Mapping[int, int]
    entries: Sequence[int | None]
    exits: Sequence[int | None]
    edges: Mapping[EdgeKey, int]
    asked: frozenset[EdgeKey]
    mismatches: tuple[str, ...] = field(default=())

    @property
    def entered(self) -> int | None:
        """How often the function was entered; None if that is not known."""
        return self.edges.get(ENTRY)


@dataclass(frozen=True, slots=True)
class _Link:
    """A variable of the flow equations: the count of an edge of the flow graph. An equation's name
    is (block, side), where side is "in", "out" or "both".

    Attributes:
        key: the edge.
        source: the equation of the block where the edge starts; None for an edge from outside of
            the function.
        target: the equation of the block where the edge ends; None for an edge to the outside.
    """

    key: EdgeKey
    source: tuple[int, str] | None
    target: tuple[int, str] | None


def questions(code: FunctionCode, uncounted: Collection[int] = ()) -> list[Question]:
    """Return the edges that a trace must count itself so that the counts of all edges can be
    computed, as far as possible. The edges are in the order of their blocks.

    Args:
        code: the function.
        uncounted: addresses of instructions that will not be counted.
    """
    counted = [_counted(block, uncounted) for block in code.blocks]
    joined: dict[object, object] = {}

    def head(node: object) -> object:
        while node in joined:
            node = joined[node]
        return node

    found: dict[int, Question] = {}
    links = list(_links(code, counted))
    for link in sorted(links, key=lambda link: _price(code, link.key, uncounted)):
        source, target = head(link.source), head(link.target)
        if source != target:
            joined[source] = target
            continue
        block, edge = link.key
        if _price(code, link.key, uncounted) and block not in found:
            block_asked = code.blocks[block]
            if block_asked.destination:
                found[block] = Question(block, OUTSIDE, block_asked.destination)
            else:
                found[block] = Question(block, edge, block_asked.edges[edge].condition)
    return sorted(found.values(), key=lambda one: one.block)


def _price(code: FunctionCode, key: EdgeKey, uncounted: Collection[int]) -> int:
    """Return how suitable an edge is as a Question: 3 is most suitable, 1 is least suitable, 0 is
    an edge that a trace cannot count. Of each cycle of edges, questions() chooses an edge with the
    greatest number.

    Args:
        code: the function.
        key: the edge.
        uncounted: addresses of instructions that will not be counted.
    """
    block, edge = key
    if block == OUTSIDE or edge == INSIDE or code.blocks[block].last.address in uncounted:
        return 0
    one = code.blocks[block].edges[edge]
    if one.kind == "computed":
        return 1 if code.blocks[block].destination else 0
    return 0 if not one.condition else 3 if one.kind == "taken" else 2


def _counted(block: CodeBlock, uncounted: Collection[int]) -> bool:
    return any(one.address not in uncounted for one in block.instructions)


def _links(code: FunctionCode, counted: Sequence[bool]) -> Iterator[_Link]:
    """Yield the variables of the flow equations: one for each edge of the flow graph, and one for
    the entry of the function. A thread may stay in the last instruction of some blocks, such as a
    call, until the trace ends. Each of these blocks has one more variable, for such threads
    (INSIDE).

    A block that is not counted has one equation instead of two: its entries equal its exits.

    Args:
        code: the function.
        counted: for each block, whether an instruction of it is counted.
    """

    def node(block: int, side: str) -> tuple[int, str] | None:
        if block == OUTSIDE:
            return None
        return (block, side) if counted[block] else (block, "both")

    yield _Link(ENTRY, None, node(code.root, "in"))
    for number, block in enumerate(code.blocks):
        for k, edge in enumerate(block.edges):
            yield _Link((number, k), node(number, "out"), node(edge.to, "in"))
        flow = block.last.flow
        if flow.kind in ("call", "trap") or flow.fault is not None or not block.edges:
            yield _Link((number, INSIDE), node(number, "out"), None)


def solve(
    code: FunctionCode,
    instructions: Mapping[int, int],
    answers: Mapping[EdgeKey, int],
) -> FlowCounts:
    """Return the counts of all edges that are known or can be computed.

    Args:
        code: the function.
        instructions: counts by address; 0 for a counted instruction that did not run. Instructions
            that were not counted are missing.
        answers: counts of the edges that questions() returned; for an indirect jump, the count of
            each of its edges.
    """
    entries, exits = [], []
    for block in code.blocks:
        counts = [instructions[i.address] for i in block.instructions if i.address in instructions]
        entries.append(counts[0] if counts else None)
        exits.append(counts[-1] if counts else None)
    known = dict(answers)
    counted = [one is not None for one in entries]
    links = {link.key: link for link in _links(code, counted)}
    around: dict[tuple[int, str], list[_Link]] = {
        (number, side): []
        for number, is_counted in enumerate(counted)
        for side in (("in", "out") if is_counted else ("both",))
    }
    for link in links.values():
        for node in (link.source, link.target):
            if node is not None:
                around[node].append(link)

    def balance(node: tuple[int, str]) -> tuple[int, list[_Link]]:
        """Return what is left of a block's equation: the edges whose counts are not known yet, and
        the sum of these counts.

        Args:
            node: name of the equation, (block, side). With side "in", the edges into the block add
                up to how often it was entered; with "out", the edges out of it to how often it was
                left. With "both", for a block without counts, the edges out of it minus the edges
                into it are 0.
        """
        number, side = node
        whole = {"in": entries, "out": exits}.get(side, [0] * len(entries))[number] or 0
        remaining, unknown = whole, []
        for link in around[node]:
            if link.source == link.target:  # from an uncounted block to itself
                continue
            sign = -1 if side == "both" and link.target == node else 1
            if link.key in known:
                remaining -= sign * known[link.key]
            else:
                unknown.append(link)
        return remaining, unknown

    todo = list(around)
    while todo:
        node = todo.pop()
        remaining, unknown = balance(node)
        if len(unknown) == 1:
            into = node[1] == "both" and unknown[0].target == node
            known[unknown[0].key] = -remaining if into else remaining
        elif (
            remaining == 0 and node[1] != "both" and all(link.key[1] != INSIDE for link in unknown)
        ):
            known.update((link.key, 0) for link in unknown)  # counts are not negative
        else:
            continue
        for link in unknown:
            todo += [n for n in (link.source, link.target) if n is not None and n != node]
    mismatches = tuple(_odd(code, around, balance, known))
    return FlowCounts(dict(instructions), entries, exits, known, frozenset(answers), mismatches)


def _odd(
    code: FunctionCode,
    nodes: Iterable[tuple[int, str]],
    balance: Callable[[tuple[int, str]], tuple[int, list[_Link]]],
    known: Mapping[EdgeKey, int],
) -> Iterator[str]:
    """Yield a sentence for each equation whose counts do not add up, and for each edge with a
    negative count.

    Args:
        code: the function.
        nodes: names of all equations.
        balance: the function in solve().
        known: the known counts of edges.
    """
    for node in nodes:
        remaining, unknown = balance(node)
        if remaining and not unknown:
            way = {"in": "come into", "out": "leave"}.get(node[1], "go through")
            name = _name(code, node[0])
            compared = "more" if remaining > 0 else "fewer"
            yield f"{abs(remaining)} {compared} than the edges say {way} {name}"
    for (block, edge), count in known.items():
        if count < 0 and edge != INSIDE:
            yield (
                f"an edge {'into the function' if block == OUTSIDE else 'from'} "
                + ("" if block == OUTSIDE else f"{_name(code, block)} ")
                + f"has {count}"
            )


def _name(code: FunctionCode, block: int) -> str:
    first = code.blocks[block].instructions[0]
    return f"{first.function.name}+{first.offset}"


def taken_share(flow: FlowCounts, code: FunctionCode, block: int) -> tuple[int, int] | None:
    """Return how often the conditional branch at the end of a block was taken, and how often it
    ran. None if the block does not end with a conditional branch, or if a count is not known."""
    edges = code.blocks[block].edges
    number = next((k for k, edge in enumerate(edges) if edge.kind == "taken"), None)
    ran = flow.exits[block]
    if number is None or ran is None or (block, number) not in flow.edges:
        return None
    return flow.edges[block, number], ran
