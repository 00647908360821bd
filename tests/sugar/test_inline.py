"""Entries and exits of copies in small functions written by hand.

In the listings `in` marks the instructions that debug information gives to the copy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from kinst.sugar.inline import (
    CopyExit,
    entry_address,
    exits,
    graphs_of,
    regions_of,
    stay,
)
from tests.fake_kernel import ISA, FakeKernel, copy_of, evaluate
from tests.tiers import draws

BASE = 0x1000
ZERO, NOT_ZERO = "(regs[R_RFL] & 0x40) != 0", "(regs[R_RFL] & 0x40) == 0"


def world(
    lines: list[str],
    *more: tuple[str, int, list[str]],
    entry: str = "",
    forbidden: tuple[str, ...] = (),
    computed: tuple[str, ...] = (),
    fixups: Mapping[str, str] | None = None,
) -> tuple[FakeKernel, list[tuple[str, str]]]:
    """Return the kernel, and (place, condition) of the exits of the copy whose code is marked.

    Args:
        entry: label of the copy's entry, otherwise its first instruction.
        computed: targets of computed jumps.
        fixups: targets of faults, by the instruction that may fault.
    """
    plain = [line.removeprefix("in ") for line in lines]
    kernel = FakeKernel([("f", BASE, plain), *more])
    kernel.forbidden = {kernel.labels[f"f.{name}"] for name in forbidden}
    kernel.targets = [kernel.labels[f"f.{name}"] for name in computed]
    kernel.fixups = {
        kernel.labels[f"f.{name}"]: kernel.labels[f"f.{to}"] for name, to in (fixups or {}).items()
    }
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
    (region,) = regions_of([copy_of("g", first, *ranges)]).regions
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
        # The branch is the caller's, but one way returns to the copy.
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


# A switch with two cases a and b, both of the copy, which begins at a in DWARF.  (So were
# ma_slots() in mas_erase() and copy_to_sockptr_offset() in sk_getsockopt() of Linux for riscv64.)
SWITCH = ["ffe0", "a:", "in 90", "x:", "in eb >out/8", "b:", "in 90", "in eb >out/8", "out:", "c3"]


@pytest.mark.parametrize("known", [("a", "b"), ()])
def test_a_switch_leads_into_the_copy(known: tuple[str, ...]) -> None:
    """Code that the jump table leads to was not entered through the entry.

    Without the table, code that nothing leads to is taken for its targets.
    """
    assert world(SWITCH, computed=known)[1] == [("x", "")]


def test_a_switch_joins_code_that_others_lead_to() -> None:
    """Only the table shows that control also comes to m through it."""
    lines = ["85c0", "74 >a/8", "ffe0", "a:", "in 90", "x:", "in 90", "m:", "in 90", "c3"]
    assert world(lines, computed=("m",))[1] == [("x", "")]
    assert world(lines)[1] == [("m", "")]


def test_a_switch_leaves_the_copy() -> None:
    lines = [
        "in 85c0",
        "x:",
        "in ffe0",
        "a:",
        "in 90",
        "y:",
        "in eb >out/8",
        "b:",
        "90",
        "out:",
        "c3",
    ]
    kernel, found = world(lines, computed=("a", "b", "out"))
    a, b, end = (kernel.labels[f"f.{n}"] for n in ("a", "b", "out"))
    assert [place for place, _ in found] == ["x", "y"] and not found[1][1]
    for target, leaves in ((a, False), (b, True), (end, True), (0x9000, True)):
        assert evaluate(found[0][1], {"RAX": target}) == leaves
    # One way out of three: only that one.
    both = ["in 85c0", "x:", "in ffe0", "a:", "in 90", "in c3", "b:", "in c3", "c:", "c3"]
    kernel, found = world(both, computed=("a", "b", "c"))
    for name, leaves in (("a", False), ("b", False), ("c", True)):
        assert evaluate(found[0][1], {"RAX": kernel.labels[f"f.{name}"]}) == leaves


# mutex_unlock() of Linux for riscv64: nothing can be planted in the loop of a load-reserved and
# its store-conditional, and two branches leave it.
EXCLUSIVE = [
    "in 90",
    "m:",
    "in 90",
    "l:",
    "in 74 >out/8",
    "in 90",
    "s:",
    "in 75 >l/8",
    "out:",
    "c3",
]


def test_branches_that_leave_and_cannot_be_planted() -> None:
    """The exit is after such branches if only they lead there; otherwise control leaves where it
    comes to them."""
    assert world(EXCLUSIVE, forbidden=("l", "s"))[1] == [("out", "")]
    assert world(["85c0", "74 >out/8", *EXCLUSIVE], forbidden=("l", "s"))[1] == [("m", "")]
    # Only the second of two cannot be planted: the code after is counted once for both.
    assert world(EXCLUSIVE, forbidden=("s",))[1] == [("out", "")]
    assert world(EXCLUSIVE)[1] == [("l", ZERO), ("s", ZERO)]


def test_faults_leave_the_copy() -> None:
    lines = ["in 90", "p:", "in 90", "x:", "in 90", "90", "c3", "fix:", "90", "c3"]
    assert world(lines, fixups={"p": "fix"})[1] == [("x", ""), ("fix", "")]
    # Both ways leave: at the instruction itself.
    assert world([*lines[:3], *lines[5:]], fixups={"p": "fix"})[1] == [("p", "")]
    # Others lead to the fix-up code as well: not seen.
    shared = ["85c0", "74 >fix/8", *lines]
    assert world(shared, fixups={"p": "fix"})[1] == [("x", "")]


def test_faults_stay_in_the_copy() -> None:
    """The instruction leaves if it does not fault, which is known after it."""
    lines = ["in 90", "p:", "in 90", "out:", "90", "c3", "fix:", "in 90", "y:", "in 90", "c3"]
    assert world(lines, fixups={"p": "fix"})[1] == [("out", ""), ("y", "")]


def test_fixup_code_around_the_entry() -> None:
    """The caller's own access leads to the same fix-up code, which DWARF gives to the copy."""
    lines = ["q:", "90", "p:", "in 90", "x:", "in 90", "90", "c3", "fix:", "in 90", "c3"]
    assert world(lines, fixups={"p": "fix", "q": "fix"})[1] == [("x", "")]


