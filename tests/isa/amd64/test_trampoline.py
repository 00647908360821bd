"""Whole trampolines in the emulator: the original instruction must not notice the probe."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from unicorn import UC_MEM_READ
from unicorn import x86_const as x

from kinst.core.bodies import Body, CallBody, CountBody
from kinst.core.displaced import Refused, Relocated
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa.amd64 import flags
from kinst.isa.amd64.registers import FLAGS_SLOT
from tests.isa.emulated import (
    ARITHMETIC,
    PAGE,
    TRAP,
    EmulatorError,
    Machine,
    Outcome,
    State,
    random_state,
)
from tests.isa.kernel_text import Form, Text
from tests.tiers import draws

RECORD = 0xFFFF_8887_0000_0000
ARGUMENT = 0xFFFF_FFFF_9FE4_5678
COUNTERS = (0x4_0010, 0x4_0018)  # beyond the reach of any instruction of the kernel
DEAD = 4096  # bytes of dead stack that a probe may use
UNREPEATABLE = ("rdtsc", "rdtscp", "rdrand", "rdseed", "rdpmc", "cpuid")


def callee(isa: Isa, record: int) -> bytes:
    """Return machine code in the preserve-most convention.

    It records its argument, the flags and the frame at `record`, then spoils r11, flags, and the
    stack below, as it may.
    """
    slots = isa.frame_slots
    return bytes.fromhex("9c 57 56 51") + (  # pushfq; push rdi, rsi, rcx
        b"\x49\xbb" + struct.pack("<Q", record)  # movabs r11, record
        + bytes.fromhex("49893b")  # mov [r11], rdi
        + bytes.fromhex("488b7c2418 49897b08")  # mov rdi, [rsp + 24] (flags); mov [r11 + 8], rdi
        + bytes.fromhex("498d7b10")  # lea rdi, [r11 + 16]
        + b"\xb9" + struct.pack("<I", slots)  # mov ecx, slots
        + bytes.fromhex("f348a5")  # rep movsq
        + bytes.fromhex("59 5e 5f 488d642408")  # pop rcx, rsi, rdi; lea rsp, [rsp + 8]
        + bytes.fromhex("49bbefbeaddeefbeadde 4d01db 4d31db f9 c3")  # spoil; stc; ret
    )  # fmt: skip


def site_of(form: Form) -> Site:
    function = Function("vmlinux", "f", form.address - 16, 64)
    return Site(function, 16, form.code)


def known(isa: Isa, state: State, site: Site, machine: Machine) -> dict[int, int]:
    """Return the register values at the site by frame slot."""
    by_name = {r.gdb_name: r.slot for r in isa.registers}
    values = {by_name[n]: v for n, v in state.registers.items() if n in by_name}
    values[isa.pc_slot] = site.address
    values[isa.exit_slot] = 0
    values[by_name["fs_base"]] = state.fs_base
    values[by_name["gs_base"]] = state.gs_base
    for name in ("cs", "ss", "ds", "es", "fs", "gs"):
        register = getattr(x, f"UC_X86_REG_{name.upper()}")
        values[by_name[name]] = machine.uc.reg_read(register)
    return values


def usable(state: State, outcome: Outcome) -> bool:
    """Return whether the state is not single-stepping, and nothing below the stack pointer was
    read (interrupts write there)."""
    rsp = state.registers["rsp"]
    below = (rsp - DEAD, rsp)
    return not outcome.registers["eflags"] & TRAP and not any(
        below[0] <= address < below[1] and kind == UC_MEM_READ
        for kind, address, _ in outcome.accesses
    )


def without(outcome: Outcome, pages: set[int], arithmetic: bool) -> Outcome:
    """Return the outcome without some pages, and with or without the arithmetic flags."""
    memory = {page: content for page, content in outcome.memory.items() if page not in pages}
    registers = dict(outcome.registers)
    if not arithmetic:
        registers["eflags"] &= ~ARITHMETIC
    return replace(outcome, memory=memory, registers=registers)


def chosen(kernel_forms: list[Form], thorough: bool, step: int) -> list[Form]:
    """Return every form if thorough; else every `step`th form, and all with a new mnemonic."""
    seen: set[str] = set()
    found = []
    for n, form in enumerate(kernel_forms):
        mnemonic = form.text.split()[0]
        if mnemonic in UNREPEATABLE:
            continue
        if thorough or n % step == 0 or mnemonic not in seen:
            seen.add(mnemonic)
            found.append(form)
    return found


def bodies(
    rng: random.Random, isa: Isa, entry: int, kind: str
) -> tuple[list[Body], frozenset[int], int]:
    """Return bodies, the slots they ask for, and how often each counter is incremented."""
    if kind == "count":
        return [CountBody(COUNTERS[:1])], frozenset(), 1
    if kind == "counts":
        return [CountBody(COUNTERS), CountBody(COUNTERS[:1])], frozenset(), 2
    wanted = rng.randrange(0, isa.frame_slots)
    slots = frozenset(rng.sample(range(isa.frame_slots), wanted))
    call = CallBody(entry, ARGUMENT, slots)
    if kind == "mixed":
        other = CallBody(entry, ARGUMENT + 64, frozenset([0]))
        return [other, CountBody(COUNTERS[:1]), call], slots | {0}, 1
    return [call], slots, 0


@pytest.mark.drawn
@pytest.mark.parametrize("kind", ["count", "counts", "call", "mixed"])
def test_nothing_but_the_probe_happens(
    isa: Isa, machine: Machine, kernel_forms: list[Form], text: Text, thorough: bool, kind: str
) -> None:
    rng = random.Random(kind)
    code = callee(isa, RECORD)
    compared = 0
    wrong: list[str] = []
    for form in chosen(kernel_forms, thorough, draws(40, 12)):
        site = site_of(form)
        entry = machine.reserve(len(code) + 1024)
        at = entry + 128
        work, slots, ups = bodies(rng, isa, entry, kind)
        end = form.address + len(form.code) - text.address
        following = text.code[end : end + 64]
        made = isa.trampoline(site, following, at, work)
        if isinstance(made, Refused):
            assert isinstance(isa.displace(form.code, form.address, at), Refused)
            continue
        assert len(made.code) < 800
        machine.write_code(entry, code)
        machine.write_code(at, made.code)
        machine.with_vectors = "mm" in form.text
        counting = ups and kind in ("count", "counts")
        live = not (
            counting
            and flags.dead(form.code, following, form.address, flags.ARITHMETIC & ~flags.CF)
        )
        for attempt in range(4):
            state = random_state(rng, tame=attempt % 2 == 1, count="rep" in form.text)
            try:
                outcome = machine.run(state, form.address, len(form.code))
            except EmulatorError:
                continue
            if usable(state, outcome):
                break
        else:
            continue
        now = machine.run(state, at, len(made.code), (entry, entry + len(code)))
        counters = state.gs_base + 0x4_0000 & -PAGE
        rsp = state.registers["rsp"]
        found = without(outcome, set(), live).differences(
            without(now, {counters, RECORD}, live), (rsp - DEAD, rsp)
        )
        found += check_probe(isa, now, known(isa, state, site, machine), counters, slots, ups)
        if found:
            wrong.append(f"{form.text} at {form.address:#x}: {'; '.join(found)}")
        compared += 1
    assert not wrong, "\n".join(wrong[:10])
    assert compared > draws(500, 1000)


def check_probe(
    isa: Isa, now: Outcome, values: dict[int, int], counters: int, slots: frozenset[int], ups: int
) -> list[str]:
    """Return the differences between the probe's work and the expected work."""
    found = []
    if ups:
        at = COUNTERS[0] % PAGE
        was = struct.unpack_from("<Q", now.before[counters], at)[0]
        is_ = struct.unpack_from("<Q", now.memory[counters], at)[0]
        if is_ != (was + ups) % (1 << 64):
            found.append("the counter")
        same = bytearray(now.before[counters])
        same[at : at + 16] = now.memory[counters][at : at + 16]
        if bytes(same) != now.memory[counters]:
            found.append("memory beside the counters")
    if RECORD in now.memory:
        recorded = struct.unpack_from(f"<{isa.frame_slots + 2}Q", now.memory[RECORD])
        if recorded[0] != ARGUMENT:
            found.append("the argument")
        if recorded[1] & 0x600:
            found.append("interrupts or DF in the callee")
        for slot in slots | {FLAGS_SLOT}:
            if recorded[2 + slot] != values[slot]:
                found.append(f"frame slot {slot}: {recorded[2 + slot]:#x} != {values[slot]:#x}")
    elif not ups:
        found.append("the callee was not called")
    return found


