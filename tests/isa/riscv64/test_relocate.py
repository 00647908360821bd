"""Every instruction form of a real riscv64 kernel, original against displaced, in an emulator.

Expected values are never computed here: a displaced instruction is compared with the original
instruction, executed at its own address in the kernel's text.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kinst.core.displaced import Refused, Relocated
from kinst.core.instruction import Flow
from kinst.core.isa import Isa
from kinst.isa import load
from kinst.isa.riscv64.encode import load_value
from tests.isa.emulated_riscv64 import (
    SCRATCH,
    EmulatorError,
    Machine,
    Outcome,
    State,
    random_state,
)
from tests.isa.gnu_assembler import assembled
from tests.isa.kernel_text import Form, Text, extents, find_vmlinux, read_text
from tests.isa.riscv64.forms import Forms, riscv64_forms

pytestmark = pytest.mark.full  # the riscv64 kernel

DEAD = 512  # bytes below the stack pointer that a trampoline may use
# Their results differ each time, or they need a device, a mode or an extension that the emulator
# lacks.
NOT_EMULATED = re.compile(
    r"rdtime|rdcycle|rdinstret|csr|ecall|ebreak|c\.ebreak|c\.unimp|unimp|\.insn|wfi|f|c\.f|sfence|v"
)


@pytest.fixture(scope="module")
def isa() -> Isa:
    return load("riscv64")


@pytest.fixture(scope="module")
def text() -> Text:
    return read_text(find_vmlinux("riscv64"))


@pytest.fixture(scope="module")
def machine(text: Text) -> Machine:
    return Machine(text.address, text.code)


@pytest.fixture(scope="module")
def found(text: Text, isa: Isa, thorough: bool) -> Forms:
    return riscv64_forms(text, isa, 1 if thorough else 8)


def original(
    machine: Machine, rng: random.Random, address: int, size: int
) -> tuple[State, Outcome] | str:
    """Return a random state from which the emulator can run the instruction, or why there is
    none."""
    error = ""
    for attempt in range(40):  # an atomic instruction needs an aligned address: 4 of 10 are
        state = random_state(rng, tame=attempt % 2 == 1)
        try:
            outcome = machine.run(state, address, size)
        except EmulatorError as failed:
            error = str(failed)
            continue
        sp = state.registers["x2"]
        if not any(sp - DEAD <= at < sp for at, _ in outcome.reads):
            return state, outcome
    return error


def below(state: State, outcome: Outcome) -> tuple[int, int]:
    """Return the dead stack: below the stack pointer, before or after the instruction."""
    end = outcome.registers["x2"]
    near = abs(end - state.registers["x2"]) < 4096
    lowest = min(end, state.registers["x2"]) if near else end
    return lowest - DEAD, end


def compare(isa: Isa, machine: Machine, rng: random.Random, form: Form, states: int) -> int | str:
    """Return how many random states were compared (0: the emulator cannot run it), or a
    difference."""
    at = SCRATCH + 0x1000
    for address, code in form.others:
        moved = isa.displace(code, address, at)
        assert isinstance(moved, Relocated)
        at = machine.reserve(len(moved.code))
        moved = isa.displace(code, address, at)
        assert isinstance(moved, Relocated)
        machine.write_code(at, moved.code)
        for _ in range(states):
            made = original(machine, rng, address, len(code))
            if isinstance(made, str):
                return 0
            state, outcome = made
            try:
                now = machine.run(state, at, len(moved.code))
            except EmulatorError as failed:
                return f"{form.text} at {address:#x}: the displaced code fails: {failed}"
            differences = outcome.differences(now, below(state, outcome))
            if differences:
                return f"{form.text} at {address:#x}: {'; '.join(differences)}"
    return states * len(form.others)


def test_every_form_of_the_kernel(
    isa: Isa, machine: Machine, found: Forms, thorough: bool, report: list[str]
) -> None:
    rng = random.Random(64)
    refused: Counter[str] = Counter()
    differences, copied, states = [], [], 0
    for form in found.forms:
        if isinstance(isa.displace(form.code, form.address, SCRATCH), Refused):
            refused[form.text.split()[0]] += 1
            continue
        result = compare(isa, machine, rng, form, 6 if thorough else 3)
        if isinstance(result, str):
            differences.append(result)
        elif result:
            states += result
        else:
            copied.append(form)
    report.append(
        f"riscv64: {len(found.forms)} forms of {found.functions} functions, equal in {states}"
        f" random states; copied, not emulated: {len(copied)}; refused: {dict(refused)}"
    )
    assert not differences, "\n".join(differences[:20])
    assert states > 2000
    for form in copied:
        assert NOT_EMULATED.match(form.text), form.text
        moved = isa.displace(form.code, form.address, SCRATCH)
        assert isinstance(moved, Relocated)
        assert moved.code.startswith(form.code) and moved.original_at == 0


def test_a_naive_copy_is_seen_to_differ(machine: Machine, text: Text, isa: Isa) -> None:
    """An instruction that must not be copied unchanged is seen to differ if it is."""
    rng = random.Random(3)
    wanted = {"auipc", "jal", "jalr", "c.j", "c.beqz", "beq", "c.jalr"}
    for start, end in extents(text):
        for one in isa.decode(text.code[start - text.address : end - text.address], start):
            name = one.text.split()[0]
            if name not in wanted:
                continue
            at = machine.reserve(one.size)
            machine.write_code(at, one.code)
            differing = 0
            for _ in range(8):
                made = original(machine, rng, one.address, one.size)
                assert not isinstance(made, str)
                differing += bool(made[1].differences(machine.run(made[0], at, one.size)))
            assert differing, one.text
            wanted.discard(name)
        if not wanted:
            return
    raise AssertionError(f"not in this kernel: {wanted}")


def test_share_that_can_be_planted(isa: Isa, found: Forms, report: list[str]) -> None:
    total: Counter[str] = Counter({"refused": sum(found.unsafe.values())})
    for form in found.forms:
        moved = isa.displace(form.code, form.address, SCRATCH)
        total["refused" if isinstance(moved, Refused) else "trap"] += form.count
    everything = sum(total.values())
    shares = ", ".join(f"{way} {n} ({n / everything:.2%})" for way, n in total.items())
    report.append(f"riscv64: of {everything} instructions in functions: {shares}")
    assert everything > 200_000
    assert total["refused"] < everything * 0.005


def test_boundaries_as_objdump_says(isa: Isa, text: Text) -> None:
    start, end = next(e for e in extents(text) if e[1] - e[0] > 3000)
    listing = subprocess.run(
        ["riscv64-linux-gnu-objdump", "-d", "--no-show-raw-insn", f"--start-address={start:#x}",
         f"--stop-address={end:#x}", str(find_vmlinux("riscv64"))],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    theirs = [int(a, 16) for a in re.findall(r"^\s*([0-9a-f]{16}):\t", listing, re.M)]
    code = text.code[start - text.address : end - text.address]
    assert [i.address for i in isa.decode(code, start)] == theirs
    assert len(theirs) > 500


def _value(text: str, registers: dict[str, int]) -> int:
    """Return the value of one side of a comparison in a Flow's condition."""
    cast, name = re.fullmatch(r"(\(u?int64_t\))?(.*)", text).groups()  # type: ignore[union-attr]
    value = int(name) if name.isdigit() else registers[name]
    return value - (1 << 64) if cast == "(int64_t)" and value >> 63 else value


