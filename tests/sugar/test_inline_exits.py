"""Entries and exits of copies in small functions written by hand.

In the listings `in` marks the instructions that debug information gives to the copy.
"""

from __future__ import annotations

import random

import pytest
from fake_kernel import ISA, FakeKernel, copy_of, evaluate

from kinst.sugar.inline import (
    entry_place,
    exits,
    graphs_of,
    range_ends,
    regions_of,
    stay,
    successors_outside,
)

BASE = 0x1000
ZERO, NOT_ZERO = "(regs[R_RFL] & 0x40) != 0", "(regs[R_RFL] & 0x40) == 0"


def world(
    lines: list[str],
    *more: tuple[str, int, list[str]],
    entry: str = "",
    forbidden: tuple[str, ...] = (),
) -> tuple[FakeKernel, list[tuple[str, str]]]:
    """(the kernel, (place, condition) of the exits of the copy whose code is marked).

    A line "in ..." is the copy's; entry: its label, else the first of them.
    """
    plain = [line.removeprefix("in ") for line in lines]
    kernel = FakeKernel([("f", BASE, plain), *more])
    kernel.forbidden = {kernel.labels[f"f.{name}"] for name in forbidden}
    inside, at = [], 0
    decoded = [i.address for i in kernel.instructions(kernel.functions[0])]
    ends = [*decoded[1:], BASE + kernel.functions[0].size]
    for line in lines:
        if not line.endswith(":") and not line.startswith("cc"):  # padding is not decoded
            if line.startswith("in "):
                inside.append((decoded[at], ends[at]))
            at += 1
    ranges: list[tuple[int, int]] = []
    for low, high in inside:
        if ranges and ranges[-1][1] == low:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    first = kernel.labels[f"f.{entry}"] if entry else ranges[0][0]
    (region,) = regions_of([copy_of("g", first, *ranges)], 0).regions
    graph = graphs_of([region], kernel)[first]
    refused = set(kernel.forbidden).__contains__
    names = {v: k.removeprefix("f.") for k, v in kernel.labels.items() if k != "f"}
    found = exits(stay(region, graph), graph, refused)
    return kernel, [(names.get(e.address, hex(e.address)), e.condition) for e in found]


