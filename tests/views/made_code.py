"""Functions made up as flow graphs, and walks through them that count for themselves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kinst.core.code import OUTSIDE, CodeBlock, CodeEdge, CodeInstruction, FunctionCode
from kinst.core.isa import Flow
from kinst.core.probe import Function
from kinst.views.flow import EdgeKey

BASE, STEP = 0x1000, 0x100  # of blocks' addresses

# How a block ends: each way out as (kind, to).
Ways = Sequence[tuple[str, int]]


def made(
    *blocks: Ways, sizes: Sequence[int] = (), refused: frozenset[int] = frozenset()
) -> FunctionCode:
    """sizes: instructions of each block, 2 without.  refused: numbers of blocks of which no
    instruction can be planted.  Conditions are the number of the edge."""
    function = Function("vmlinux", "made", BASE, STEP * len(blocks))
    found = []
    for number, ways in enumerate(blocks):
        size = sizes[number] if sizes else 2
        flow = _flow(ways)
        addresses = [BASE + STEP * number + 4 * k for k in range(size)]
        inside = tuple(
            CodeInstruction(
                at, b"\x90" * 4, "nop", flow if at == addresses[-1] else Flow("next"), function,
                None, number in refused,
            )
            for at in addresses
        )  # fmt: skip
        asks = len(ways) > 1 and flow.kind in ("branch", "indirect")
        edges = tuple(
            CodeEdge(to, kind, f"edge == {k}" if asks else "") for k, (kind, to) in enumerate(ways)
        )
        destination = "regs[R_RAX]" if flow.kind == "indirect" else ""
        found.append(CodeBlock(inside, edges, destination))
    return FunctionCode((function,), tuple(found), 0)


def _flow(ways: Ways) -> Flow:
    kinds = [kind for kind, _ in ways]
    if "fault" in kinds:
        return Flow("next", fault=1)
    if not ways:
        return Flow("trap", False)
    by_kind = {"taken": "branch", "computed": "indirect", "jump": "jump", "return": "return",
               "call": "call"}  # fmt: skip
    return Flow(by_kind.get(kinds[0], "next"))


@dataclass
class Walked:
    """What happened on walks through a function."""

    instructions: Counter[int] = field(default_factory=Counter)
    edges: Counter[EdgeKey] = field(default_factory=Counter)

    def walk(self, code: FunctionCode, choose: random.Random, most: int = 300) -> None:
        """Once through; after `most` blocks, by the first way out that leads on downward."""
        block = code.root
        self.edges[OUTSIDE, 0] += 1
        for step in range(10 * most):
            here = code.blocks[block]
            self.instructions.update(i.address for i in here.instructions)
            if not here.edges:
                self.edges[block, -1] += 1
                return
            ways = range(len(here.edges))
            way = choose.choice(ways) if step < most else max(ways, key=lambda k: _rank(here, k))
            self.edges[block, way] += 1
            block = here.edges[way].to
            if block == OUTSIDE:
                return
        raise AssertionError("this graph has no way out")


def _rank(block: CodeBlock, way: int) -> int:
    to = block.edges[way].to
    return 1 << 30 if to == OUTSIDE else to


def random_code(choose: random.Random) -> FunctionCode:
    """A function of random branches, loops, calls and computed jumps with a way out of each
    block: downward."""
    count = choose.randint(2, 14)
    blocks: list[Ways] = []
    for number in range(count):
        after = number + 1
        kind = choose.choice(["next", "branch", "branch", "branch", "jump", "computed", "call"])
        if after == count:
            blocks.append([("return", OUTSIDE)])
        elif kind == "branch":
            blocks.append([("taken", choose.randrange(count)), ("next", after)])
        elif kind == "computed":
            targets = choose.sample(range(count), min(count, 3))
            blocks.append([("computed", OUTSIDE), *(("computed", t) for t in sorted(targets))])
        elif kind == "jump":
            blocks.append([("jump", choose.randrange(after, count))])
        else:
            blocks.append([(kind, after)])
    return made(*blocks)


def counts(walked: Walked, code: FunctionCode) -> Mapping[int, int]:
    """Of all instructions that can be planted."""
    return {i.address: walked.instructions[i.address] for i in code.instructions if not i.refused}