def holds(condition: str, isa: Isa, state: State) -> bool:
    """Return whether a Flow's condition is true, by C's rules for these few operators."""
    registers = {f"regs[{r.d_name}]": state.registers.get(f"x{r.index}", 0) for r in isa.registers}
    left, operator, right = re.fullmatch(r"(\S+) (==|!=|<|>=) (\S+)", condition).groups()  # type: ignore[union-attr]
    a, b = _value(left, registers), _value(right, registers)
    return {"==": a == b, "!=": a != b, "<": a < b, ">=": a >= b}[operator]


def test_flow_as_the_emulator_goes(isa: Isa, machine: Machine, found: Forms) -> None:
    """Targets, conditions and destinations of every control transfer form are those of the
    emulator."""
    rng = random.Random(5)
    kinds: Counter[str] = Counter()
    for form in found.forms:
        for address, code in form.others:
            flow = isa.flow(code, address)
            if flow.kind in ("next", "trap"):
                continue
            if flow.kind == "indirect" and not flow.destination:
                continue
            kinds[flow.kind] += 1
            for _ in range(6):
                made = original(machine, rng, address, len(code))
                assert not isinstance(made, str), form.text
                state, outcome = made
                pc = outcome.registers["pc"]
                check_flow(isa, flow, state, pc, address + len(code))
    assert set(kinds) == {"jump", "branch", "call", "return", "indirect"}


