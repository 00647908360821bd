"""Properties of the target's code: length of the hot path, hooks, real time, refusals."""

from __future__ import annotations

import random
from dataclasses import replace

import capstone
import llvmlite.binding as llvm
import pytest
import unicorn

from kinst.codegen import hooks
from kinst.codegen.code_machine import CodeMachine, target_machine
from kinst.codegen.compile import (
    ProgramEntries,
    compile_functions,
    compile_target,
)
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.llvm_calls import ObjectError, read_object
from kinst.codegen.ssa import IrFunction
from kinst.core import layout as lay
from kinst.core.columns import Pairs
from kinst.core.dtypes import UINT64
from kinst.core.errors import KinstError
from kinst.core.system import Facts, PerCpu
from kinst.dlang import typed as t
from kinst.dlang.typed import AggFunction, AggregationVariable
from kinst.isa import load as load_isa
from tests.codegen.codegen_rig import (
    BASE,
    BUILTINS,
    CLOCK,
    NOFAULT,
    SPAN,
    STACK,
    TargetRig,
    builtin,
    program,
    reg,
    scratch,
    string,
    trace,
)

COUNT = AggregationVariable("", 0, (), AggFunction("count"))
FACTS = Facts(
    "Linux", "6.1", cpus=2, builtins=BUILTINS, nofault_read=NOFAULT, trap_pc_offset=0x80,
    trap_pc_delta=1, per_cpu_bases=(0, 0), clock=CLOCK, per_cpu=PerCpu(256),
)  # fmt: skip


class LaterClock(TargetRig):
    """A target whose kernel has set its clock since, as each boot and each saved state does."""

    def target_machine(self) -> CodeMachine:
        clock = replace(CLOCK, base_cycles=CLOCK.base_cycles + 977, mult=CLOCK.mult + 3)
        return replace(super().target_machine(), clock=clock)


def test_code_does_not_depend_on_the_clocks_numbers() -> None:
    """So the next trace finds it in the cache. test_records_and_faults.py checks the time."""
    made = program([trace(builtin("timestamp"))])
    first, second = TargetRig(made, {1: (0,)}), LaterClock(made, {1: (0,)})
    assert first.code.code == second.code.code and first.code.ir == second.code.ir
    times = []
    for rig in (first, second):
        rig.fire(1)
        (record,) = rig.records(rig.slot)
        times.append(record.time)
    assert times[0] != times[1]


def executed(run: TargetRig) -> list[str]:
    """Return the instructions that one firing executes."""
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found: list[str] = []

    def note(emulator: object, address: int, size: int, _: object) -> None:
        code = run.emulator.mem_read(address, size)
        found.extend(f"{i.mnemonic} {i.op_str}" for i in decoder.disasm(bytes(code), address))

    hook = run.emulator.hook_add(unicorn.UC_HOOK_CODE, note)
    run.fire(1)
    run.emulator.hook_del(hook)
    return found


def summary(found: list[str]) -> tuple[int, int, int]:
    """Return (instructions, pushes, calls)."""
    return (
        len(found),
        sum(line.startswith("push") for line in found),
        sum(line.startswith("call") for line in found),
    )


def test_counting_is_short() -> None:
    run = TargetRig(
        program([t.AggregateAction(SPAN, COUNT, (), None)], aggregations=(COUNT,)), {1: (0,)}
    )
    total, pushes, calls = summary(executed(run))
    assert run.table(0, 0) == {bytes(8): (1,)}
    assert total <= 22 and pushes <= 2 and calls == 0


def test_inactive_is_shorter() -> None:
    run = TargetRig(program([trace(reg(1))]), {1: (0,)})
    run.write(lay.HEADER_ACTIVE, bytes(8))
    assert summary(executed(run))[0] <= 17
    assert run.records(0) == [] and run.state(lay.STATE_SEQUENCE, 0) == 0


def test_a_record_is_short_and_calls_nothing() -> None:
    run = TargetRig(program([trace(reg(1)), trace(reg(2))]), {1: (0,)})
    total, pushes, calls = summary(executed(run))
    assert len(run.records(0)) == 1
    assert total <= 60 and pushes <= 7 and calls == 0


def test_a_fault_safe_load_costs_the_path_no_more_than_its_call() -> None:
    run = TargetRig(program([trace(t.Load(UINT64, SPAN, reg(1)))]), {1: (0,)}, memory={0: bytes(8)})
    _, pushes, calls = summary(executed(run))
    assert calls == 2 and pushes <= 24  # the helper, and in it the kernel's function


def test_real_time_in_order() -> None:
    """The clock is the ISA's own instruction for the cycle counter."""

    class Timed(TargetRig):
        def target_machine(self):  # type: ignore[no-untyped-def]
            facts = replace(FACTS, clock=replace(CLOCK, shift=20, mult=1 << 20))
            timed = target_machine(load_isa("amd64"), facts, self.scratch)
            return replace(
                super().target_machine(),
                timestamp_asm=timed.timestamp_asm,
                timestamp_constraints=timed.timestamp_constraints,
                features=timed.features,
                clock=timed.clock,
            )

    run = Timed(program([trace(builtin("timestamp"))], [trace(builtin("timestamp"))]), {1: (0, 1)})
    for _ in range(5):
        run.fire(1)
    records = run.records(0)
    times = [r.time for r in records]
    assert [int.from_bytes(run.fields(r)[0], "little") for r in records] == times
    assert times[0::2] == times[1::2], "one firing has one time"
    assert times[0::2] == sorted(set(times[0::2]))


