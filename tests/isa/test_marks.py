"""Marks of instructions that are decoded at once agree with the methods for single instructions.

So do the trampolines that are made from marks.  Encodings are of all kinds, drawn at random; a
kernel's text has few of them.
"""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest

from kinst.core.bodies import CountBody
from kinst.core.columns import FLOW_KINDS, FOLLOWING, WIDTH, TrampolineBatch, columns_of
from kinst.core.displaced import Relocated
from kinst.core.instruction import Instruction
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.plan import plan_sites
from kinst.patch.wanted import WantedSite
from tests.isa.test_parts import vector
from tests.tiers import ISAS

TEXT, SCRATCH = 0xFFFFFFFF_81000000, 0xFFFFFFFF_84000000
SEED = 3
COUNT = {"amd64": 1600, "arm64": 400, "riscv64": 400}
PREFIXES = (b"", b"", b"", b"", b"\x66", b"\xf3", b"\xf2", b"\x67", b"\x65", b"\x2e", b"\xf0")
REX = (b"", b"", b"", b"\x48", b"\x41", b"\x4c", b"\x40")
MAPS = (b"", b"", b"\x0f", b"\x0f", b"\x0f\x38", b"\x0f\x3a")


def random_bytes(isa: Isa, rng: random.Random) -> bytes:
    """Return bytes that may be an instruction."""
    if isa.name != "amd64":
        return rng.randbytes(4)
    modrm = rng.choice((0x05, 0x0D, 0x3D, rng.randrange(256), rng.randrange(256)))
    opcode = bytes([rng.randrange(256), modrm])
    if rng.random() < 0.1:
        return vector(rng) + opcode + rng.randbytes(9)
    early = rng.choice(REX) if rng.random() < 0.2 else b""  # ignored, if a prefix follows
    head = rng.choice(PREFIXES) + early + rng.choice(PREFIXES) + rng.choice(REX) + rng.choice(MAPS)
    return head + opcode + rng.randbytes(9)


@cache
def drawn(name: str) -> list[tuple[Instruction, bytes, int]]:
    """Return (an instruction, some that follow it, the marks of the first)."""
    isa, rng = load(name), random.Random(SEED)
    found: list[Instruction] = []
    # Every opcode, with an operand relative to rip if it has one in memory.
    heads = [h + bytes([op, 5]) for h in (b"", b"\x0f") for op in range(256)]
    tries = [h + rng.randbytes(9) for h in heads] if name == "amd64" else []
    while len(found) < COUNT[name]:
        one = next(isa.decode(tries.pop() if tries else random_bytes(isa, rng), TEXT), None)
        unknown = one is not None and one.text.startswith(".byte")
        if one is not None and one.size <= WIDTH and (not unknown or rng.random() < 0.1):
            found.append(one)
    pieces = []
    for k, one in enumerate(found):
        behind = b"".join(rng.choice(found).code for _ in range(rng.randrange(6)))[:FOLLOWING]
        pieces.append((Instruction(TEXT + 64 * k, one.code, one.text), behind))
    scanned = isa.scan([(one.address, one.code + behind) for one, behind in pieces])
    first = scanned.columns.take(scanned.bounds[:-1])
    assert first.address.tolist() == [one.address for one, _ in pieces]
    assert first.size.tolist() == [one.size for one, _ in pieces]
    codes = [one.code.ljust(WIDTH, b"\0") for one, _ in pieces]
    assert [row.tobytes() for row in first.code] == codes
    return [(*row, marks) for row, marks in zip(pieces, first.marks.tolist(), strict=True)]