def check_flow(isa: Isa, flow: Flow, state: State, pc: int, after: int) -> None:
    if flow.kind == "branch":
        assert holds(flow.condition, isa, state) == (pc == flow.target)
        assert holds(flow.otherwise, isa, state) == (pc == after)
    elif flow.kind == "return":
        assert pc == state.registers["x1"] & ~1
    elif flow.target is not None:
        assert pc == flow.target
    elif flow.destination and "+" not in flow.destination and "-" not in flow.destination:
        registers = {f"regs[{r.d_name}]": f"x{r.index}" for r in isa.registers}
        assert pc == state.registers[registers[flow.destination]] & ~1
    assert flow.falls_through == (flow.kind in ("branch", "call"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("csrr a0, sepc", "trap state"), ("csrw stvec, a0", "trap state"),
        ("csrw satp, a0", "unmap"), ("csrw sstatus, a0", "return from a trap"),
        ("sret", "leaves"), ("lr.w a0, (a1)", "reservation"), ("sc.d a0, a2, (a1)", "reservation"),
        (".insn 4, 0x0000000b", "vendor"), ("jalr sp, 0(a0)", "stack"),
    ],
)  # fmt: skip
def test_refused(isa: Isa, tmp_path: Path, source: str, words: str) -> None:
    moved = isa.displace(assembled("riscv64", source, tmp_path), 0xFFFFFFFF80100000, SCRATCH)
    assert isinstance(moved, Refused)
    assert words in moved.reason


@pytest.mark.parametrize(
    "source",
    [
        "csrr a0, satp", "csrrs a0, sstatus, a1", "csrci sstatus, 2", "csrw sie, a0", "ecall",
        "wfi", "fence.i", "sfence.vma a0, a1", "rdtime a0", "amoadd.w a0, a1, (a2)", "ebreak",
        *(f".option arch, +v\n{text}" for text in (
            "vadd.vv v1, v2, v3", "vsetvli a0, a1, e64, m8", "vle64.v v1, (a0)")),
    ],
)  # fmt: skip
def test_copied(isa: Isa, tmp_path: Path, source: str) -> None:
    code = assembled("riscv64", source, tmp_path)
    moved = isa.displace(code, 0xFFFFFFFF80100000, SCRATCH)
    assert isinstance(moved, Relocated)
    assert moved.code.startswith(code) and moved.original_at == 0


def test_lr_to_sc_by_every_path(isa: Isa, tmp_path: Path) -> None:
    """A compare-and-exchange with a branch out, and a part after its end that goes back in."""
    source = """
        addi a5, a5, 1
    again:
        lr.w a4, (a0)
        bne a4, a1, out
        beqz a2, far
    store:
        sc.w a3, a2, (a0)
        bnez a3, again
    out:
        addi a0, a4, 0
        ret
    far:
        addi a2, a2, 1
        j store
    """
    names = ["addi", "lr", "bne", "beqz", "sc", "bnez", "mv", "ret", "addi2", "j"]
    start = 0xFFFFFFFF80100000
    known = list(isa.decode(assembled("riscv64", source, tmp_path), start))
    unsafe = isa.unsafe(known)
    assert [n for n, i in zip(names, known, strict=True) if i.address in unsafe] == [
        "lr", "bne", "beqz", "sc", "addi2", "j",
    ]  # fmt: skip


def test_functions_that_handle_traps_are_refused_whole(isa: Isa, tmp_path: Path) -> None:
    for source in ("addi a0, a0, 1\ncsrw stvec, a0\nret", "nop\nsret"):
        known = list(isa.decode(assembled("riscv64", source, tmp_path), 0xFFFFFFFF80100000))
        assert set(isa.unsafe(known)) == {i.address for i in known}


@pytest.mark.parametrize("gap", [-(2 << 30) - 4096, (2 << 30) + 4096, 3 << 30])
def test_out_of_reach_is_refused(isa: Isa, gap: int) -> None:
    address = 0xFFFFFFFF80000000
    for code in ("0100", "efd0dff3", "01a0", "63000000"):
        moved = isa.displace(bytes.fromhex(code), address, (address + gap) % (1 << 64))
        assert isinstance(moved, Refused), code
        assert "2 GB" in moved.reason


def test_constants(machine: Machine) -> None:
    """load_value makes any constant."""
    rng = random.Random(9)
    edges = [0, 1, -1, 2047, 2048, -2048, -2049, 1 << 31, (1 << 31) - 1, -(1 << 31), 0x7FFFF800]
    values = [*edges, 1 << 63, (1 << 63) - 1, 0x8080808080808080, 11400714819323198485]
    values += [rng.getrandbits(rng.randrange(1, 65)) for _ in range(200)]
    for value in values:
        code = load_value(10, value)
        at = machine.reserve(len(code))
        machine.write_code(at, code)
        made = machine.run(random_state(rng, tame=True), at, len(code))
        assert made.registers["x10"] == value & (1 << 64) - 1