def test_trap_hook_finds_its_sites_and_nothing_else() -> None:
    run = TargetRig(program([]), {1: (0,)})
    choose = random.Random(1)
    sites = [0xFFFFFFFF81000000 + i for i in choose.sample(range(1 << 24), 500)]
    pairs = [(site, BASE + 0x100000 + 64 * i) for i, site in enumerate(sites)]
    saved = STACK + 0x1000
    hook = run.code.address + run.code.trap_hook

    def trap(pc: int) -> tuple[int, int]:
        run.emulator.mem_write(saved + 0x80, (pc + 1).to_bytes(8, "little"))
        result = run.call(hook, saved)
        return result, int.from_bytes(run.emulator.mem_read(saved + 0x80, 8), "little")

    assert trap(sites[0]) == (0, sites[0] + 1), "no table yet"
    for count in (0, 1, 2, 500):
        table = bytes(hooks.build_trap_table(BASE + run.scratch.traps, Pairs.of(pairs[:count])))
        run.write(run.scratch.traps, table[:4096].ljust(4096, b"\0"))
        if len(table) > 4096:  # the rig's area is small: it is followed by free text
            run.write(run.scratch.traps, table)
            run.emulator.mem_write(BASE + 0x180000, run.code.code)
            hook = BASE + 0x180000 + run.code.trap_hook
        for site, trampoline in pairs[:count]:
            assert trap(site) == (1, trampoline)
        for site, _ in pairs[count : count + 50]:
            assert trap(site) == (0, site + 1)
        for other in (0, 1, sites[0] + 1, (1 << 64) - 2):
            if other not in sites[:count]:
                assert trap(other)[0] == 0


def test_fault_hook_translates_copies_alone() -> None:
    run = TargetRig(program([]), {1: (0,)})
    text = BASE + run.scratch.text
    copies = [(text + 0x1000 + 37 * i, 0xFFFFFFFF81000000 + i) for i in range(60)]
    hook = run.code.address + run.code.fault_hook
    outside = [0, text - 1, BASE + run.scratch.size, 0xFFFFFFFF81000000, (1 << 64) - 1]
    for address in [*outside, text, copies[3][0]]:
        assert run.call(hook, address) == address, "no table yet"
    traps = [(copies[5][0] + 1, 1), (copies[6][0] + 2, 2)]
    table = bytes(
        hooks.build_trap_table(BASE + run.scratch.traps, Pairs.of(traps), Pairs.of(copies))
    )
    assert len(table) <= 4096
    run.write(run.scratch.traps, table)
    for copy, site in copies:
        assert run.call(hook, copy) == site
    for address in [*outside, text, copies[5][0] + 1, copies[0][0] - 1]:
        assert run.call(hook, address) == address


def test_machine_needs_cpu_and_nofault_read() -> None:
    isa = load_isa("amd64")
    where = scratch()
    with pytest.raises(KinstError, match="the number of a CPU"):
        target_machine(isa, replace(FACTS, builtins={}), where)
    with pytest.raises(KinstError, match="reads memory without faulting"):
        target_machine(isa, replace(FACTS, nofault_read=0), where)


def test_records_need_a_clock() -> None:
    where = scratch()
    machine = target_machine(load_isa("amd64"), replace(FACTS, clock=None), where)
    one = program([trace(string(b"x"))])
    layout = lay_out_program(one, [], 64, where.agg_size)
    with pytest.raises(KinstError, match="clock"):
        compile_target(ProgramEntries(one, layout, [(0,)], (), BASE), machine, BASE)


def test_assembly_is_passed_on_as_it_is() -> None:
    """Quotes, backslashes and lines: the assembler's .ascii is in the code."""
    code = IrFunction("f", (), 64, "ccc", internal=False)
    lines = ["jmp 1f", r'.ascii "a\\b\"c"', "1: movabsq $$0x1122334455667788, $0"]
    code.ret(code.asm("\n".join(lines), "=r"))
    machine = replace(TargetRig(program([]), {1: (0,)}).target_machine(), llvm_options=())
    found = compile_functions([code], machine)["f"]
    assert rb'a\b"c' in found and (0x1122334455667788).to_bytes(8, "little") in found


def test_the_functions_of_an_object() -> None:
    """A word among them is no function."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-none").create_target_machine(
        reloc="static", codemodel="small"
    )
    text = '@word = constant i32 5, section ".text"'
    text += "".join(f" define void @{name}() nounwind {{ ret void }}" for name in ("one", "two"))
    found = read_object(machine.emit_object(llvm.parse_assembly(text)))
    assert found.offsets.keys() == found.sizes.keys() == {"one", "two"}


def test_objects_with_more_than_text_are_refused() -> None:
    """Relocations and data would be lost: the reader must refuse them."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-none").create_target_machine(
        reloc="static", codemodel="small"
    )
    for source in (
        "declare void @other() define void @f() { call void @other() ret void }",
        "@g = global i32 5 define i32 @f() { %v = load i32, ptr @g ret i32 %v }",
    ):
        with pytest.raises(ObjectError):
            read_object(machine.emit_object(llvm.parse_assembly(source)))