def test_counting_saves_no_flags_where_they_are_dead(isa: Isa) -> None:
    site = Site(Function("vmlinux", "f", 0xFFFFFFFF81000000, 64), 0, bytes.fromhex("4889c3"))
    to = 0xFFFFFFFF9FE00000
    body = CountBody((0x1000,))
    inc = bytes.fromhex("6548ff042500100000")
    dead = isa.trampoline(site, bytes.fromhex("488b07 4885c0 7402"), to, [body])  # test rax, rax
    live = isa.trampoline(site, bytes.fromhex("488b07 7402"), to, [body])  # je
    assert isinstance(dead, Relocated) and isinstance(live, Relocated)
    assert dead.code.startswith(inc + site.code + b"\xe9")
    assert dead.original_at == len(inc)
    # push rax; lahf; seto al; inc; add al, 127; sahf; pop rax
    assert live.code.startswith(bytes.fromhex("509f0f90c0") + inc + bytes.fromhex("047f9e58"))


def test_a_call_touches_only_what_it_needs(isa: Isa) -> None:
    site = Site(Function("vmlinux", "f", 0xFFFFFFFF81000000, 64), 0, bytes.fromhex("c3"))
    to = 0xFFFFFFFF9FE00000
    slots = {r.d_name: r.slot for r in isa.registers}
    free = frozenset(slots[name] for name in ("R_RDI", "R_RSI", "R_R11", "R_RFL"))
    made = isa.trampoline(site, b"", to, [CallBody(to + 0x1000, 7, free)])
    none = isa.trampoline(site, b"", to, [CallBody(to + 0x1000, 7, frozenset())])
    assert made == none  # they are saved anyway
    more = isa.trampoline(site, b"", to, [CallBody(to + 0x1000, 7, frozenset([slots["R_RDX"]]))])
    assert isinstance(made, Relocated) and isinstance(more, Relocated)
    assert len(more.code) > len(made.code)
    mnemonics = [i.text.split()[0] for i in isa.decode(made.code, to)]
    expected = "pushfq cli cld push push push lea mov call pop pop pop popfq ret"
    assert " ".join(mnemonics) == expected


