"""Small random functions, planted in random ways, in an emulator.

Every function ends: each backward branch decrements a register that starts at ROUNDS.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kinst.core.bodies import Body, CallBody, CountBody
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.blocks import BlockRules
from kinst.patch.patches import Patch
from kinst.patch.plan import Plan, plan_sites
from kinst.patch.runs import NO_RUNS, Runs
from kinst.patch.wanted import WantedSite
from tests.isa.gnu_assembler import assembled
from tests.isa.planned_functions import runs_in
from tests.patch.small_functions import COUNTERS, PAGE, SCRATCH, TEXT, Cpu

SLOT = 512  # bytes reserved for each function, more than any has
VALUE = 0x5AFE_0123_4567_89AB  # the data of each function, directly after it
CALLED = SCRATCH + 12 * PAGE
COUNTER_ROOM = 200  # counters of blocks, after those of the sites


@dataclass(frozen=True)
class Language:
    """Building blocks of an instruction set's functions, in which {to} is a label.

    Attributes:
        called: adds one to the word at its first argument, and spoils what such code may spoil.
        guard: writes the function's argument, which is not zero and does not change, to a
            snippet's word.
    """

    begin: str
    end: str  # with a function that it calls
    straight: tuple[str, ...]
    forward: tuple[str, ...]
    backward: tuple[str, ...]  # ends when the rounds are used up
    called: str
    guard: str


LANGUAGES: Mapping[str, Language] = {
    "amd64": Language(
        "push rbp; mov rbp, rsp; mov r9d, edi",
        "mov [rsi + 64], rax; pop rbp; ret\n sub{k}: inc qword ptr [rsi]; ret\n"
        "value{k}: .quad {value}",
        (
            "add rax, rcx", "inc edx", "dec r8", "xor eax, eax", "adc rbx, 5", "sbb rdx, rdx",
            "lea rax, [rax + rcx*2 + 1000]", "mov ecx, 77", "mov rbx, [rsi + 8]", "clc", "cmc",
            "mov [rsi + 16], rax", "add rdx, [rip + value{k}]", "lea r10, [rip + value{k}]",
            "cmovc rcx, rdx", "setz al", "cmp ecx, 5", "test al, 1", "imul rcx, rdx", "nop", "cqo",
            "shl rax, 3", "mov edx, edi", "call sub{k}", "xchg rax, rbx", "mov rbx, 0x1234567890",
            "add dword ptr [rsi + 24], 0x11223344", "push rax; pop rcx", "stc", "cbw", "sti",
        ),
        ("jz {to}", "jc {to}", "jg {to}", "jrcxz {to}", "jmp {to}", "js {to}"),
        ("dec r9d; jg {to}", "sub r9d, 1; jns {to}", "dec r9d; js 9f; jmp {to}; 9: nop"),
        "inc qword ptr [rdi]; mov r11, -1; cmp r11, 5; ret",
        "mov rcx, rdi",
    ),
    "arm64": Language(
        "stp x29, x30, [sp, -16]!; mov w9, w0",
        "str x4, [x1, 64]; ldp x29, x30, [sp], 16; ret\n"
        "sub{k}: ldr x10, [x1]; add x10, x10, 1; str x10, [x1]; ret\nvalue{k}: .quad {value}",
        (
            "add x4, x4, x5", "subs x6, x4, 3", "adcs x5, x5, x4", "mov x7, 0x7700",
            "ldr x6, [x1, 8]", "str x5, [x1, 16]", "ldr x3, value{k}", "adr x8, value{k}",
            "csel x7, x4, x6, lo", "cset x2, eq", "cmp w5, 5", "mul x5, x4, x6", "nop",
            "bl sub{k}", "eor x4, x4, x5", "tst x4, 1",
        ),
        ("cbz w5, {to}", "tbnz x4, 0, {to}", "b.lt {to}", "b {to}", "cbnz x6, {to}", "b.eq {to}"),
        ("subs w9, w9, 1; b.gt {to}", "sub w9, w9, 1; tbz w9, 31, {to}"),
        "ldr x1, [x0]; add x1, x1, 1; str x1, [x0]; cmp x1, 5; mov x2, -1; mov x17, -1; ret",
        "mov x{result}, x0",
    ),
    "riscv64": Language(
        "addi sp, sp, -16; sd ra, 8(sp); mv t1, a0",
        # Registers that calls may change are not read after one.
        "sd a5, 64(a1); jal sub{k}; ld ra, 8(sp); addi sp, sp, 16; ret\n"
        "sub{k}: ld t4, 0(a1); addi t4, t4, 1; sd t4, 0(a1); ret\nvalue{k}: .8byte {value}",
        (
            "add a5, a5, a4", "addi a3, a3, 1", "mv a4, a5", "li a2, 5", "sltu a7, a5, a6",
            "ld a3, 8(a1)", "sd a5, 16(a1)", "auipc a6, 0", "slli a3, a4, 1", "andi a2, a5, 1",
            "mul a4, a4, a3", "nop", "xor a5, a5, a2", "sub a3, a3, a2", "not a6, a5",
        ),
        ("beqz a2, {to}", "bnez a3, {to}", "blt a4, a2, {to}", "j {to}", "bgeu a5, a6, {to}"),
        ("addi t1, t1, -1; bgtz t1, {to}", "addi t1, t1, -1; bltz t1, 9f; j {to}; 9: nop"),
        "ld a1, 0(a0); addi a1, a1, 1; sd a1, 0(a0); li a0, -3; li t1, -3; li t6, -3; ret",
        ".option norvc; mv x{result}, a0",
    ),
}  # fmt: skip


def source(language: Language, k: int, rng: random.Random) -> str:
    """Return a function, with the label f{k}."""
    length = rng.randrange(4, 16)
    lines = [f"f{k}: {language.begin}"]
    for n in range(length):
        kind, to = rng.random(), "f{k}_{n}"
        if kind < 0.2:
            line = rng.choice(language.forward).replace("{to}", to)
            line = line.format(k=k, n=rng.randrange(n + 1, length + 1))
        elif kind < 0.32:
            line = rng.choice(language.backward).replace("{to}", to)
            line = line.format(k=k, n=rng.randrange(n + 1))
        else:
            line = rng.choice(language.straight).format(k=k)
        lines.append(f"f{k}_{n}: {line}")
    return "\n".join([*lines, f"f{k}_{length}: {language.end.format(k=k, value=VALUE)}"])


@dataclass(frozen=True)
class Material:
    """Material for trials of an instruction set.

    Attributes:
        codes: the bytes of functions, each with its data, and how many of them are instructions.
    """

    isa: Isa
    codes: tuple[tuple[bytes, int], ...]
    called: bytes
    guard: bytes


def material(name: str, count: int, seed: int, folder: Path) -> Material:
    rng, language, isa = random.Random(seed), LANGUAGES[name], load(name)
    functions = [source(language, k, rng) for k in range(count)]
    result = isa.snippets.result.removeprefix("x")
    parts = [*functions, language.called, language.guard.format(result=result), "nop"]
    lines = [f".org {k * SLOT}\n{part}" for k, part in enumerate(parts)]
    intel = ".intel_syntax noprefix\n" if name == "amd64" else ""
    whole = assembled(name, intel + "\n".join(lines) + "\n", folder)
    slots = [whole[k * SLOT :][:SLOT] for k in range(len(parts))]
    lengths = [slot.index(VALUE.to_bytes(8, "little")) for slot in slots[:count]]
    codes = [(slot[: size + 8], size) for slot, size in zip(slots, lengths, strict=False)]
    first = next(iter(isa.decode(slots[count + 1], TEXT)))
    return Material(isa, tuple(codes), slots[count], first.code)


@dataclass(frozen=True)
class Trial:
    """A function, the requested sites, and the plan.

    Attributes:
        counters: for each site, by address, the increment of each counter.
        refused: sites that cannot be planted.
    """

    isa: Isa
    code: bytes
    called: bytes
    sites: tuple[Site, ...]
    wanted: tuple[WantedSite, ...]
    runs: Runs
    chained: bool
    blocks: BlockRules | None
    plan: Plan
    counters: Mapping[int, Counter[int]]
    refused: frozenset[int]

    @property
    def displaced(self) -> set[int]:
        """Return addresses of all instructions that are copied to trampolines."""
        return {address for address, _, _ in self.plan.sites}

    @property
    def starts(self) -> dict[int, int]:
        """Return the address of each one's trampoline."""
        pairs = zip(self.plan.sites, self.plan.text, strict=True)
        return {site[0]: at for site, (at, _) in pairs}

    @property
    def insides(self) -> set[int]:
        return {at for run in self.plan.runs for at in run.insides}

    def patches(self, found: bool = False) -> list[Patch]:
        """Return the patches; `found`: live return addresses point into the runs."""
        of_runs = [p for run in self.plan.runs for p in (run.instead if found else (run.patch,))]
        return sorted([*self.plan.patches, *of_runs], key=lambda patch: patch.address)

    def planted(self, found: bool = False) -> Cpu:
        cpu = Cpu(self.isa, self.code)
        for at, code in (*self.plan.text, *self.plan.stubs, (CALLED, self.called)):
            cpu.write(at, code)
        for patch in self.patches(found):
            there = bytes(cpu.uc.mem_read(patch.address, len(patch.old)))
            assert there == patch.old and len(patch.new) == len(patch.old)
            cpu.write(patch.address, patch.new)
        cpu.traps = dict(self.plan.traps)
        return cpu

    def counted(self, cpu: Cpu) -> Counter[int]:
        """Return the value of each site's counters, with the sums of blocks computed."""
        base = COUNTERS if self.isa.shared_counters else 0
        words = np.frombuffer(bytes(cpu.uc.mem_read(COUNTERS, PAGE)), np.int64).copy()
        raw, sums = words.copy(), self.plan.sums
        for from_, to, weight in zip(sums.source, sums.target, sums.weight, strict=True):
            words[(to - base) >> 3] += weight * raw[(from_ - base) >> 3]
        first = len(self.sites)
        assert self.blocks is not None or not words[first:].any(), "counted in no one's counter"
        numbers = enumerate(words[:first].tolist())
        return Counter({base + 8 * k: number for k, number in numbers if number})

    def expected(self, ran: Mapping[int, int]) -> Counter[int]:
        """Return the expected values, from how often each instruction ran."""
        total = Counter[int]()
        for address, counters in self.counters.items():
            for counter, times in counters.items():
                total[counter] += times * ran.get(address, 0)
        return +total