@pytest.fixture(params=ISAS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_piece_alone(name: str) -> None:
    """Marks of an instruction depend only on its own piece."""
    isa, rows = load(name), drawn(name)
    for one, behind, marks in rows[::12]:
        scanned = isa.scan([(one.address, one.code + behind)])
        assert int(scanned.columns.marks[0]) == marks
    if name == "amd64":
        assert sum(marks != 0 for _, _, marks in rows) > len(rows) / 2


def test_where_control_goes(name: str) -> None:
    isa, rows = load(name), [row for row in drawn(name) if row[2]]
    if not rows:
        return
    scanned = isa.scan([(one.address, one.code) for one, _, _ in rows])
    columns = scanned.columns
    leads = isa.leads(columns)
    for k, (one, _, _) in enumerate(rows):
        flow = isa.flow(one.code, one.address)
        kind = FLOW_KINDS[leads.kind[k]]
        assert kind == flow.kind or {kind, flow.kind} == {"next", "landing"}, one
        assert int(leads.target[k]) == (flow.target or 0), one
        assert bool(leads.falls[k]) == (flow.falls_through and flow.kind != "call"), one


@pytest.mark.parametrize("where", ["near", "chained", "far", "too far"])
def test_trampolines_of_marks_are_those_of_one(name: str, where: str) -> None:
    """Refusals, trampolines, patches, and addresses of copies are the same with marks and without.

    They are also made at the limit of some instructions' reach.
    """
    chained = where == "chained"
    reach = 1 << 27 if name == "arm64" else 1 << 31
    places = {"far": TEXT - reach + (1 << 20), "too far": TEXT - 2 * reach}
    scratch = places.get(where, SCRATCH)
    isa, plans = load(name), []
    function = Function("vmlinux", "f", TEXT, 64 * COUNT[name])
    for marked in (True, False):
        wanted = []
        for k, (one, behind, marks) in enumerate(drawn(name)):
            at = scratch - (1 << 20) + 8 * k if isa.shared_counters else 8 * k - 400
            way = "jump" if isa.jump_patch(one.size, one.address, scratch) else "trap"
            site = Site(function, one.address - TEXT, one.code)
            bodies = (CountBody((at,)),) if k % 7 else ()
            wanted.append(WantedSite(site, way, bodies, behind, b"", marks if marked else 0))
        plan = plan_sites(wanted, isa, scratch, scratch + (2 << 20), chained=chained)
        plans.append(
            ([(site.address, why) for site, why in plan.refused], list(plan.text),
             list(plan.patches), list(plan.copies), list(plan.traps), plan.end)
        )  # fmt: skip
    for one_by_one, at_once in zip(*plans, strict=True):
        assert at_once == one_by_one
    if where in ("near", "chained"):
        assert len(plans[0][2]) > COUNT[name] / 4


@pytest.mark.parametrize("distance", [1 << 10, 1 << 19, -(1 << 30), 3 << 30, (1 << 31) + (1 << 15)])
def test_patches_of_many_are_those_of_one(name: str, distance: int) -> None:
    """Jumps at single instructions, and over runs of them."""
    isa, rows = load(name), drawn(name)[:400]
    text = 1 << 40
    columns = columns_of(
        [text + 64 * k for k in range(len(rows))], [one.code for one, _, _ in rows]
    )
    to = (
        columns.address
        + np.int64(distance).astype(np.uint64)
        + np.arange(len(rows), dtype=np.uint64) * 4
    )
    known, patches = isa.jump_patches(columns, to)
    for k, (one, _, _) in enumerate(rows):
        patch = isa.jump_patch(one.size, text + 64 * k, int(to[k]))
        assert bool(known[k]) == (patch is not None), one
        assert patch is None or patches[k].tobytes() == patch.ljust(WIDTH, b"\0"), one
    if not isa.RUN_SIZE:
        return
    run, ends = b"", [0]
    for one, _, _ in rows:
        run += one.code
        if len(run) - ends[-1] >= isa.RUN_SIZE:
            ends.append(len(run))
    run, at = run[: ends[-1]], np.array(ends)
    spare = [1 << 28 if k % 5 else 0 for k in range(len(at) - 1)]
    start = np.uint64(text) + at[:-1].astype(np.uint64)
    known, found = isa.run_patches(
        start, at, run, start + np.int64(distance).astype(np.uint64), spare
    )
    assert len(found) == len(run)
    for k, (low, high) in enumerate(itertools.pairwise(at.tolist())):
        patch = isa.run_patch(run[low:high], text + low, text + low + distance, spare[k])
        assert bool(known[k]) == (patch is not None)
        assert patch is None or found[low:high] == patch


def test_stubs_of_many_are_those_of_one(name: str) -> None:
    """Code that counts before a trampoline, with flags to save and without."""
    isa, at, count = load(name), SCRATCH, 40
    to = np.uint64(SCRATCH) + np.arange(count, dtype=np.uint64) * 64 + 0x8000
    first = SCRATCH + 0x10000 if isa.shared_counters else -400
    places = [first + 8 * k for k in range(count)]
    counters = np.array([place % (1 << 64) for place in places], np.uint64).view(np.int64)
    free = np.arange(count) % 3 == 0
    made = isa.stubs(at, counters, to, free)
    assert made is not None
    code, sizes = made
    for k, size in enumerate(sizes.tolist()):
        one = isa.stub(at, places[k], int(to[k]), bool(free[k]))
        assert one == code[:size].tobytes(), k
        at, code = at + size, code[size:]
    assert not len(code)


GIGABYTE = 1 << 30


@pytest.mark.parametrize(
    ("low", "high", "some"),
    [
        (GIGABYTE, GIGABYTE + 4096, True), (-GIGABYTE, -GIGABYTE + 4096, True),
        (-GIGABYTE, GIGABYTE // 2, True),
        (GIGABYTE, 2 * GIGABYTE + 4096, False), (-2 * GIGABYTE - 4096, -GIGABYTE, False),
        (3 * GIGABYTE, 3 * GIGABYTE + 4096, False), (-3 * GIGABYTE, 4096 - 3 * GIGABYTE, False),
        (-2 * GIGABYTE, 2 * GIGABYTE, False),
    ],
)  # fmt: skip
def test_what_is_made_at_once_reaches_from_everywhere(low: int, high: int, some: bool) -> None:
    """The bytes from the text to the memory of the trampolines.

    A size is returned if all that a trampoline leads to is near from both the start and the end of
    this memory, and then it is that of a single trampoline.
    """
    isa, rows = load("amd64"), [row for row in drawn("amd64") if row[2]][:300]
    count, text = len(rows), 1 << 40
    columns = columns_of([text + 64 * k for k in range(count)], [one.code for one, _, _ in rows])
    columns.marks[:] = [marks for _, _, marks in rows]
    batch = TrampolineBatch(
        columns, np.full((count, 1), -400, np.int64), np.full(count, 1, np.uint8), (),
        np.full(count, -1), np.zeros(count, np.uint64), np.zeros(count, np.bool_),
        np.zeros(count, np.bool_), text + low, text + high,
    )  # fmt: skip
    sizes = isa.trampoline_sizes(batch).tolist()
    assert (sum(size >= 0 for size in sizes) > count // 2) == some
    function = Function("vmlinux", "f", text, 64 * count)
    for k, ((one, behind, _), size) in enumerate(zip(rows, sizes, strict=True)):
        site = Site(function, 64 * k, one.code)
        for at in (text + low, text + high - max(size, 0)) if size >= 0 else ():
            made = isa.trampoline(site, behind, at, [CountBody((-400,))])
            assert isinstance(made, Relocated) and len(made.code) == size


def test_where_counting_saves_nothing(name: str) -> None:
    """The answers by marks equal those by the bytes that follow."""
    isa, rows = load(name), [row for row in drawn(name) if row[2]][:200]
    columns = columns_of([one.address for one, _, _ in rows], [one.code for one, _, _ in rows])
    following = [behind for _, behind, _ in rows]
    slow = isa.counts_freely(columns, following)
    columns.marks[:] = [marks for _, _, marks in rows]
    assert isa.counts_freely(columns, following).tolist() == slow.tolist()
