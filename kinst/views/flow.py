"""Counts of the edges of a function's flow graph, computed from counts of instructions.

Counts alone often suffice: a block is entered as often as it runs and as often as it is left.  Each
side of a block is an equation, and each edge an unknown of two of them, so an edge is known unless
it closes a cycle of unknown ones.  questions() finds the edges that do, and a trace asks the
processor there: how often the branch's condition held, or where a computed jump went.  solve()
computes the rest, and says what does not add up.  Nothing is assumed.

A thread may be inside of a call, or in a fault, when a trace begins or ends.  So instructions of
one block need not have the same count, and the edge "inside" has the difference between a block
that ends with a call and its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kinst.core.code import OUTSIDE, CodeBlock, FunctionCode

# An edge: (block, its number among the block's edges).  ENTRY: into the function.  INSIDE as the
# number: threads that stayed in a block's last instruction.
EdgeKey = tuple[int, int]
ENTRY: EdgeKey = (OUTSIDE, 0)
INSIDE = -1


@dataclass(frozen=True, slots=True)
class Question:
    """Question to ask at the last instruction of a block.

    Attributes:
        block: its number.
        edge: how often did the condition of the block's edge of this number hold?  OUTSIDE: how
            often did the jump go to which target?
        expression: in D.
    """

    block: int
    edge: int
    expression: str


@dataclass(frozen=True)
class FlowCounts:
    """Counts of one function.

    Attributes:
        instructions: by address, for those that were counted.
        entries: of each block: how often its first instruction ran.
        exits: of each block: how often its last instruction ran.
        edges: by edge; unknown ones are missing.
        asked: the edges that the trace asked about.
        odd: sentences about what does not add up.
    """

    instructions: Mapping[int, int]
    entries: Sequence[int | None]
    exits: Sequence[int | None]
    edges: Mapping[EdgeKey, int]
    asked: frozenset[EdgeKey]
    odd: tuple[str, ...] = field(default=())

    @property
    def entered(self) -> int | None:
        """Count of the function's entries, None if it is not known."""
        return self.edges.get(ENTRY)


@dataclass(frozen=True, slots=True)
class _Link:
    """An unknown in two equations; None stands for the world outside of the function, which has
    none."""

    key: EdgeKey
    source: tuple[int, str] | None
    target: tuple[int, str] | None


def questions(code: FunctionCode, uncounted: Collection[int] = ()) -> list[Question]:
    """Return the questions that leave no edge unknown, as far as possible.

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
    """Return the priority of asking about an edge; 0 if that is impossible."""
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
    """Return all unknowns.  A block that is not counted is one equation: its entries equal its
    exits."""

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
    """Return the counts of all edges that are known or can be derived.

    Args:
        code: the function.
        instructions: counts by address, 0 for those that were counted and did not run; the others
            are missing.
        answers: to questions(), and for computed jumps for each edge.
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
        """Return what the node's unknown edges must add up to (edges into it for "in", otherwise
        out of it), and those edges."""
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
    odd = tuple(_odd(code, around, balance, known))
    return FlowCounts(dict(instructions), entries, exits, known, frozenset(answers), odd)


def _odd(
    code: FunctionCode,
    nodes: Iterable[tuple[int, str]],
    balance: Callable[[tuple[int, str]], tuple[int, list[_Link]]],
    known: Mapping[EdgeKey, int],
) -> Iterator[str]:
    """Return what cannot be: a side of a block whose edges do not add up, or an edge with a
    negative count."""
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
    """Return how often the conditional branch at a block's end was taken and how often it ran; None
    if there is none, or it is not known."""
    edges = code.blocks[block].edges
    number = next((k for k, edge in enumerate(edges) if edge.kind == "taken"), None)
    ran = flow.exits[block]
    if number is None or ran is None or (block, number) not in flow.edges:
        return None
    return flow.edges[block, number], ran