# hlt, mwait, mwaitx, umwait ecx, sysexit, sysexitq, iretd, iretq, iretw.
@pytest.mark.parametrize(
    "after", ["f4", "0f01c9", "0f01fb", "f20faef1", "0f35", "480f35", "cf", "48cf", "66cf"]
)
def test_sti_is_kept_with_what_it_protects(isa: Isa, after: str) -> None:
    site = Site(Function("vmlinux", "f", 0xFFFFFFFF81000000, 64), 0, b"\xfb")
    made = isa.trampoline(site, bytes.fromhex(after) + b"\x90", 0xFFFFFFFF9FE00000, [])
    assert isinstance(made, Refused) and "sti protects" in made.reason
    fine = isa.trampoline(site, bytes.fromhex("4889c3"), 0xFFFFFFFF9FE00000, [])
    assert isinstance(fine, Relocated)


def test_code_out_of_reach_is_refused(isa: Isa) -> None:
    site = Site(Function("vmlinux", "f", 0xFFFFFFFF81000000, 64), 0, b"\x90")
    made = isa.trampoline(
        site, b"", 0xFFFFFFFF9FE00000, [CallBody(0x7FAB_0000_0000, 0, frozenset())]
    )
    assert isinstance(made, Refused) and "2 GB" in made.reason
