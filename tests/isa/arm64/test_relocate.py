"""Every instruction form of a real arm64 kernel, original against displaced, in an emulator.

Expected values are never computed here: a displaced instruction is compared with the original
instruction, executed at its own address in the kernel's text.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from capstone import CS_ARCH_ARM64, CS_MODE_ARM, Cs

from kinst.core.displaced import Refused, Relocated
from kinst.core.isa import Isa
from kinst.isa import load
from tests.isa.emulated_arm64 import SCRATCH, EmulatorError, Machine, Outcome, State, random_state
from tests.isa.kernel_text import Text, find_vmlinux, read_text

pytestmark = pytest.mark.full  # the arm64 kernel

ATTEMPTS = 10
NUMBER = re.compile(r"#?-?0x[0-9a-f]+|#-?\d+")
REGISTER = re.compile(r"\b([wxbhsdqv])\d+\b")
# Their results differ each time, or depend on the emulator's environment.
UNREPEATABLE = ("mrs", "msr", "dc", "ic", "at", "tlbi", "sys", "wfi", "wfe", "hvc", "smc", "brk")
STATES = 2
RELATIVE = ("b", "bl", "b.", "cbz", "cbnz", "tbz", "tbnz", "adr", "adrp")


@dataclass
class Form:
    key: str
    address: int
    code: bytes
    text: str
    count: int

    @property
    def mnemonic(self) -> str:
        return self.text.split()[0]


@pytest.fixture(scope="module")
def isa() -> Isa:
    return load("arm64")


@pytest.fixture(scope="module")
def text() -> Text:
    return read_text(find_vmlinux("arm64"))


@pytest.fixture(scope="module")
def machine(text: Text) -> Machine:
    return Machine(text.address, text.code)


@pytest.fixture(scope="module")
def kernel_forms(text: Text) -> list[Form]:
    """Return forms by mnemonic and operands, without registers and numbers; two examples of
    each."""
    words = np.frombuffer(text.code[: len(text.code) & -4], "<u4")
    values, first, counts = np.unique(words, return_index=True, return_counts=True)
    disassembler = Cs(CS_ARCH_ARM64, CS_MODE_ARM)
    found: dict[str, list[Form]] = defaultdict(list)
    for value, index, count in zip(values, first, counts, strict=True):
        code, address = int(value).to_bytes(4, "little"), text.address + 4 * int(index)
        for _, _, mnemonic, operands in disassembler.disasm_lite(code, address, 1):
            spelled = f"{mnemonic} {operands}".strip()
            if spelled.endswith(f"#{address:#x}"):
                continue  # a branch to itself never ends
            key = REGISTER.sub(r"\1N", NUMBER.sub("N", spelled))
            forms = found[key]
            if len(forms) < 2:
                forms.append(Form(key, address, code, spelled, 0))
            forms[0].count += int(count)
    return [form for forms in found.values() for form in forms]


@dataclass
class Tally:
    compared: int = 0
    states: int = 0
    differences: list[str] = field(default_factory=list)
    refused: dict[str, list[Form]] = field(default_factory=dict)
    structural: dict[str, list[Form]] = field(default_factory=dict)


def original(machine: Machine, rng: random.Random, address: int) -> tuple[State, Outcome] | None:
    """Return a random state from which the emulator can run the instruction, if there is one."""
    for attempt in range(ATTEMPTS):
        state = random_state(rng, tame=attempt % 2 == 1)
        try:
            return state, machine.run(state, address, (address, address + 4))
        except EmulatorError:
            continue
    return None


def compare(isa: Isa, machine: Machine, rng: random.Random, form: Form, tally: Tally) -> None:
    first = isa.displace(form.code, form.address, SCRATCH)
    if isinstance(first, Refused):
        tally.refused.setdefault(first.reason, []).append(form)
        return
    at = machine.reserve(len(first.code))
    moved = isa.displace(form.code, form.address, at)
    assert isinstance(moved, Relocated)
    machine.write_code(at, moved.code)
    if form.mnemonic in UNREPEATABLE:
        tally.structural.setdefault(form.mnemonic, []).append(form)
        return
    for _ in range(STATES):
        made = original(machine, rng, form.address)
        if made is None:
            tally.structural.setdefault(form.mnemonic, []).append(form)
            return
        state, outcome = made
        sp = state.registers["sp"]
        try:
            run = machine.run(state, at, (at, at + len(moved.code)))
            # Memory below the stack pointer is dead (AAPCS64, 6.4.5): SIMD literals use it.
            below = (sp - 16, sp) if "ldr" in form.text or "prfm" in form.text else (0, 0)
            found = outcome.differences(run, below)
        except EmulatorError as failed:
            found = [f"the displaced code fails: {failed}"]
        if found:
            tally.differences.append(f"{form.text} at {form.address:#x}: {'; '.join(found)}")
            return
        tally.states += 1
    tally.compared += 1


def test_every_form_of_the_kernel(
    isa: Isa, machine: Machine, kernel_forms: list[Form], report: list[str]
) -> None:
    rng = random.Random(20)
    tally = Tally()
    for form in kernel_forms:
        compare(isa, machine, rng, form, tally)
    report.append(f"arm64: {tally.compared} forms equal in {tally.states} random states")
    for reason, forms in sorted(tally.refused.items()):
        names = Counter(f.mnemonic for f in forms)
        spelled = ", ".join(f"{n} ({c})" for n, c in names.items())
        report.append(f"arm64 refused: {spelled}: {reason}")
    report.append(f"arm64 copied, not emulated: {', '.join(sorted(tally.structural))}")
    assert not tally.differences, "\n".join(tally.differences[:20])
    assert tally.compared > 1000
    for forms in tally.structural.values():
        for form in forms:
            assert_copied(isa, form)


def assert_copied(isa: Isa, form: Form) -> None:
    """Check that a form that the emulator cannot run is copied, followed by a branch back, and
    does not refer to its address."""
    assert form.mnemonic not in RELATIVE, form.text
    for to in (SCRATCH, 0xFFFF_8000_0712_3450):
        moved = isa.displace(form.code, form.address, to)
        assert isinstance(moved, Relocated), form.text
        assert moved.original_at == 0
        assert moved.code[:4] == form.code, form.text
        if len(moved.code) == 4:
            assert form.mnemonic in ("retaa", "retab", "braa", "braaz"), form.text
            continue
        back = int.from_bytes(moved.code[4:], "little")
        assert back >> 26 == 0b000101
        distance = (back & 0x3FFFFFF) - (back >> 25 & 1) * (1 << 26)
        assert to + 4 + 4 * distance == form.address + 4


def test_a_naive_copy_is_seen_to_differ(machine: Machine, kernel_forms: list[Form]) -> None:
    """An instruction that must not be copied unchanged is seen to differ if it is."""
    rng = random.Random(3)
    seen = set()
    for form in kernel_forms:
        if form.mnemonic in seen or form.mnemonic not in ("b", "bl", "cbz", "tbnz", "adrp", "blr"):
            continue
        at = machine.reserve(4)
        machine.write_code(at, form.code)
        differing = 0
        for _ in range(8):
            made = original(machine, rng, form.address)
            assert made is not None
            differing += bool(made[1].differences(machine.run(made[0], at, (at, at + 4))))
        assert differing, form.text
        seen.add(form.mnemonic)
    assert len(seen) == 6


def test_share_that_can_be_planted(
    isa: Isa, text: Text, kernel_forms: list[Form], report: list[str]
) -> None:
    """Count instructions that can be planted by themselves and, in one function of ten, with those
    around them."""
    total: Counter[bool] = Counter()
    for form in kernel_forms:
        total[isinstance(isa.displace(form.code, form.address, SCRATCH), Refused)] += form.count
    alone = total[True] / sum(total.values())
    assert alone < 0.005
    held: Counter[str] = Counter()
    count = again = 0
    for address, size, _ in text.functions[::10]:
        start = address - text.address
        instructions = list(isa.decode(text.code[start : start + size], address))
        count += len(instructions)
        held.update(isa.unsafe(instructions).values())
        again += len(isa.rerun_starts(instructions))
    share = sum(held.values()) / count
    report.append(
        f"arm64: {1 - alone:.3%} of {sum(total.values())} words can be displaced; of {count}"
        f" instructions of every tenth function {share:.4%} are held: {dict(held)},"
        f" {again} need others run again"
    )
    # Sequences that the file has for processors without Armv8.1's atomics, all of them in line.
    assert 0.005 < again / count < 0.025
    assert share < 0.0001
