"""Actions that change the fake kernel, in every way of planting: regs[] =, return(), skip() and
goto().

The authority is the untraced processor: with its registers written at the same instruction, as a
debugger would write them, or with no-operations in the place of skipped instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from kinst.core.errors import DError, KinstError
from kinst.core.instruction import Instruction
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_reference import compared, steps
from tests.fake.fake_system import FakeSystem
from tests.fake.fake_tracing import Traced, trace
from tests.tiers import ISAS

WAYS = ("auto", "trap", "stop")
pytestmark = pytest.mark.parametrize("isa", ISAS)
both = pytest.mark.parametrize("way", WAYS)
MASK = (1 << 64) - 1
NOPS = {"amd64": b"\x90", "arm64": b"\x1f\x20\x03\xd5", "riscv64": b"\x01\x00"}
VALUE = 0x1234_5678_9ABC_DEF0
MANY = Call("many", tuple(range(3, 12)))


def run(
    machine: FakeMachine, program: str, workload: Sequence[Call], way: str = "auto", **more: Any
) -> Traced:
    """Trace with -w, and check that the text is as before afterwards."""
    before = machine.text
    settings = {"plant": way, "destructive": ""}
    traced = trace(machine, program, workload, settings=settings, **more)
    assert machine.text == before
    assert machine.idle
    return traced


def untraced(isa: str, workload: Sequence[Call]) -> list[int]:
    machine = FakeMachine(isa)
    machine.run_all(workload)
    return machine.results()


def code_of(machine: FakeMachine, name: str) -> list[Instruction]:
    start, size = machine.kernel.symbols[name]
    return list(machine.isa.decode(machine.read(start, size), start))


def straight(machine: FakeMachine, name: str) -> list[Instruction]:
    """Return the instructions of a function that neither branch nor change the stack pointer."""
    return [
        one
        for one in code_of(machine, name)
        if machine.isa.flow(one.code, one.address).kind == "next"
        and "sp" not in one.text.split(",")[0]
        and not one.text.startswith(("push", "pop"))
    ]


def without(isa: str, places: Mapping[int, int], workload: Sequence[Call]) -> list[int]:
    """Return the results of a workload with no-operations in the place of some code.

    Args:
        places: bytes of the code by address.
    """
    machine = FakeMachine(isa)
    nop = NOPS[isa]
    for address, size in places.items():
        machine.virtual.write(address, nop * (size // len(nop)))
    for processor in machine.processors:
        processor.flush()
    machine.run_all(workload)
    return machine.results()


# return().


@both
def test_a_function_does_not_run_and_its_caller_gets_the_value(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    calls = [Call("leaf", (n, 2 * n)) for n in range(6)]
    program = "fbt::leaf:entry /arg0 == 3/ { return(-13); } fbt::leaf:return { @ = count(); }"
    traced = run(machine, program, calls, way)
    assert machine.results() == [5 * n if n != 3 else -13 & MASK for n in range(6)]
    assert traced.numbers == [5]


@both
def test_callers_go_on_with_what_is_returned(isa: str, way: str) -> None:
    workload = [Call("work", (9,)), Call("exercise", (5,))]
    machine = FakeMachine(isa)
    run(machine, "fbt::leaf:entry { return(arg0 + 2 * arg1); }", workload, way)
    assert machine.results() == untraced(isa, workload)


@both
def test_a_recursion_can_be_cut(isa: str, way: str) -> None:
    machine, call = FakeMachine(isa), Call("fibonacci", (9,))
    program = """
        fbt::fibonacci:entry { @ = count(); }
        fbt::fibonacci:entry /arg0 == 5/ { return(5); }
        fbt::fibonacci:entry /arg0 == 4/ { return(3); }"""
    traced = run(machine, program, [call], way)
    assert machine.results() == [34]
    entries = sum(s.address == machine.address("fibonacci") for s in steps(isa, [call]))
    assert traced.numbers[0] < entries


@both
def test_two_probes_of_an_instruction_may_change_it(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    program = """
        fbt::leaf:entry /arg1 == 1/ { return(7); }
        kinst::leaf:0 { @[cpu] = count(); }
        fbt::leaf:entry /arg1 == 2/ { return(8); }"""
    traced = run(machine, program, [Call("leaf", (n, n)) for n in range(4)], way)
    assert machine.results() == [0, 7, 8, 9]
    assert traced.numbers == [0, 4]


# regs[] =.


def by_hand(isa: str, stub: str, workload: Sequence[Call]) -> Mapping[str, int]:
    """Return the registers at leaf's second instruction if one register is written at the first.

    Args:
        stub: the GDB stub's name of the register.
    """
    machine = FakeMachine(isa)
    first, second = code_of(machine, "leaf")[:2]
    processor = machine.processors[0]
    found: list[dict[str, int]] = []
    processor.watch(first.address, lambda _registers: processor.set(stub, VALUE))
    processor.watch(second.address, lambda registers: found.append(dict(registers)))
    processor.insert(second.address)
    machine.begin(workload)
    machine.resume()
    machine.wait(10)
    return processor.registers() if not found else found[0]


@both
def test_a_written_register_is_the_only_one_that_changes(isa: str, way: str) -> None:
    """Each register in turn; the next instruction has it back as it was."""
    workload = [Call("leaf", (3, 4))]
    machine = FakeMachine(isa)
    second = code_of(machine, "leaf")[1]
    start = machine.address("leaf")
    registers = compared(machine)
    slots = {r.d_name: r.slot for r in machine.isa.registers}
    written = [one for one in registers if slots[one[0]] in machine.isa.writable_slots]
    assert len(written) >= 15
    values = ", ".join(f"regs[{d_name}]" for d_name, _, _ in registers)
    formats = " ".join(["%x"] * len(registers))
    calls, clauses = [], []
    for k, (d_name, _, _) in enumerate(written):
        clauses.append(f"""
            kinst::leaf:0 /n == {k}/ {{ was = regs[{d_name}]; regs[{d_name}] = {VALUE:#x}; }}
            kinst::leaf:{second.address - start} /n == {k}/
            {{ printf("{formats}\\n", {values}); regs[{d_name}] = was; }}""")
        calls += workload
    declared = "int64_t n; uint64_t was; "
    program = f"{declared}{''.join(clauses)} kinst::leaf:{second.address - start} {{ n++; }}"
    traced = run(machine, program, calls, way)
    assert len(traced.lines) == len(written)
    for (_, stub, _), line in zip(written, traced.lines, strict=True):
        expected = by_hand(isa, stub, workload)
        found = [int(word, 16) for word in line.split()]
        for (d_name, name, mask), value in zip(registers, found, strict=True):
            assert value & mask == expected[name] & mask, (stub, d_name)


@both
def test_writes_of_the_same_values_change_nothing(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    workload = [Call("exercise", (3,)), Call("fibonacci", (4,))]
    slots = {r.slot: r.d_name for r in machine.isa.registers}
    own = "".join(
        f"regs[{slots[slot]}] = regs[{slots[slot]}]; "
        for slot in sorted(machine.isa.writable_slots)
    )
    names = ("exercise", "work", "leaf", "fibonacci", "choose", "indirect", "many", "open_file")
    probes = ",".join(f"kinst::{name}:" for name in names)
    traced = run(machine, f"{probes} {{ {own} @ = count(); }}", workload, way)
    assert machine.results() == untraced(isa, workload)
    assert traced.numbers[0] > 400


@both
def test_a_written_argument_is_the_functions(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    name = {"amd64": "R_RSI", "arm64": "R_X1", "riscv64": "R_A1"}[isa]
    program = f"kinst::leaf:0 /pid == 100/ {{ regs[{name}] += 10; }}"
    run(machine, program, [Call("leaf", (n, n)) for n in range(4)], way)
    assert machine.results() == [3 * n + 20 for n in range(4)]


# skip() and goto().


@both
def test_skipped_instructions_are_as_if_they_were_no_operations(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    places = straight(machine, "many")
    some = places[1:8:3]
    assert len(some) == 3
    probes = ",".join(f"kinst::many:{one.address - machine.address('many')}" for one in some)
    traced = run(machine, f"{probes} {{ skip(); @ = count(); }}", [MANY], way)
    assert machine.results() == without(isa, {one.address: one.size for one in some}, [MANY])
    assert machine.results() != untraced(isa, [MANY])
    assert traced.numbers == [3]


class WithFrames(FakeSystem):
    """The fake system with unwind tables: the same frame everywhere but at some addresses."""

    others: Mapping[int, tuple[str, int] | None] = {}

    def frame_address(self, address: int) -> tuple[str, int] | None:
        return self.others.get(address, ("R_SP", 8))


@both
def test_control_continues_at_another_instruction(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    code = straight(machine, "many")
    first, last = next(
        (one, other)
        for one, other in zip(code[2:], code[5:], strict=False)
        if all(a.end == b.address for a, b in pairwise(code[code.index(one) : code.index(other)]))
    )
    start = machine.address("many")
    here, there = first.address - start, last.address - start
    program = f"kinst::many:{here} {{ goto({there}); }}"
    run(machine, program, [MANY], way, system=WithFrames(machine))
    assert machine.results() == without(isa, {first.address: last.address - first.address}, [MANY])
    assert machine.results() != untraced(isa, [MANY])


@both
def test_other_probes_of_the_function_still_fire(isa: str, way: str) -> None:
    """An instruction that goto() leads to has its own probe, and the skipped ones do not fire."""
    machine = FakeMachine(isa)
    code, start = code_of(machine, "many"), machine.address("many")
    here, there = code[3].address - start, code[6].address - start
    program = f"kinst::many: {{ @[regs[R_PC] - {start:#x}] = count(); }}"
    program = program.replace("R_PC", "R_RIP" if isa == "amd64" else "R_PC")
    jump = f"kinst::many:{here} {{ goto({there}); }} {program}"
    traced = run(machine, jump, [MANY], way, system=WithFrames(machine))
    fired = dict(zip(traced.numbers[::2], traced.numbers[1::2], strict=True))
    left_out = {one.address - start for one in code[4:6]}
    executed = {one.address - start for one in code} - left_out
    assert fired == dict.fromkeys(sorted(executed), 1)


# Memory.


@both
def test_memory_of_the_kernel_is_written(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    counter, flags = machine.address("counter"), machine.address("files") + 16
    copying = f"copyout(this->text, {counter + 4:#x}, 2);" if way != "stop" else ""
    flags_before = int.from_bytes(machine.read(flags, 4), "little")
    program = f"""
        kinst::leaf:0 /pid == 100/ {{
            *(uint64_t *){counter:#x} += 5;
            *(uint32_t *){flags:#x} |= 0x80;
            this->text = alloca(8); *(uint32_t *)this->text = 0x01020304;
            *((char *)this->text + 1) = 9;
            {copying}
            printf("%x\\n", *(uint32_t *)this->text); }}"""
    traced = run(machine, program, [Call("leaf", (1, 2))], way)
    assert traced.lines == ["1020904"]
    assert machine.word("counter") == (5 | 0x0904 << 32 if copying else 5)
    assert int.from_bytes(machine.read(flags, 4), "little") == flags_before | 0x80
    assert machine.results() == [5]


@both
def test_variables_of_the_kernel_are_assigned(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    program = """
        fbt::add_atomic:entry /arg0 == 2/ { `counter = 40; `files[1].size = 7; }"""
    traced = run(machine, program, [Call("add_atomic", (n,)) for n in (1, 2, 3)], way)
    assert machine.results() == [0, 40, 42]
    assert machine.word("counter") == 45
    assert int.from_bytes(machine.read(machine.address("files") + 32 + 8, 8), "little") == 7
    assert not traced.lines


@both
def test_a_store_that_cannot_be_made_is_a_fault(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    bad = [8, 0xFFFF_FFFF_0000_0000 - 1] + [machine.address("leaf")] * (way == "stop")
    clauses = "".join(
        f"kinst::leaf:0 /regs[{name_of_argument(isa)}] == {n}/ {{ *(char *){at:#x} = 1; }} "
        for n, at in enumerate(bad)
    )
    calls = [Call("leaf", (n, 0)) for n in range(len(bad))]
    traced = run(machine, f"{clauses} ERROR {{ @[arg4] = count(); }}", calls, way)
    assert traced.numbers == [1, len(bad)]
    assert machine.results() == list(range(len(bad)))


@both
def test_without_permission_no_memory_of_the_kernel_is_written(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    program = f"kinst::leaf:0 {{ *(uint64_t *){machine.address('counter'):#x} = 5; }}"
    traced = trace(
        machine, f"{program} ERROR {{ @ = count(); }}", [Call("leaf", (1, 2))],
        settings={"plant": way},
    )  # fmt: skip
    assert traced.numbers == [1]
    assert machine.word("counter") == 0
    with pytest.raises(KinstError, match="`counter ="):
        trace(machine, "kinst::leaf:0 { `counter = 5; }", [])


# Signals and the end.


@pytest.mark.parametrize("way", ["auto", "trap"])
def test_signals_are_sent_in_an_interrupt_of_their_own(isa: str, way: str) -> None:
    for action, number in (("raise(arg0 + 4)", 9), ("stop()", 19)):
        machine = FakeMachine(isa)
        calls = [Call("leaf", (5, 0), 1), Call("do_work", (), 1), Call("do_work", (), 1)]
        program = f"fbt::leaf:entry {{ {action}; }} fbt::do_work:entry {{ @ = count(); }}"
        traced = run(machine, program, calls, way)
        assert (machine.word("sent_signal"), machine.word("sent_to")) == (number, 201)
        assert machine.results(1) == [5, 1, 0]
        assert traced.numbers == [2]


@pytest.mark.parametrize("way", ["auto", "trap"])
def test_panic_ends_the_kernel(isa: str, way: str) -> None:
    machine = FakeMachine(isa)
    run(machine, "fbt::leaf:entry { panic(); }", [Call("leaf", (5, 0))], way)
    assert machine.word("last_words").to_bytes(8, "little") == b"kinst: p"


def test_what_only_the_kernel_can_do_is_refused_where_the_machine_stops(isa: str) -> None:
    for action in ("panic()", "raise(9)", "stop()"):
        told = refused(isa, f"fbt::leaf:entry {{ {action}; }}", way="stop")
        assert "planted in the guest" in told


def name_of_argument(isa: str) -> str:
    return {"amd64": "R_RDI", "arm64": "R_X0", "riscv64": "R_A0"}[isa]


# Refusals.


def refused(isa: str, program: str, **more: Any) -> str:
    with pytest.raises((DError, KinstError)) as error:
        run(FakeMachine(isa), program, [Call("work", (1,))], **more)
    return error.value.message


def test_such_actions_need_permission(isa: str) -> None:
    register = {"amd64": "R_RAX", "arm64": "R_X9", "riscv64": "R_T0"}[isa]
    for action, name in (
        ("return(1)", "return( )"), ("skip()", "skip( )"), ("goto(4)", "goto( )"),
        (f"regs[{register}] = 1", "regs[ ] ="),
    ):  # fmt: skip
        with pytest.raises(KinstError) as error:
            trace(FakeMachine(isa), f"fbt::leaf:entry {{ {action}; }}", [])
        assert error.value.message.endswith(f"destructive actions not allowed: {name}")


def test_return_is_refused_where_it_would_not_return(isa: str) -> None:
    second = code_of(FakeMachine(isa), "work")[1].address - FakeMachine(isa).address("work")
    assert "entry" in refused(isa, f"kinst::work:{second} {{ return(1); }}")
    assert "void" in refused(isa, "fbt::idle:entry { return(1); }")
    assert "no function" in refused(isa, "BEGIN { return(1); }")
    assert "inlined copy of mix" in refused(isa, "kinst::mix:entry { return(1); }")


def test_skip_is_refused_for_what_decides_about_control_or_stack(isa: str) -> None:
    machine = FakeMachine(isa)
    start = machine.address("fibonacci")
    code = code_of(machine, "fibonacci")
    kinds = {machine.isa.flow(one.code, one.address).kind: one for one in code}
    for kind in ("branch", "call", "return"):
        told = refused(isa, f"kinst::fibonacci:{kinds[kind].address - start} {{ skip(); }}")
        assert "branch, call, return" in told, kind
    moves = ("]!", "push", "addi sp", "addi16sp", "sp, sp")
    moving = next(one for one in code if any(word in one.text for word in moves))
    told = refused(isa, f"kinst::fibonacci:{moving.address - start} {{ skip(); }}")
    assert "stack pointer" in told


def test_goto_is_refused_where_the_frame_is_another(isa: str) -> None:
    machine = FakeMachine(isa)
    code, start = code_of(machine, "many"), machine.address("many")
    here, there = code[1].address - start, code[4].address - start
    program = f"kinst::many:{here} {{ goto({there}); }}"
    assert "no rule" in refused(isa, program)
    system = WithFrames(machine)
    system.others = {code[4].address: ("R_SP", 24)}
    assert "stack frame" in refused(isa, program, system=system)
    beyond = machine.kernel.symbols["many"][1] + 64
    for offset in (code[4].address - start + 1, beyond):
        told = refused(isa, f"kinst::many:{here} {{ goto({offset}); }}", system=system)
        assert "no instruction" in told


def test_some_registers_cannot_be_assigned(isa: str) -> None:
    sp, pc = ("R_RSP", "R_RIP") if isa == "amd64" else ("R_SP", "R_PC")
    assert "stack pointer" in refused(isa, f"kinst::leaf:0 {{ regs[{sp}] = 1; }}")
    assert "goto" in refused(isa, f"kinst::leaf:0 {{ regs[{pc}] = 1; }}")
    flags = {"amd64": "R_RFL", "arm64": "R_PSTATE", "riscv64": "R_SSTATUS"}[isa]
    assert "as they are" in refused(isa, f"kinst::leaf:0 {{ regs[{flags}] = 1; }}")
    others = {
        "amd64": {"R_DS": "segments", "R_GSBASE": "segments"},
        "arm64": {},
        "riscv64": {"R_GP": "data", "R_TP": "current thread"},
    }[isa]
    for register, reason in others.items():
        assert reason in refused(isa, f"kinst::leaf:0 {{ regs[{register}] = 1; }}")


def test_where_no_instruction_is_nothing_is_changed(isa: str) -> None:
    register = {"amd64": "R_RAX", "arm64": "R_X9", "riscv64": "R_T0"}[isa]
    for probe in ("BEGIN", "END", "tick-1s", "ERROR"):
        for action in ("return(1)", "skip()", "goto(4)", f"regs[{register}] = 1"):
            assert "no function" in refused(isa, f"{probe} {{ {action}; }}"), (probe, action)