def random_bodies(
    made: Material, places: Sequence[int], rng: random.Random
) -> tuple[tuple[Body, ...], Counter[int]]:
    """Return random work, and how often it increments each counter; most work only counts."""
    isa, only = made.isa, rng.random() < 0.7
    expected = Counter[int]()
    bodies: list[Body] = []
    for _ in range(rng.choice((1, 2))):
        kind = 0.0 if only else rng.random()
        some = rng.sample(places, rng.choice((1, 1, 1, 2, 0)))
        if kind < 0.3:
            bodies.append(CountBody(tuple(some)))
            expected.update(some)
        elif kind < 0.6:
            zero = rng.random() < 0.5
            guard = isa.snippet(made.guard, zero)
            assert guard is not None
            bodies.append(CountBody(tuple(some), guard))
            expected.update(() if zero else some)
        else:
            place = rng.choice(places)
            at = place if isa.shared_counters else COUNTERS + place
            slots = frozenset(rng.sample(isa.argument_slots, rng.randrange(4)))
            bodies.append(CallBody(CALLED, at, slots))
            expected[place] += 1
    return tuple(bodies), expected


def random_trial(made: Material, which: int, rng: random.Random) -> Trial:
    """Return a trial: a function's instructions, some of them requested, with random
    circumstances."""
    isa, (code, length) = made.isa, made.codes[which]
    known = list(isa.decode(code[:length], TEXT))
    assert sum(one.size for one in known) == length
    function = Function("vmlinux", "f", TEXT, length)
    share = rng.choice((1.0, 1.0, 0.7, 0.3))
    asked = {one.address for one in known if rng.random() < share} or {known[0].address}
    free = isa.dead_registers(known, [isa.flow(one.code, one.address) for one in known])
    fits = {
        one.address: isa.jump_patch(one.size, one.address, SCRATCH) is not None for one in known
    }
    chained = rng.random() < 0.8
    runs = NO_RUNS
    if chained and isa.RUN_SIZE and rng.random() < 0.6:
        runs = runs_in(isa, code, known, {at: fits[at] for at in asked}, free)
    in_runs = set(runs.member.tolist())
    gates = {at for at, fit in fits.items() if fit and chained and rng.random() < 0.2}
    gates -= asked | in_runs
    marks = dict.fromkeys(fits, 0)
    if rng.random() < 0.5:
        scanned = isa.scan([(TEXT, code[:length])]).columns
        marks |= dict(zip(scanned.address.tolist(), scanned.marks.tolist(), strict=True))
    base = COUNTERS if isa.shared_counters else 0
    places = [base + 8 * k for k in range(len(known))]
    wanted = []
    counters: dict[int, Counter[int]] = {}
    refused = set[int]()
    for one in known:
        at, way = one.address, ""
        bodies: tuple[Body, ...] = ()
        following = code[one.end - TEXT : length]
        if at in asked:
            way = "jump" if fits[at] and rng.random() < 0.9 else "trap"
            bodies, counters[at] = random_bodies(made, places, rng)
            if one.code == b"\xfb" and rng.random() < 0.5:
                following = b"\xf4"  # sti before hlt
                refused.add(at)
                del counters[at]
        elif at in gates:
            way = "gate"
        elif at not in in_runs:
            continue
        site = Site(function, at - TEXT, one.code)
        wanted.append(WantedSite(site, way, bodies, following, marks=marks[at]))
    blocks = None
    if chained and rng.random() < 0.5:
        faulting = {at for at in fits if rng.random() < rng.choice((0.0, 0.2))}
        room = rng.choice((COUNTER_ROOM, COUNTER_ROOM, rng.randrange(12)))
        blocks = BlockRules(base + 8 * len(known), room, faulting)
    if chained and rng.random() < 0.3:
        rng.shuffle(wanted)
    plan = plan_sites(
        wanted, isa, SCRATCH + rng.randrange(64), SCRATCH + 8 * PAGE, chained=chained, runs=runs,
        blocks=blocks, dead_registers=dict(zip(fits, free, strict=True)),
    )  # fmt: skip
    every = tuple(Site(function, one.address - TEXT, one.code) for one in known)
    return Trial(
        isa, code, made.called, every, tuple(wanted), runs, chained, blocks, plan, counters,
        frozenset(refused),
    )  # fmt: skip