def test_return_thunk_and_cold_part() -> None:
    """Code that the compiler moved to f.cold belongs to f; a jump to the thunk is a return."""
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
    # The exit moves to the instruction before, or to the branches that lead to it; the entry moves
    # on.
    assert world(["in 90", "b:", "in 90", "x:", "in " + nop, "90", "c3"], forbidden=("x",))[1] == [
        ("b", "")
    ]
    lines = ["in 85c0", "b:", "in 74 >x/8", "y:", "in c3", "x:", "in " + nop, "ffc0", "c3"]
    assert world(lines, forbidden=("x",))[1] == [("b", ZERO), ("y", "")]
    kernel, found = world(["x:", "in " + nop, "n:", "90", "c3"], forbidden=("x",))
    (region,) = regions_of([copy_of("g", BASE, (BASE, BASE + 5))]).regions
    graph = graphs_of([region], kernel)[BASE]
    place = entry_address(BASE, graph, {BASE}.__contains__)
    assert found == [("n", "")] and place == kernel.labels["f.n"]


def test_entries() -> None:
    """No code: left out; one entry: one region; an entry outside the ranges is alone."""
    copies = [
        copy_of("g", 0x1000, (0x1000, 0x1002)),
        copy_of("g", 0x1001, (0x1001, 0x1001)),
        copy_of("g", None, (0x1000, 0x1002)),
        copy_of("g", 0x1000, (0x1003, 0x1004)),
        copy_of("g", 0x1002, (0x1003, 0x1004)),
    ]
    found = regions_of(copies)
    assert found.empty == 2
    assert [(r.entry, r.ranges, r.copies) for r in found.regions] == [
        (0x1000, ((0x1000, 0x1002), (0x1003, 0x1004)), 2),
        (0x1002, ((0x1003, 0x1004),), 1),
    ]
    kernel = FakeKernel([("f", 0x1000, ["90"] * 6 + ["c3"])])
    graph = graphs_of(found.regions, kernel)[0x1002]
    assert graph.node_at(0x1003) is not None
    assert [e.address for e in exits(stay(found.regions[1], graph), graph)] == [0x1003]


