"""Displaced instructions, and whole functions with chains and runs, against the original.

Many pairs of code and a random state are compared (many_pairs.c).  Expected values are never
computed here: the emulator runs the original at its own address, and counters are compared with
its own count.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from kinst.core.columns import U64
from kinst.core.displaced import Refused
from kinst.core.instruction import Instruction
from kinst.core.isa import Isa
from kinst.isa import load
from tests.isa.kernel_text import Text, extents, find_vmlinux, read_text
from tests.isa.many_pairs import (
    SCRATCH_SIZE,
    U32,
    Found,
    Pair,
    Pairs,
    Processor,
    amd64,
    arm64,
    riscv64,
)
from tests.isa.planned_functions import PlannedFunction, drawn_functions, plan_function
from tests.tiers import of_kernels

SEED = int(os.environ.get("KINST_SEED", "20"))
MANY = int(os.environ.get("KINST_PAIRS", "10_000_000"))
STATES = 32  # of each piece of code
LONGEST = 400  # instructions of a function, so that its counters are in one page
STEPS = 400  # instructions after which a loop is given up
GS = 0x2000_0000  # from amd64's per-CPU base to the counters


@dataclass(frozen=True)
class World:
    """An ISA's processor, one for single instructions and one for functions.

    Attributes:
        gs: from the per-CPU base to the counters, 0 if they have one address for all CPUs.
        copied: bytes below the stack pointer that a copy may use.
        restless: instructions whose result differs each time, or depends on the emulator's
            environment.
        lacking: instructions that the emulator does not have.
    """

    single: Processor
    whole: Processor
    gs: int
    copied: int
    restless: re.Pattern[str]
    lacking: re.Pattern[str]


def _amd64() -> World:
    single = amd64()
    return World(
        single, amd64(single.scratch + SCRATCH_SIZE - 4096 - GS & (1 << 64) - 1), GS, 0,
        re.compile(
            r"rdtscp?|rdrand|rdseed|rdpmc|(wr|rd)msr|.*\b[cd]r\d|l[gil]dt|ltr|swapgs|cpuid|v"
        ),
        re.compile(
            r"encls|invpcid|monitorx?|(rd|wr)pkru|stgi|xgetbv|xrstor|xsave|xsetbv|tilerelease|"
            r"serialize|pvalidate|rmpadjust|ud[012]|int|iret|mov [c-g]s,"
        ),
    )  # fmt: skip


def _arm64() -> World:
    one = arm64()
    return World(
        one, one, 0, 16,
        re.compile(
            r"mrs .*(cnt|pmc|rndr)|msr (?!daif)|dc|ic|at |tlbi|sys|wf[ie]|hvc|smc|brk|eret|svc|"
            r"(ld|st)a?l?xrb?h? |(ld|st)a?l?xp "
        ),
        # System registers that it lacks, memory tags, vectors of any length.
        re.compile(r"mrs|msr|udf|ldgm?|st2?z?2?gm?|rdvl|addvl|cnt[bhwd]|.*\b[zp]\d"),
    )  # fmt: skip


def _riscv64() -> World:
    one = riscv64()
    return World(
        one, one, 0, 512,
        re.compile(r"rd(time|cycle|instret)|csr|s?fence|wfi|[ms]ret|ecall|[sl][cr]\.|hlv|hsv|hfence"),
        re.compile(r"rd|csr|ecall|ebreak|c\.ebreak|c\.unimp|unimp|\.insn|wfi|f|c\.f|sfence|v"),
    )  # fmt: skip


WORLDS = {"amd64": _amd64, "arm64": _arm64, "riscv64": _riscv64}


@dataclass(frozen=True)
class Kernel:
    isa: Isa
    text: Text
    world: World

    @property
    def counters(self) -> int:
        """Return the page of the counters of a planted function."""
        return self.world.whole.scratch + SCRATCH_SIZE - 4096


@pytest.fixture(scope="module", params=of_kernels(WORLDS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    name = str(request.param)
    return Kernel(load(name), read_text(find_vmlinux(name)), WORLDS[name]())


@pytest.fixture
def single(kernel: Kernel) -> Iterator[Pairs]:
    pairs = Pairs(kernel.world.single, kernel.text)
    yield pairs
    pairs.close()


@pytest.fixture
def whole(kernel: Kernel) -> Iterator[Pairs]:
    pairs = Pairs(kernel.world.whole, kernel.text)
    yield pairs
    pairs.close()


def one_instruction(
    kernel: Kernel, address: int, size: int, text: str, at: int, length: int
) -> Pair:
    """Return an instruction with its replacement at an address in scratch."""
    counted, vectors = "rep" in text or "loop" in text, kernel.isa.name != "riscv64" and "m" in text
    return Pair(
        address, address + size, address, at, at + length, at, 0, kernel.world.copied, counted,
        vectors or kernel.isa.name == "arm64", 64,
    )  # fmt: skip


def compare_instructions(kernel: Kernel, pairs: Pairs, wanted: int) -> tuple[int, Counter[str]]:
    """Compare distinct instructions of the text in random order until `wanted` pairs are compared.

    Returns how many were compared, and what could not be run.  Fails at a difference.
    """
    isa, text, world = kernel.isa, kernel.text, kernel.world
    rng = random.Random(SEED)
    functions, done, known = list(extents(text)), 0, set[bytes]()
    lacking: Counter[str] = Counter()
    while done < wanted:
        start, end = rng.choice(functions)
        code = text.code[start - text.address : end - text.address]
        held = None
        decoded = list(isa.decode(code, start))
        for one in rng.sample(decoded, min(len(decoded), 12)):
            if isa.flow(one.code, one.address).target == one.address:
                continue  # it may never end
            if (one.code in known and rng.random() < 0.9) or world.restless.match(one.text):
                continue
            known.add(one.code)
            held = isa.unsafe(decoded) if held is None else held
            first = isa.displace(one.code, one.address, world.single.scratch)
            if one.address in held or isinstance(first, Refused):
                continue
            at = pairs.reserve(len(first.code))
            moved = isa.displace(one.code, one.address, at)
            assert not isinstance(moved, Refused)
            pairs.write(at, moved.code)
            pair = one_instruction(kernel, one.address, one.size, one.text, at, len(moved.code))
            found = pairs.compare(pair, STATES, rng.getrandbits(62))
            assert not found.difference, f"{one.text} at {one.address:#x}: {found.difference}"
            done += found.compared
            if not found.compared:
                lacking[one.text] += 1
    return done, lacking


def whole_pair(kernel: Kernel, made: PlannedFunction, entry: int) -> Pair:
    """Return a planted function, entered at one of its instructions."""
    text = list(made.plan.text)
    low, high = text[0][0], max(at + len(code) for at, code in text)
    starts = {site[0]: at for site, (at, _) in zip(made.plan.sites, text, strict=True)}
    # In the middle of a run's jump only a thread can be that was in a trampoline before.
    inside = entry in made.insides
    return Pair(
        made.start, made.end, entry, low, high, starts[entry] if inside else entry, 1, 512, 1, 0,
        STEPS,
    )  # fmt: skip


def lost_registers(kernel: Kernel, made: PlannedFunction) -> U64:
    """Return, for each byte of the function, the dead registers when control leaves there."""
    lost = np.zeros(made.end - made.start, np.uint64)
    names = list(kernel.world.whole.registers)
    for one in made.known:
        if kernel.isa.name == "amd64":
            # Neither a function nor its caller reads flags that were set before.  (A return is a
            # jump to a thunk; flags after div are undefined, but not here.)
            leaves = kernel.isa.flow(one.code, one.address).kind in ("call", "return", "jump")
            bits = 1 << names.index("eflags") if leaves else 0
        else:
            free = made.spare[one.address]
            bits = sum(
                1 << k for k, n in enumerate(names) if n[1:].isdigit() and free >> int(n[1:]) & 1
            )
        lost[one.address - made.start] = bits
    return lost


@dataclass
class Planted:
    """A function that is planted in the emulator, with its counters at 0."""

    kernel: Kernel
    pairs: Pairs
    made: PlannedFunction
    visits: U32

    def compare(self, entry: int, states: int, seed: int) -> Found:
        """Run it, and the original, from one of its instructions on."""
        pair, lost = (
            whole_pair(self.kernel, self.made, entry),
            lost_registers(self.kernel, self.made),
        )
        return self.pairs.compare(pair, states, seed, self.made.traps, self.visits, lost)

    def miscounted(self) -> str:
        """Return a site whose counter differs from the original's executions; "" if there is
        none."""
        page = np.frombuffer(self.pairs.read(self.kernel.counters, 4096), np.uint64)
        planted = {site[0] for site in self.made.plan.sites}
        for number, address in enumerate(self.made.counters):
            counted, ran = int(page[number]), int(self.visits[address - self.made.start])
            if address in planted and counted != ran:
                return f"{address:#x} was counted {counted} times, and came {ran} times"
        return ""


def calls_itself(isa: Isa, code: bytes, start: int, known: Sequence[Instruction]) -> bool:
    """Return whether one of its calls leads into it.

    Such a function continues after its own return, which loses registers that callers expect to be
    lost, and may end where they are not.
    """
    places, _ = isa.branches(code, start)  # code that leads into it
    inside = set(places.tolist())
    kinds = [isa.flow(one.code, one.address).kind for one in known]
    # A call may take two instructions, the first of which has a part of the target.
    return any(
        one.address in inside and (kind == "call" or (kind == "next" and following == "call"))
        for one, kind, following in zip(known, kinds, [*kinds[1:], ""], strict=True)
    )


def planted_functions(
    kernel: Kernel, pairs: Pairs, rng: random.Random, longest: int, damage: bool = False
) -> Iterator[Planted]:
    """Yield random functions, each with a count at every instruction.

    Args:
        damage: change a bit of the first trampoline.
    """
    text, world = kernel.text, kernel.world
    for start, end, known in drawn_functions(text, kernel.isa, rng, longest):
        if any(world.restless.match(one.text) for one in known):
            continue
        original = text.code[start - text.address : end - text.address]
        if kernel.isa.needs_dead_register and calls_itself(kernel.isa, original, start, known):
            continue
        made = plan_function(
            kernel.isa, text, start, known, world.whole.scratch, SCRATCH_SIZE - 8192,
            world.gs or kernel.counters,
        )  # fmt: skip
        if not len(made.plan.text):
            continue
        for number, (at, code) in enumerate(made.plan.text):
            spoiled = bytearray(code)
            if damage and not number:
                spoiled[rng.randrange(len(code))] ^= 1 << rng.randrange(8)
            pairs.write(at, bytes(spoiled))
        for patch in made.patches:
            pairs.write(patch.address, patch.new)
        pairs.write(kernel.counters, bytes(4096))
        pairs.forget()
        yield Planted(kernel, pairs, made, np.zeros(end - start, np.uint32))
        pairs.write(start, original)


def compare_functions(kernel: Kernel, pairs: Pairs, wanted: int) -> tuple[int, Counter[str]]:
    """Compare random functions, with a count at every instruction, entered anywhere.

    Ends when `wanted` pairs are compared.  Returns how many were compared, and how sites were
    planted. Fails at a difference.
    """
    rng = random.Random(SEED)
    done, ways = 0, Counter[str]()
    for planted in planted_functions(kernel, pairs, rng, LONGEST):
        made = planted.made
        ways.update(way for *_, way in made.plan.sites)
        for _ in range(8):
            entry = rng.choice(made.known).address
            found = planted.compare(entry, STATES, rng.getrandbits(62))
            assert not found.difference, (
                f"{made.start:#x} entered at {entry - made.start:#x}: {found.difference}"
            )
            done += found.compared
        wrong = planted.miscounted()
        assert not wrong, f"in {made.start:#x}: {wrong}"
        if done >= wanted:
            break
    return done, ways


def check_instructions(kernel: Kernel, pairs: Pairs, wanted: int, report: list[str]) -> None:
    done, lacking = compare_instructions(kernel, pairs, wanted)
    strange = sorted(text for text in lacking if not kernel.world.lacking.match(text))
    assert not strange, strange[:20]
    report.append(
        f"{kernel.isa.name}: {done} pairs of an instruction and a state, no difference;"
        f" {sum(lacking.values())} instructions the emulator lacks"
    )


def check_functions(kernel: Kernel, pairs: Pairs, wanted: int, report: list[str]) -> None:
    done, ways = compare_functions(kernel, pairs, wanted)
    report.append(
        f"{kernel.isa.name}: {done} pairs of a planted function and a state, no difference;"
        f" planted: {dict(ways)}"
    )
    assert ways["run"] > 0 or kernel.isa.name == "arm64"


def test_single_instructions(kernel: Kernel, single: Pairs, report: list[str]) -> None:
    check_instructions(kernel, single, 20_000, report)


def test_whole_functions(kernel: Kernel, whole: Pairs, report: list[str]) -> None:
    check_functions(kernel, whole, 5_000, report)


@pytest.mark.slow
def test_single_instructions_by_the_million(
    kernel: Kernel, single: Pairs, report: list[str]
) -> None:
    """Compare $KINST_PAIRS of them."""
    check_instructions(kernel, single, MANY * 4 // 5, report)


@pytest.mark.slow
def test_whole_functions_by_the_million(kernel: Kernel, whole: Pairs, report: list[str]) -> None:
    check_functions(kernel, whole, MANY // 5, report)


def test_a_naive_copy_is_seen_to_differ(kernel: Kernel, single: Pairs) -> None:
    """An instruction that must not be copied unchanged is seen to differ if it is."""
    wanted = {
        "amd64": {"call", "je", "jmp", "lea"},
        "arm64": {"bl", "cbz", "adrp", "tbnz"},
        "riscv64": {"auipc", "beq", "c.j", "c.beqz"},
    }[kernel.isa.name]
    for start, end in extents(kernel.text):
        code = kernel.text.code[start - kernel.text.address : end - kernel.text.address]
        for one in kernel.isa.decode(code, start):
            name = one.text.split()[0]
            if name not in wanted or (name == "lea" and "rip" not in one.text):
                continue
            at = single.reserve(one.size)
            single.write(at, one.code)
            pair = one_instruction(kernel, one.address, one.size, one.text, at, one.size)
            assert single.compare(pair, STATES, 1).difference, one.text
            wanted.discard(name)
        if not wanted:
            return
    raise AssertionError(f"not in this kernel: {wanted}")


def test_a_damaged_trampoline_is_seen_to_differ(kernel: Kernel, whole: Pairs) -> None:
    """A damaged trampoline differs in an outcome or a count most of the time: not every state runs
    all of it."""
    rng = random.Random(SEED)
    seen = tried = 0
    for planted in planted_functions(kernel, whole, rng, 60, damage=True):
        found = planted.compare(planted.made.known[0].address, STATES, rng.getrandbits(62))
        seen += bool(found.difference or planted.miscounted())
        tried += bool(found.compared)
        if tried == 40:
            break
    assert seen > tried / 2, f"{seen} of {tried}"