CASES = {
    "falling through": (["90", "in 90", "x:", "in 90", "90", "c3"], [("x", "")]),
    "jumping out": (["in 90", "x:", "in eb >out/8", "90", "out:", "c3"], [("x", "")]),
    "returning": (["in 90", "x:", "in c3"], [("x", "")]),
    "tail call": (["in 90", "x:", "in e9 >0x9000/32"], [("x", "")]),
    "conditional tail call": (
        ["in 85c0", "x:", "in 0f84 >0x9000/32", "y:", "in 90", "c3"], [("x", ZERO), ("y", "")],
    ),
    "a branch that leaves when taken": (
        ["in 85c0", "x:", "in 74 >out/8", "y:", "in 90", "90", "out:", "c3"],
        [("x", ZERO), ("y", "")],
    ),
    "a branch that leaves when not taken": (
        ["in 85c0", "x:", "in 74 >far/8", "90", "c3", "far:", "y:", "in 90", "90", "c3"],
        [("x", NOT_ZERO), ("y", "")],
    ),
    "a branch that leaves both ways": (
        ["in 85c0", "x:", "in 74 >out/8", "90", "out:", "c3"], [("x", "")],
    ),
    "early returns": (
        ["in 85c0", "x:", "in 75 >out/8", "in 85db", "y:", "in 75 >out/8", "z:", "in 90",
         "out:", "c3"],
        [("x", NOT_ZERO), ("y", NOT_ZERO), ("z", "")],
    ),
    "a call comes back": (["in e8 >0x9000/32", "x:", "in 90", "c3"], [("x", "")]),
    "a call at the end": (["in 90", "x:", "in e8 >0x9000/32", "90", "c3"], [("x", "")]),
    "a call behind which the function ends": (
        ["in 85c0", "x:", "in 75 >out/8", "90", "out:", "c3", "in e8 >0x9000/32"],
        [("x", "")],
    ),
    "a call that never returns": (
        ["in 85c0", "x:", "in 75 >out/8", "in e8 >0x8000/32", "90", "out:", "c3"],
        [("x", NOT_ZERO)],
    ),
    "a loop inside": (
        ["in 31c0", "top:", "in ffc0", "in 75 >top/8", "x:", "in 90", "c3"], [("x", "")],
    ),
    "the entry is the loop's head": (
        ["top:", "in ffc0", "x:", "in 75 >top/8", "90", "c3"], [("x", "")],
    ),
    "a loop of the caller's around it": (
        ["31c0", "top:", "in 90", "x:", "in 90", "ffc0", "75 >top/8", "c3"], [("x", "")],
    ),
    "the caller's code mixed in": (["in 90", "ffc0", "x:", "in 90", "ffc3", "c3"], [("x", "")]),
    "left for good by one way only": (
        ["in 85c0", "74 >mid/8", "y:", "c3", "mid:", "90", "x:", "in 90", "c3"],
        # The branch is the caller's, but one way comes back.
        [("0x1002", NOT_ZERO), ("x", "")],
    ),
    "a second set that is reached around the entry": (
        ["85c0", "74 >around/8", "x:", "in 90", "90", "c3", "around:", "in 90", "c3"],
        [("x", "")],
    ),
    "ud2 that warns": (["in 90", "x:", "in 0f0b", "90", "c3"], [("x", "")]),
    "computed jump": (
        ["in 90", "x:", "in ffe0"],
        [("x", "(regs[R_RAX] < 0x1000 || regs[R_RAX] >= 0x1003)")],
    ),
    "padding behind a return": (
        ["in 85c0", "74 >far/8", "90", "c3", "cc cc cc", "far:", "x:", "in 90", "c3"],
        [("0x1002", NOT_ZERO), ("x", "")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_exits(case: str) -> None:
    lines, expected = CASES[case]
    assert world(lines, ("panic", 0x8000, ["c3"]), ("g", 0x9000, ["c3"]))[1] == expected


def test_return_thunk_and_cold_part() -> None:
    """What the compiler moved to f.cold belongs to f; a jump to the thunk is a return."""
    cold = ("f.cold", 0x5000, ["90", "e9 >0x1009/32"])
    lines = ["in 85c0", "in 0f84 >0x5000/32", "90", "back:", "x:", "in e9 >0x7000/32"]
    _, found = world(lines, cold, ("__x86_return_thunk", 0x7000, ["c3"]))
    assert found == [("x", "")]
    # Without the part the same branch would leave for good.
    assert world(lines, ("other", 0x5000, ["90", "e9 >0x1009/32"]))[1] == [
        ("0x1002", ZERO), ("x", ""),
    ]  # fmt: skip


def test_places_that_cannot_be_planted() -> None:
    nop = "0f1f440000"
    # The exit moves to the instruction before; to the branches that lead to it; the entry on.
    assert world(["in 90", "b:", "in 90", "x:", "in " + nop, "90", "c3"], forbidden=("x",))[1] == [
        ("b", "")
    ]
    lines = ["in 85c0", "b:", "in 74 >x/8", "y:", "in c3", "x:", "in " + nop, "ffc0", "c3"]
    assert world(lines, forbidden=("x",))[1] == [("b", ZERO), ("y", "")]
    kernel, found = world(["x:", "in " + nop, "n:", "90", "c3"], forbidden=("x",))
    (region,) = regions_of([copy_of("g", BASE, (BASE, BASE + 5))], 0).regions
    graph = graphs_of([region], kernel)[BASE]
    place = entry_place(BASE, graph, {BASE}.__contains__)
    assert found == [("n", "")] and place == kernel.labels["f.n"]


def test_entries() -> None:
    """No code: left out; one entry: one region; entry outside of the ranges: it stands alone."""
    copies = [
        copy_of("g", 0x1000, (0x1000, 0x1002)),
        copy_of("g", 0x1001, (0x1001, 0x1001)),
        copy_of("g", None, (0x1000, 0x1002)),
        copy_of("g", 0x1000, (0x1003, 0x1004)),
        copy_of("g", 0x1002, (0x1003, 0x1004)),
    ]
    found = regions_of(copies, 0x100)
    assert found.empty == 2
    assert [(r.entry, r.ranges, r.copies) for r in found.regions] == [
        (0x1100, ((0x1100, 0x1102), (0x1103, 0x1104)), 2),
        (0x1102, ((0x1103, 0x1104),), 1),
    ]
    kernel = FakeKernel([("f", 0x1100, ["90"] * 6 + ["c3"])])
    graph = graphs_of(found.regions, kernel)[0x1102]
    assert graph.node_at(0x1103) is not None
    assert [e.address for e in exits(stay(found.regions[1], graph), graph)] == [0x1103]


def test_the_other_rules() -> None:
    """Each range's last instruction (the paper), and successors outside of the ranges."""
    kernel, found = world(["in 90", "in 90", "ffc0", "x:", "in 90", "c3"])
    (region,) = regions_of([copy_of("g", BASE, (BASE, BASE + 2), (BASE + 4, BASE + 5))], 0).regions
    graph = graphs_of([region], kernel)[BASE]
    assert [e.address - BASE for e in range_ends(region, graph)] == [1, 4]
    assert [e.address - BASE for e in successors_outside(region, graph)] == [1, 4]
    assert found == [("x", "")]


def _random_function(rng: random.Random) -> list[str]:
    lines = []
    count = rng.randrange(6, 30)
    for k in range(count):
        lines.append(f"l{k}:")
        target = f"l{rng.randrange(count)}"
        lines.append(
            rng.choice(["90", "90", "90", "ffc0", f"74 >{target}/8", f"75 >{target}/8",
                        f"72 >{target}/8", f"eb >{target}/8", "c3"])
        )  # fmt: skip
    return [*lines, "c3"]


@pytest.mark.parametrize("seed", range(300))
def test_returns_are_as_many_as_entries(seed: int) -> None:
    """Random functions with random copies in them, run by an interpreter of its own."""
    rng = random.Random(seed)
    kernel = FakeKernel([("f", BASE, _random_function(rng))])
    function = kernel.functions[0]
    code = {i.address: i.code for i in ISA.decode(kernel.code[BASE], BASE)}
    places = sorted(code)
    copies = []
    for _ in range(3):
        cuts = sorted(rng.sample([*places, BASE + function.size], 2 * rng.choice((1, 1, 2))))
        ranges = list(zip(cuts[::2], cuts[1::2], strict=True))
        entry = rng.choice([p for p in places if any(a <= p < b for a, b in ranges)])
        copies.append(copy_of("g", entry, *ranges))
    regions = regions_of(copies, 0).regions
    graphs = graphs_of(regions, kernel)
    sites = {r.entry: exits(stay(r, graphs[r.entry]), graphs[r.entry]) for r in regions}
    for _ in range(20):
        entered = dict.fromkeys(sites, 0)
        left = dict.fromkeys(sites, 0)
        at, steps = BASE, 0
        while at in code and steps < 400:
            flags = rng.getrandbits(12)
            for entry, out in sites.items():
                entered[entry] += at == entry
                left[entry] += sum(
                    e.address == at
                    and (not e.condition or evaluate(e.condition, {"RFL": flags}))
                    for e in out
                )  # fmt: skip
            # What is never left is at most the one stay that the end cut short.
            assert all(0 <= entered[e] - left[e] <= 1 for e in sites)
            at, steps = _step(code[at], at, flags), steps + 1
        if at not in code:
            assert entered == left


def _step(code: bytes, at: int, flags: int) -> int:
    """The address of the next instruction, 0 behind a return."""
    end = at + len(code)
    target = end + int.from_bytes(code[-1:], "little", signed=True)
    zero, carry = flags >> 6 & 1, flags & 1
    match code[0]:
        case 0xC3:
            return 0
        case 0xEB:
            return target
        case 0x74:
            return target if zero else end
        case 0x75:
            return end if zero else target
        case 0x72:
            return target if carry else end
    return end


def test_a_function_whose_code_is_not_there() -> None:
    """The kernel has unmapped what only boots: its copies have neither entry nor exits."""
    kernel = FakeKernel([("f", BASE, ["90"] * 6 + ["c3"])])
    kernel.code[BASE] = b""
    (region,) = regions_of([copy_of("g", BASE + 1, (BASE + 1, BASE + 4))], 0).regions
    graph = graphs_of([region], kernel)[region.entry]
    inside = stay(region, graph)
    assert graph.starts == [] and exits(inside, graph) == []