def _random_function(rng: random.Random) -> list[str]:
    lines = []
    count = rng.randrange(6, 30)
    for k in range(count):
        lines.append(f"l{k}:")
        target = f"l{rng.randrange(count)}"
        lines.append(
            rng.choice(["90", "90", "90", "ffc0", f"74 >{target}/8", f"75 >{target}/8",
                        f"72 >{target}/8", f"eb >{target}/8", "ffe0", "c3"])
        )  # fmt: skip
    return [*lines, "c3"]


@dataclass
class Run:
    """Counts of entries and exits of copies, by their entries.

    Attributes:
        over: the run came to an end.
        faulted: an instruction has faulted.
    """

    entered: dict[int, int]
    left: dict[int, int]
    over: bool = False
    faulted: bool = False


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(draws(160, 400)))
def test_returns_are_as_many_as_entries(seed: int) -> None:
    """Random functions with random copies are run by an interpreter of this test.

    Some instructions cannot be planted, some may fault.
    """
    rng = random.Random(seed)
    kernel = FakeKernel([("f", BASE, _random_function(rng))])
    function = kernel.functions[0]
    code = {i.address: i.code for i in ISA.decode(kernel.code[BASE], BASE)}
    places = sorted(code)
    kernel.targets = sorted(rng.sample(places[1:], 3))
    if seed % 2:
        kernel.forbidden = set(rng.sample(places, len(places) // 4))
    if seed % 4 > 1:
        plain = [p for p in places if code[p] == b"\x90"]
        kernel.fixups = {p: rng.choice(places) for p in plain if not rng.randrange(3)}
    copies = []
    for _ in range(3):
        cuts = sorted(rng.sample([*places, BASE + function.size], 2 * rng.choice((1, 1, 2))))
        ranges = list(zip(cuts[::2], cuts[1::2], strict=True))
        entry = rng.choice([p for p in places if any(a <= p < b for a, b in ranges)])
        copies.append(copy_of("g", entry, *ranges))
    regions = regions_of(copies).regions
    graphs = graphs_of(regions, kernel)
    refused = kernel.forbidden.__contains__
    begins, sites = dict[int, int](), dict[int, list[CopyExit]]()
    for region in regions:
        graph = graphs[region.entry]
        begin = entry_address(region.entry, graph, refused)
        if begin is not None:
            begins[region.entry] = begin
            sites[region.entry] = exits(stay(region, graph), graph, refused)
    assert not {begins[e] for e in begins} & kernel.forbidden
    assert not {e.address for found in sites.values() for e in found} & kernel.forbidden
    for _ in range(20):
        run = _run(rng, kernel, code, begins, sites)
        for entry in begins:
            between = run.entered[entry] - run.left[entry]
            # A fault is not seen if others lead to its fix-up code as well.
            assert run.faulted or (between == 0 if run.over else abs(between) <= 1)


def _run(
    rng: random.Random,
    kernel: FakeKernel,
    code: Mapping[int, bytes],
    begins: Mapping[int, int],
    sites: Mapping[int, list[CopyExit]],
) -> Run:
    run = Run(dict.fromkeys(sites, 0), dict.fromkeys(sites, 0))
    at = BASE
    for _ in range(400):
        flags, to = rng.getrandbits(12), rng.choice([*kernel.targets, 0x9000])
        for entry, out in sites.items():
            run.entered[entry] += at == begins[entry]
            run.left[entry] += sum(
                e.address == at
                and (not e.condition or evaluate(e.condition, {"RFL": flags, "RAX": to}))
                for e in out
            )  # fmt: skip
        if at in kernel.fixups and not rng.randrange(4):
            at, run.faulted = kernel.fixups[at], True
        else:
            at = to if code[at][0] == 0xFF and code[at][1] == 0xE0 else _step(code[at], at, flags)
        if at not in code:
            run.over = True
            break
    return run


def _step(code: bytes, at: int, flags: int) -> int:
    """Return the address of the next instruction, 0 after a return."""
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
    """The kernel has unmapped code of its boot: copies there have neither entry nor exits."""
    kernel = FakeKernel([("f", BASE, ["90"] * 6 + ["c3"])])
    kernel.code[BASE] = b""
    (region,) = regions_of([copy_of("g", BASE + 1, (BASE + 1, BASE + 4))]).regions
    graph = graphs_of([region], kernel)[region.entry]
    inside = stay(region, graph)
    assert graph.starts == [] and exits(inside, graph) == []
