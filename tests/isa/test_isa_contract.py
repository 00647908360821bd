"""Contract of every instruction set (kinst/core/isa.py).

A new instruction set must pass these tests before the rest of kinst is tried with it.  Tests with
`isa` run for all of them, tests with `each` for those that plant.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import llvmlite.binding as llvm
import pytest

from kinst.core.board import Board
from kinst.core.bodies import CallBody, CountBody
from kinst.core.displaced import Refused, Relocated
from kinst.core.instruction import Flow
from kinst.core.isa import Isa
from kinst.core.page_tables import Paging
from kinst.core.probe import Function, Site
from kinst.isa import load, name_of_machine, names
from tests.contracts import missing
from tests.isa.gnu_assembler import assembled

AT = 0xFFFF_FFFF_8100_0000  # an address that kernels of all of them use
SCRATCH = AT + (1 << 19)  # within reach of every direct branch
KINDS = {"next", "landing", "jump", "branch", "call", "return", "indirect", "trap"}


@pytest.fixture(params=names())
def isa(request: pytest.FixtureRequest) -> Isa:
    """Return each instruction set."""
    return load(request.param)


@pytest.fixture(params=[name for name in names() if not load(name).no_trampolines])
def each(request: pytest.FixtureRequest) -> Isa:
    """Return each instruction set that plants."""
    return load(request.param)


def samples(isa: Isa) -> ModuleType:
    """Return tests/isa/NAME/samples.py: a no-operation, a call and a move."""
    return import_module(f"tests.isa.{isa.name}.samples")


@pytest.fixture
def nop(each: Isa) -> bytes:
    code: bytes = samples(each).NOP
    return code


def site_of(code: bytes) -> Site:
    return Site(Function("vmlinux", "f", AT, 64), 0, code)


def test_it_is_found_by_its_name_and_by_its_elf_machine(isa: Isa) -> None:
    assert load(isa.name) is isa
    assert name_of_machine(isa.elf_machine) == isa.name


def test_it_has_everything_that_the_protocols_ask(isa: Isa) -> None:
    attributes = {name for part in Isa.__mro__ for name in inspect.get_annotations(part)}
    assert [name for name in sorted(attributes) if not hasattr(isa, name)] == []
    assert isinstance(isa, Isa) and isinstance(isa.paging, Paging)


def test_registers_are_told_apart(isa: Isa) -> None:
    d_names = [r.d_name for r in isa.registers]
    assert len(set(d_names)) == len(d_names)
    assert all(re.fullmatch("R_[A-Z0-9]+", name) for name in d_names)
    assert not set(d_names) & set(isa.unavailable_registers)
    assert all(why for why in isa.unavailable_registers.values())
    slots = {r.slot for r in isa.registers}
    own = slots | {isa.exit_slot} - {-1}
    assert own == set(range(isa.frame_slots)), "the frame has no slot that is nothing's"
    assert isa.exit_slot not in slots
    assert not isa.writable_slots & {isa.pc_slot, isa.sp_slot, *isa.fixed_slots}
    assert isa.writable_slots | set(isa.fixed_slots) <= slots
    assert isa.link_slot == -1 or isa.link_slot in slots
    assert isa.exit_slot < 0 or isa.result_slot in isa.writable_slots
    assert {isa.pc_slot, isa.sp_slot, isa.result_slot} <= slots
    assert isa.pc_slot != isa.sp_slot
    assert set(isa.argument_slots) <= slots
    assert len(set(isa.argument_slots)) == len(isa.argument_slots)
    # One slot in the frame has one value: two names for it are one register of the stub's.
    for slot in slots:
        assert len({r.gdb_name for r in isa.registers if r.slot == slot}) == 1
    for index in {r.index for r in isa.registers}:
        assert len({r.slot for r in isa.registers if r.index == index}) == 1
    # Bits that are no signature of an address belong to the address.
    assert all(at | isa.signature_bits == at for at in (AT, AT + 0x0001_2345, AT + 2))
    known = {*d_names, *isa.unavailable_registers, ""}
    assert set(isa.dwarf_registers) <= known
    assert set(isa.kept_registers) <= known


def test_a_breakpoint_traps(isa: Isa) -> None:
    (one,) = isa.decode(isa.breakpoint, AT)
    assert isa.flow(one.code, AT).kind == "trap"


def test_registers_of_arm64_are_called_as_in_freebsd() -> None:
    """Names are those of regs_aarch64.d; 29 and 30 are the frame pointer and the link register
    (AAPCS64, 6.1.1)."""
    known = {register.d_name: register.index for register in load("arm64").registers}
    numbered = {f"R_X{n}": n for n in range(31)}
    assert known == numbered | {"R_FP": 29, "R_LR": 30, "R_SP": 31, "R_PC": 32, "R_PSTATE": 33}


def test_dwarf_numbers_are_those_of_the_assembler(each: Isa, tmp_path: Path) -> None:
    names = {r.d_name: r.gdb_name for r in each.registers}
    numbers = {number: names[name] for number, name in enumerate(each.dwarf_registers) if name}
    saved = "\n".join(f".cfi_undefined {name}" for name in numbers.values())
    assembled(each.name, f".cfi_startproc\n{saved}\nnop\n.cfi_endproc", tmp_path)
    command = ["readelf", "--debug-dump=frames", "a.o"]
    told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"DW_CFA_undefined: r(\d+)", told)
    assert [int(number) for number in found] == list(numbers)
    assert {r.gdb_name for r in each.registers if r.slot == each.sp_slot} < set(numbers.values())


def test_the_boards_names_are_those_of_registers(each: Isa) -> None:
    assert not missing(Board, each.board)
    stub = {r.gdb_name for r in each.registers}
    plain = {name for name, _ in each.gdb_registers}
    assert {each.pc, each.sp} <= stub & plain
    assert {r.gdb_name for r in each.registers if r.slot == each.pc_slot} == {each.pc}
    assert {r.gdb_name for r in each.registers if r.slot == each.sp_slot} == {each.sp}
    assert len(each.board.SERIAL) == 3
    size = 1 << 30
    ranges = each.board.memory_map(size)
    assert sum(length for _, _, length in ranges) == size
    assert ranges[0][1] == 0
    assert all(a[1] + a[2] == b[1] and a[0] + a[2] <= b[0] for a, b in pairwise(ranges))


def test_llvm_has_code_for_it(each: Isa, capfd: pytest.CaptureFixture[str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(each.triple)
    machine = target.create_target_machine(features=each.cpu_features)
    module = llvm.parse_assembly(
        f'target triple = "{each.triple}"\ndefine i64 @f() {{ ret i64 1 }}'
    )
    assert machine.emit_object(module)
    assert "recognized feature" not in capfd.readouterr().err


def test_code_is_decoded_to_its_end(each: Isa, nop: bytes) -> None:
    found = list(each.decode(nop * 3 + each.breakpoint, AT))
    assert [one.address - AT for one in found] == [len(nop) * k for k in range(4)]
    assert b"".join(one.code for one in found) == nop * 3 + each.breakpoint
    assert all(one.text for one in found)
    assert [one.end for one in found[:-1]] == [one.address for one in found[1:]]
    assert list(each.decode(b"", AT)) == []


def test_padding_begins_with_its_first_byte(each: Isa, nop: bytes) -> None:
    assert each.padding(b"") == 0
    assert each.padding(nop) in (0, len(nop))


def test_where_control_goes(each: Isa, nop: bytes) -> None:
    assert each.flow(nop, AT) == Flow("next")
    assert each.flow(each.breakpoint, AT).kind == "trap"
    for code in (nop, each.breakpoint):
        flow = each.flow(code, AT)
        assert flow.kind in KINDS
        assert flow.target is None


def test_a_jump_patch_is_a_jump_of_its_size(each: Isa) -> None:
    made = {size: each.jump_patch(size, AT, SCRATCH) for size in range(2, 16)}
    assert any(made.values()), "no size of instruction can be jumped from"
    for size, patch in made.items():
        if patch is None:
            continue
        assert len(patch) == size
        first = next(each.decode(patch, AT))
        assert each.flow(first.code, AT) == Flow("jump", falls_through=False, target=SCRATCH)
    assert all(each.jump_patch(size, AT, AT ^ 1 << 46) is None for size in range(2, 16))


def test_a_jump_over_a_run_of_instructions(each: Isa, nop: bytes) -> None:
    """The steps of the jump are where the protocol says; it is not made without a register that it
    needs."""
    run = nop * 4
    plain = each.run_patch(run, AT, SCRATCH)
    assert (plain is None) == (each.needs_dead_register or not each.RUN_SIZE)
    spare = sum(1 << r.slot for r in each.registers if r.d_name in ("R_T3", "R_T4"))
    patch = each.run_patch(run, AT, SCRATCH, spare)
    if not each.RUN_SIZE:
        assert patch is None and each.RUN_STEP == 0
        return
    assert patch is not None and len(patch) == len(run)
    steps, at = [], 0
    for one in each.decode(patch, AT):
        if at < each.RUN_SIZE:
            steps.append(at)
        at += one.size
    assert steps == ([0, each.RUN_STEP] if each.RUN_STEP else [0])


def test_a_trap_patch_fits_and_traps(each: Isa, nop: bytes) -> None:
    patch = each.trap_patch(len(nop))
    assert 0 < len(patch) <= len(nop)
    assert each.flow(next(each.decode(patch, AT)).code, AT).kind == "trap"
    with pytest.raises(ValueError, match="an instruction has"):
        each.trap_patch(0)


def test_a_displaced_instruction_has_a_way_back(each: Isa, nop: bytes) -> None:
    moved = each.displace(nop, AT, SCRATCH)
    assert isinstance(moved, Relocated)
    found = list(each.decode(moved.code, SCRATCH))
    assert sum(one.size for one in found) == len(moved.code)
    assert not each.flow(found[-1].code, found[-1].address).falls_through
    far = each.displace(nop, AT, AT ^ 1 << 46)
    assert isinstance(far, Refused)
    assert far.reason


def test_what_lies_in_reach_is_what_jumps_reach(each: Isa, nop: bytes) -> None:
    """The reach equals that of jumps, except for a margin of less than 2 MB, on either side of the
    code."""
    start, reach, margin = 0xFFFF_F000_0000_0000, each.paging.REACH, 2 << 20
    for way in (1, -1):
        assert isinstance(each.displace(nop, start, start + way * reach), Relocated)
        assert isinstance(each.displace(nop, start, start + way * (reach + margin)), Refused)


@pytest.mark.parametrize("bodies", ["nothing", "count", "call"])
def test_a_trampoline_ends_behind_the_site(each: Isa, nop: bytes, bodies: str) -> None:
    entry, argument, counter = SCRATCH + 0x8000, SCRATCH + 0x9000, SCRATCH + 0xA000
    slots = frozenset(range(each.frame_slots))
    work = {
        "nothing": (),
        "count": (CountBody((counter if each.shared_counters else 0x100,)),),
        "call": (CallBody(entry, argument, slots),),
    }[bodies]
    made = each.trampoline(site_of(nop), nop * 8, SCRATCH, work)
    assert isinstance(made, Relocated)
    assert -1 <= made.original_at < len(made.code)
    assert len(made.code) > len(each.displace(nop, AT, SCRATCH).code) or bodies == "nothing"
    assert isinstance(each.trampoline(site_of(nop), nop * 8, AT ^ 1 << 46, work), Refused)


def test_a_guard_may_read_what_nothing_writes(each: Isa, nop: bytes, tmp_path: Path) -> None:
    """A guard may read registers of the site that are not saved."""
    argument = each.snippets.names[each.argument_slots[-1]]
    move = samples(each).MOVE.format(each.snippets.result, argument)
    code = assembled(each.name, move, tmp_path)
    guard = each.snippet(code)
    assert guard is not None
    counter = SCRATCH + 0xA000 if each.shared_counters else 0x100
    one = each.trampoline(site_of(nop), b"", SCRATCH, [CountBody((counter,), guard)])
    two = each.trampoline(site_of(nop), b"", SCRATCH, [CountBody((counter,), guard)] * 2)
    assert isinstance(one, Relocated) and isinstance(two, Relocated)
    assert one.code.count(code) == 1 and two.code.count(code) == 2


def test_registers_are_only_spared_where_jumps_need_one(each: Isa, nop: bytes) -> None:
    known = list(each.decode(nop * 4, AT))
    found = each.dead_registers(known, [each.flow(one.code, one.address) for one in known])
    assert len(found) == len(known)
    assert each.needs_dead_register or not any(found)


def test_hooks_take_the_start_of_a_function(each: Isa, nop: bytes) -> None:
    for make in (each.detour, each.translate_detour):
        made = make(nop * 8, AT, SCRATCH, SCRATCH + 0x8000)
        assert not isinstance(made, Refused)
        patch, stub = made
        assert 0 < len(patch) <= 32
        assert len(stub) > len(patch)
        far = make(nop * 8, AT, AT ^ 1 << 46, SCRATCH)
        assert isinstance(far, Refused)


def test_plain_instructions_need_no_care(each: Isa, nop: bytes) -> None:
    plain = list(each.decode(nop * 4, AT))
    assert not each.unsafe(plain)
    assert not each.rerun_starts(plain)
    assert not each.jump_tables(plain)
    assert not each.returns_of(nop * 4, AT, SCRATCH)
    assert not each.unsteppable(nop)
    assert each.thunk("vfs_read") is None


def test_a_direct_call_is_found_by_its_return_address(each: Isa, nop: bytes) -> None:
    call = samples(each).CALL
    flow = each.flow(call, AT)
    assert (flow.kind, flow.target, flow.falls_through) == ("call", AT + 0x40, True)
    assert list(each.returns_of(call + nop, AT, AT + 0x40)) == [AT + len(call)]
