"""Made-up functions as flow graphs, and walks through them that count independently."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kinst.core.code import OUTSIDE, CodeBlock, CodeEdge, CodeInstruction, FunctionCode
from kinst.core.inline import InlinedFrame, SourcePlace
from kinst.core.instruction import Flow
from kinst.core.probe import Function
from kinst.events import Bucket
from kinst.views.annotation import Annotation
from kinst.views.flow import EdgeKey, solve

BASE, STEP = 0x1000, 0x100  # of blocks' addresses

# End of a block: each way out as (kind, to).
Ways = Sequence[tuple[str, int]]


def made(
    *blocks: Ways, sizes: Sequence[int] = (), refused: frozenset[int] = frozenset()
) -> FunctionCode:
    """Make a function.

    Args:
        sizes: instructions of each block; 2 if not given.
        refused: numbers of blocks in which no instruction can be planted.  Conditions are the
            number of the edge.
    """
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
            CodeEdge(to, "next" if kind == "call" else kind, f"edge == {k}" if asks else "")
            for k, (kind, to) in enumerate(ways)
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


# while (a) { if (b) f(); }
LOOP = made(
    [("next", 1)],
    [("taken", 5), ("next", 2)],
    [("taken", 4), ("next", 3)],
    [("call", 4)],
    [("jump", 1)],
    [("return", OUTSIDE)],
)


@dataclass
class Walked:
    """Counts of walks through a function."""

    instructions: Counter[int] = field(default_factory=Counter)
    edges: Counter[EdgeKey] = field(default_factory=Counter)

    def walk(self, code: FunctionCode, choose: random.Random, most: int = 300) -> None:
        """Walk once; after `most` blocks take the first way out that leads on downward."""
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
    """Return a function of random branches, loops, calls and computed jumps, in which each block
    has a way downward."""
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
    """Return the counts of all instructions that can be planted."""
    return {i.address: walked.instructions[i.address] for i in code.instructions if not i.refused}


def placed_code() -> FunctionCode:
    """int made(int a) { if (check(a)) return 1; again: if (a) goto again; return 0; } of made.c,
    with check() inlined from check.h, followed by a load that cannot be planted."""
    function = Function("vmlinux", "made", BASE, 0x40)
    own, inner = SourcePlace("fs/made.c", 10), InlinedFrame("check", "include/check.h", 5)
    inside = replace(own, line=12, inlined=(inner,))
    rows = [
        (0x00, "push rbp", Flow("next"), own, False),
        (0x04, "test edi, edi", Flow("next"), inside, False),
        (0x08, "je 0x1020", Flow("branch", True, BASE + 0x20), inside, False),
        (0x0C, "mov eax, 1", Flow("next"), replace(own, line=13), False),
        (0x10, "call 0x9000", Flow("call", True, 0x9000), replace(own, line=13), True),
        (0x14, "ret", Flow("return", False), replace(own, line=17), False),
        (0x20, "dec edi", Flow("next"), replace(own, line=15), False),
        (0x24, "jne 0x1020", Flow("branch", True, BASE + 0x20), replace(own, line=15), False),
        (0x28, "ret", Flow("return", False), replace(own, line=17), False),
    ]
    found = [
        CodeInstruction(
            BASE + at, b"\x90" * 4, text, flow, function, place, stays, flow.target,
            "helper" if flow.kind == "call" else "",
        )
        for at, text, flow, place, stays in rows
    ]  # fmt: skip
    blocks = (
        CodeBlock(tuple(found[:3]), (CodeEdge(2, "taken", "z"), CodeEdge(1, "next", "!z"))),
        CodeBlock(tuple(found[3:6]), (CodeEdge(OUTSIDE, "return"),)),
        CodeBlock(tuple(found[6:8]), (CodeEdge(2, "taken", "!z"), CodeEdge(3, "next", "z"))),
        CodeBlock(tuple(found[8:]), (CodeEdge(OUTSIDE, "return"),)),
    )
    return FunctionCode((function,), blocks, 0)


SOURCE = {
    "fs/made.c": [*[""] * 8, "int made(int a)", "{", "\t/* <why> */", "\tif (check(a))",
                  "\t\treturn helper();", "again:", "\tif (--a) goto again;", "\treturn 0;", "}"],
    "include/check.h": [*[""] * 4, "return a != 0;"],
}  # fmt: skip


def annotated(measure: str = "") -> Annotation:
    """Return placed_code() after ten calls: three left by check(), seven looped 4 times each."""
    code = placed_code()
    ran = {0: 10, 4: 10, 8: 10, 0xC: 3, 0x14: 3, 0x20: 28, 0x24: 28, 0x28: 7}
    flow = solve(code, {BASE + at: count for at, count in ran.items()}, {})
    reasons = {BASE + 0x10: "its bytes change at run time"}
    if not measure:
        return Annotation(code, flow, reasons, SOURCE)
    buckets = (Bucket(1, 2, 8), Bucket(2, 4, 1), Bucket(4, 8, 4))
    return Annotation(code, flow, reasons, SOURCE, measure, "", {BASE: buckets, BASE + 4: 1234},
                      {(0, 2): 77})  # fmt: skip
