"""Work in trampolines that needs no frame, in an emulator, on three instruction sets.

Random predicates are compiled from D text; their expected values are computed here, in Python,
from the registers.  The displaced instruction reads the flags and must find every register
unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import unicorn
from unicorn import arm64_const, riscv_const, x86_const

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.snippets import PureCode, compile_snippets, guard_code, index_code
from kinst.core.bodies import Body, CallBody, CountBody, IndexedBody, Snippet
from kinst.core.displaced import Relocated
from kinst.core.isa import Isa
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_SLOT, lay_out
from kinst.core.probe import Argument, Function, Site
from kinst.core.records import AggregationLayout, Field
from kinst.core.system import Access
from kinst.dlang.api import Environment, compile_text
from kinst.dlang.typed import AggregateAction
from kinst.isa import load
from kinst.systems.linux.isafacts import facts_of
from tests.isa.gnu_assembler import assembled
from tests.tiers import ISAS

PAGE = 0x1000
TEXT, SCRATCH, DATA, STACK = 0x100_0000, 0x140_0000, 0x180_0000, 0x1C0_0000
COUNTERS, CALLS, PER_CPU, THREAD = DATA, DATA + PAGE, DATA + 2 * PAGE, DATA + 3 * PAGE
CALLEE = SCRATCH + 8 * PAGE
PID, UID, NAME, CRED = 0x120, 0x18, 0x508, 0x400  # offsets in the thread, and in its credentials
MASK = (1 << 64) - 1
DEAD = 512  # bytes below the stack pointer
_UNICORN: Any = unicorn  # it has no types

SITES = {
    "amd64": ("adc r10, r11", "add r10, r11", "nop", "mov rax, [rsp]"),
    "arm64": ("adc x10, x11, x12", "add x16, x0, x1", "nop"),
    "riscv64": ("add t0, t1, a0", "nop", "c.mv a0, t0"),
}
CALLEES = {
    "amd64": "inc qword ptr [rdi]; mov r11, -1; cmp r11, 5; ret",
    "arm64": "ldr x1, [x0]; add x1, x1, 1; str x1, [x0]; cmp x1, 5;"
    + ";".join(f"movn x{n}, {n}" for n in (*range(9), 16, 17))
    + "; ret",
    "riscv64": "ld a1, 0(a0); addi a1, a1, 1; sd a1, 0(a0);"
    + ";".join(f"li {n}, -3" for n in (*(f"t{n}" for n in range(7)), *(f"a{n}" for n in range(8))))
    + "; ret",
}
_PROCESSORS: dict[str, tuple[Any, Any, Any, str, tuple[str, ...], str]] = {
    "amd64": (
        unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, x86_const, "UC_X86_REG_",
        ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)),
         "rflags"), "rsp",
    ),
    "arm64": (
        unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, arm64_const, "UC_ARM64_REG_",
        (*(f"x{n}" for n in range(31)), "sp", "nzcv"), "sp",
    ),
    "riscv64": (
        unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64, riscv_const, "UC_RISCV_REG_",
        tuple(f"x{n}" for n in range(1, 32)), "x2",
    ),
}  # fmt: skip


def code_machine(isa: Isa) -> CodeMachine:
    per_cpu = facts_of(isa.name).per_cpu
    by_register = per_cpu.address_space is None
    start = Access(None if by_register else 0x40, (), 8, thread=by_register)

    def inside(*offsets: int, size: int = 4, signed: bool = True, string: bool = False) -> Access:
        return Access(start.per_cpu, offsets, size, signed, string, thread=by_register)

    builtins = {
        "pid": inside(PID), "uid": inside(CRED, UID, signed=False), "curthread": start,
        "execname": inside(NAME, size=16, string=True), "ppid": inside(0x80, PID),
    }  # fmt: skip
    areas = {"ring_size": PAGE, "agg_size": PAGE, "globals_size": 8, "strings_size": PAGE}
    scratch = lay_out(SCRATCH, 1 << 20, 1, **areas, sites_size=PAGE, traps_size=PAGE)
    return CodeMachine(
        isa.name, isa.triple, isa.cpu_features, False, SCRATCH, scratch, 0, isa.registers,
        isa.frame_slots, isa.sp_slot, isa.convention, per_cpu, builtins,
        llvm_options=isa.llvm_options,
    )  # fmt: skip


@dataclass(frozen=True)
class State:
    """State before a hit.

    Attributes:
        registers: by the emulator's names.
    """

    registers: dict[str, int]
    pid: int
    uid: int
    name: bytes


SMALL = (0, 1, 2, 3, 77, 255, 256, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, MASK, MASK - 4)


class Emulated:
    """One instruction with a trampoline, and a thread."""

    def __init__(self, isa: Isa, folder: Path) -> None:
        arch, mode, const, prefix, names, self.sp = _PROCESSORS[isa.name]
        self.isa, self.names = isa, names
        self.uc = _UNICORN.Uc(arch, mode)
        self.uc.mem_map(TEXT, PAGE)
        self.uc.mem_map(SCRATCH, 16 * PAGE)
        self.uc.mem_map(DATA, 4 * PAGE)
        self.uc.mem_map(STACK, PAGE)
        self.numbers = {name: getattr(const, prefix + name.upper()) for name in names}
        self.pc = getattr(const, prefix + ("RIP" if isa.name == "amd64" else "PC"))
        syntax = ".intel_syntax noprefix\n" if isa.name == "amd64" else ""
        self.write(CALLEE, assembled(isa.name, syntax + CALLEES[isa.name] + "\n", folder))
        if isa.name == "amd64":
            self.uc.reg_write(x86_const.UC_X86_REG_GS_BASE, PER_CPU)
        if isa.name == "arm64":
            self.write(TEXT, assembled("arm64", "msr sp_el0, x0\n", folder))
            self.uc.reg_write(self.numbers["x0"], THREAD)
            self.uc.emu_start(TEXT, TEXT + 4)

    def write(self, at: int, data: bytes) -> None:
        self.uc.mem_write(at, data)
        self.uc.ctl_remove_cache(at, at + len(data))

    def run(self, state: State, start: int, end: int) -> tuple[dict[str, int], bytes, bytes]:
        """Return registers, memory and the live stack when control has come to `end`."""
        stack = random.Random(state.pid).randbytes(PAGE)
        self.uc.mem_write(STACK, stack)
        self.uc.mem_write(DATA, bytes(4 * PAGE))
        for key in (1, 2):
            slot, word = slot_of(key)
            self.uc.mem_write(TABLE + 8 * slot, word.to_bytes(8, "little"))
        self.uc.mem_write(PER_CPU + 0x40, THREAD.to_bytes(8, "little"))
        self.uc.mem_write(THREAD + PID, state.pid.to_bytes(4, "little"))
        self.uc.mem_write(THREAD + CRED, (THREAD + 0x600).to_bytes(8, "little"))
        self.uc.mem_write(THREAD + 0x600 + UID, state.uid.to_bytes(4, "little"))
        # After its end is the rest of longer names.
        self.uc.mem_write(THREAD + NAME, (state.name + b"\0").ljust(16, b"#"))
        if self.isa.name == "riscv64":
            self.uc.reg_write(riscv_const.UC_RISCV_REG_PRIV, 1)
            self.uc.reg_write(riscv_const.UC_RISCV_REG_SSTATUS, 0x100)  # sret stays there
        for name, value in state.registers.items():
            self.uc.reg_write(self.numbers[name], value)
        try:
            self.uc.emu_start(start, end, count=2000)
        except unicorn.UcError as error:
            raise AssertionError(f"{error} at {self.uc.reg_read(self.pc):#x}") from error
        assert self.uc.reg_read(self.pc) == end
        registers = {name: self.uc.reg_read(number) for name, number in self.numbers.items()}
        living = bytes(self.uc.mem_read(STACK, PAGE))[registers[self.sp] - STACK :]
        return registers, bytes(self.uc.mem_read(DATA, 4 * PAGE)), living

    def state(self, rng: random.Random) -> State:
        registers = {name: rng.choice(SMALL) for name in self.names}
        registers[self.sp] = STACK + 0x800 + 16 * rng.randrange(64)
        if self.isa.name == "amd64":
            registers["rflags"] = 2 | rng.getrandbits(12) & 0x8D5
        elif self.isa.name == "arm64":
            registers["nzcv"] = rng.getrandbits(4) << 28
        else:
            registers["x4"] = THREAD
        return State(
            registers, rng.choice((1, 2, 77)), rng.choice((0, 1000, (1 << 32) - 1)),
            rng.choice((b"sh", b"shell", b"", b"fifteen letters", b"s")),
        )  # fmt: skip


Truth = Callable[[Callable[[str], int], State], bool]


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def predicate(rng: random.Random, registers: Sequence[str], depth: int = 2) -> tuple[str, Truth]:
    """A D predicate, with a function that computes its value."""
    if depth and rng.random() < 0.7:
        (a, left), (b, right) = (predicate(rng, registers, depth - 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                return f"({a}) && ({b})", lambda r, s: left(r, s) and right(r, s)
            case 1:
                return f"({a}) || ({b})", lambda r, s: left(r, s) or right(r, s)
            case 2:
                return f"({a}) ^^ ({b})", lambda r, s: left(r, s) != right(r, s)
            case 3:
                return f"!({a})", lambda r, s: not left(r, s)
            case _:
                c, condition = predicate(rng, registers, 0)
                return (
                    f"({c}) ? ({a}) : ({b})",
                    lambda r, s: left(r, s) if condition(r, s) else right(r, s),
                )
    one, two = rng.choice(registers), rng.choice(registers)
    number = rng.choice((0, 1, 2, 77, 255, 1 << 31, 1 << 40))
    match rng.randrange(15):
        case 0:
            return f"regs[{one}] == {number}", lambda r, s: r(one) == number
        case 1:
            return f"regs[{one}] != regs[{two}]", lambda r, s: r(one) != r(two)
        case 2:
            return f"regs[{one}] < {number}", lambda r, s: r(one) < number
        case 3:
            return f"(long)regs[{one}] <= -5", lambda r, s: signed(r(one), 64) <= -5
        case 4:
            return (
                f"(int)regs[{one}] > (int)regs[{two}]",
                lambda r, s: signed(r(one), 32) > signed(r(two), 32),
            )
        case 5:
            return f"regs[{one}] & 0x101", lambda r, s: bool(r(one) & 0x101)
        case 6:
            return (
                f"((regs[{one}] + regs[{two}]) >> 3) * 5 == 0",
                lambda r, s: ((r(one) + r(two) & MASK) >> 3) * 5 & MASK == 0,
            )
        case 7:
            name = rng.choice(("sh", "shell", "", "fifteen letters", "sh "))
            sign = rng.choice(("==", "!="))
            return (
                f'execname {sign} "{name}"',
                lambda r, s: (s.name == name.encode()) == (sign == "=="),
            )
        case 8:
            return "pid == 77", lambda r, s: s.pid == 77
        case 9:
            return "uid > 1000", lambda r, s: s.uid > 1000
        case 13:
            return (
                f"(regs[{one}] ^ {number}) - regs[{two}] * 3 | regs[{one}] << 70",
                lambda r, s: bool((r(one) ^ number) - r(two) * 3 & MASK | r(one) << 6 & MASK),
            )
        case 11:
            return f"-(int)regs[{one}] > 5", lambda r, s: signed(-signed(r(one), 32), 32) > 5
        case 12:
            return f"(0, ~regs[{one}]) & {number}", lambda r, s: bool(~r(one) & number)
        case 10:
            return (
                f"(long)((int)regs[{one}] != {number & 0xFF})",
                lambda r, s: signed(r(one), 32) != number & 0xFF,
            )
        case _:
            return f"(short)regs[{one}] == -1", lambda r, s: signed(r(one), 16) == -1


def one_of(truths: Sequence[Truth]) -> Truth:
    """Return a function that decides whether one of several clauses runs."""
    return lambda read, state: any(truth(read, state) for truth in truths)


def guard(text: str, isa: Isa, arguments: Sequence[Argument] = ()) -> PureCode | None:
    """Return a guard of the predicates of a program's clauses."""
    known = {register.d_name: register.index for register in isa.registers}
    _, program = compile_text(text, "test", environment=Environment(known))
    conditions = [clause.predicate for clause in program.clauses if clause.predicate is not None]
    return guard_code(conditions, arguments, code_machine(isa), isa, "guard")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Isa:
    return load(request.param)


def compiled(made: PureCode | None, isa: Isa) -> Snippet:
    assert made is not None
    (found,) = compile_snippets([made], code_machine(isa), isa)
    assert found is not None
    return found


def readable(isa: Isa) -> tuple[list[str], dict[str, str]]:
    """Return D names of registers that a snippet may read, and the emulator's names of them."""
    names = {}
    for register in isa.registers:
        if register.slot in isa.snippets.names and register.d_name != "R_FP":
            stub = register.gdb_name
            names[register.d_name] = stub if isa.name != "riscv64" else f"x{register.slot}"
    return sorted(names), names


SLOTS = 64
TABLE = COUNTERS + 0x800  # of words; keys 1 and 2 have their own


KEYED = 0x100  # from COUNTERS: the first counter of a slot


def slot_of(key: int) -> tuple[int, int]:
    """Return a key's slot and its word, as helpers/key_slots.py describes them."""
    word = key + 0x1234_5679 & MASK
    return ((word & 0xFFFF_FFFF) * 0x9E37_79B1 & 0xFFFF_FFFF) >> 26, word


def index_snippet(isa: Isa, d_name: str) -> Snippet:
    """Return code that finds the counter of a register's value, as a keyed count does."""
    known = {register.d_name: register.index for register in isa.registers}
    text = f"f:::1 {{ @[regs[{d_name}]] = count(); }}"
    _, program = compile_text(text, "test", environment=Environment(known))
    (update,) = program.clauses[0].actions
    assert isinstance(update, AggregateAction)
    machine = code_machine(isa)
    field = Field(8, 8, update.keys[0].type)
    table = TABLE - machine.address(machine.scratch.globals)
    layout = AggregationLayout(0, 0, 24, 64, (field,), 16, 8, None, KEYED, SLOTS, table)
    counters = COUNTERS if isa.shared_counters else COUNTERS - PER_CPU
    key = update.keys[0]
    return compiled(index_code(key, layout, counters, (), machine, isa, "guard"), isa)


def test_the_site_notices_nothing_and_the_work_is_right(isa: Isa, tmp_path: Path) -> None:
    rng = random.Random(isa.name)
    cpu = Emulated(isa, tmp_path)
    d_names, emulated = readable(isa)
    base = COUNTERS if isa.shared_counters else COUNTERS - PER_CPU
    syntax = ".intel_syntax noprefix\n" if isa.name == "amd64" else ""
    codes = [assembled(isa.name, f"{syntax}{one}\n", tmp_path) for one in SITES[isa.name]]
    done = hits = misses = 0
    for _ in range(30):
        code = rng.choice(codes)
        site = Site(Function("vmlinux", "f", TEXT, 64), 0, code)
        cpu.write(TEXT, code)
        bodies: list[Body] = []
        truths: list[Truth | None] = []
        for number in range(rng.choice((1, 1, 2, 3))):
            clauses = [predicate(rng, d_names) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
            lines = [f"f:::1 /{text}/ {{ trace(1); }}" for text, _ in clauses]
            made = compiled(guard("\n".join(lines), isa), isa)
            truth = one_of([truth for _, truth in clauses])
            asked = rng.random() < 0.8
            only = made if asked else None
            truths.append(truth if asked else None)
            call = CallBody(CALLEE, CALLS + 8 * number, frozenset(), only)
            counter = base + 8 * number
            match rng.randrange(4):
                case 0 | 1:
                    bodies.append(CountBody((counter, counter), only))
                case 2:
                    bodies.append(call)
                case _:
                    index = index_snippet(isa, d_names[number])
                    bodies.append(IndexedBody(index, call, only))
        trampoline = isa.trampoline(site, b"", SCRATCH, bodies)
        assert isinstance(trampoline, Relocated)
        cpu.write(SCRATCH, trampoline.code)
        for _ in range(12):
            state = cpu.state(rng)
            end = TEXT + len(code)
            plain = cpu.run(state, TEXT, end)
            found = cpu.run(state, SCRATCH, end)
            assert found[0] == plain[0], (bodies, site)
            assert found[2] == plain[2]

            def read(d_name: str, state: State = state) -> int:
                return state.registers[emulated[d_name]]

            holds = [truth is None or truth(read, state) for truth in truths]
            check(bodies, holds, found[1], [read(d_names[n]) for n in range(len(bodies))])
            hits, misses = hits + sum(holds), misses + len(holds) - sum(holds)
            done += 1
    assert done == 360 and min(hits, misses) > 100


def check(bodies: Sequence[Body], holds: list[bool], data: bytes, keys: list[int]) -> None:
    """Check that the counters are right, and each necessary call was made.

    A call with a guard may be made without need: the called code asks again.  The call of an
    IndexedBody may be made although its counter could have been found.
    """

    def word(at: int) -> int:
        return int.from_bytes(data[at - DATA : at - DATA + 8], "little")

    sole = sum(not isinstance(body, CountBody) for body in bodies) == 1
    for number, (body, held) in enumerate(zip(bodies, holds, strict=True)):
        counted, called = word(COUNTERS + 8 * number), word(CALLS + 8 * number)
        if isinstance(body, CountBody):
            assert (counted, called) == (2 * held, 0)
        elif isinstance(body, IndexedBody) and sole:
            found = held and keys[number] in (1, 2)
            counted = word(COUNTERS + KEYED + 8 * slot_of(keys[number])[0])
            assert (counted, called) == (int(found), int(held and not found))
        else:
            assert counted == 0 and called >= held
            assert called == held or not sole
            assert called <= 1


def test_a_free_slot_is_no_keys(isa: Isa, tmp_path: Path) -> None:
    """A free slot's word is 0, as is that of the key whose sum with the constant wraps around."""
    cpu = Emulated(isa, tmp_path)
    syntax = ".intel_syntax noprefix\n" if isa.name == "amd64" else ""
    code = assembled(isa.name, f"{syntax}nop\n", tmp_path)
    d_names, emulated = readable(isa)
    call = CallBody(CALLEE, CALLS, frozenset(), None)
    body = IndexedBody(index_snippet(isa, d_names[0]), call, None)
    site = Site(Function("vmlinux", "f", TEXT, 64), 0, code)
    trampoline = isa.trampoline(site, b"", SCRATCH, [body])
    assert isinstance(trampoline, Relocated)
    cpu.write(SCRATCH, trampoline.code)
    for key in (1, -0x1234_5679 & MASK, 3):
        state = cpu.state(random.Random(1))
        state.registers[emulated[d_names[0]]] = key
        check([body], [True], cpu.run(state, SCRATCH, TEXT + len(code))[1], [key])


@pytest.mark.parametrize(
    ("predicate", "pure"),
    [
        ("pid == 1", True),
        ("execname == \"sixteen letters!\"", False),  # longer than any name
        ("execname < \"b\"", False),  # only whether names are equal
        ("!(execname >= \"b\") && pid", False),
        ("ppid == 1", False),  # another thread's memory
        ("1 / pid", False),  # may fault
        ("0 == *(int *)arg0", False),  # may fault, as far as is known here
        ("stackdepth > 5", False),
        ("timestamp > 5", False),
        ("(timestamp, 5)", False),
        ("(pid, 5)", True),
        ("!pid + (arg0 == 1) + (uid && pid)", True),
        ("regs[REG] == 5", True),
        ("uregs[REG] == 5", False),
        *((f"pid {operator} arg0", True) for operator in ("+", "-", "*", "&", "|", "^", "<<", ">>",
                                                          "==", "!=", "<", "<=", ">", ">=")),
        ("arg0 == 5 && arg2 == 1", True),
        ("arg1 == 5", False),  # on the stack
        ("arg3 == 5", False),  # unknown
        ("probefunc == \"f\"", False),
    ],
)  # fmt: skip
def test_what_is_pure(isa: Isa, predicate: str, pure: bool) -> None:
    arguments = (
        Argument(ARGUMENT_SLOT, isa.argument_slots[0]),
        Argument(3, 8),
        Argument(ARGUMENT_CONSTANT, 1),
    )
    asked = predicate.replace("REG", readable(isa)[0][0])
    made = guard(f"f:::1 /{asked}/ {{ trace(1); }}", isa, arguments)
    assert (made is not None) == pure


def test_no_clause_may_be_left_out(isa: Isa) -> None:
    """The guard of two clauses is true if one of them is."""
    made = guard("f:::1 /pid == 1/ { trace(1); } f:::1 /pid == 2/ { trace(2); }", isa)
    assert made is not None and compiled(made, isa).writes


@pytest.mark.parametrize(
    "code",
    ["push rcx", "mov [rcx], rax", "jmp 1f; 1:", "ret", "mov rcx, [rsp]", "xor eax, eax; .byte 6"],
)
def test_what_is_no_snippet_of_amd64(code: str, tmp_path: Path) -> None:
    amd64 = load("amd64")
    made = assembled("amd64", f".intel_syntax noprefix\n{code}\n", tmp_path)
    assert amd64.snippet(made) is None
    assert amd64.snippet(assembled("amd64", ".intel_syntax noprefix\nmov rcx, rdx\n", tmp_path))


@pytest.mark.parametrize("code", ["str x0, [x1]", "cbz x0, .", "ldr x0, [sp]", "mov x18, 1"])
def test_what_is_no_snippet_of_arm64(code: str, tmp_path: Path) -> None:
    arm64 = load("arm64")
    assert arm64.snippet(assembled("arm64", f"{code}\n", tmp_path)) is None
    assert arm64.snippet(assembled("arm64", "mov x16, x2\n", tmp_path))


@pytest.mark.parametrize("code", ["sd a0, 0(a1)", "beqz a0, .", "ld t0, 0(sp)", "mv ra, a0"])
def test_what_is_no_snippet_of_riscv64(code: str, tmp_path: Path) -> None:
    riscv64 = load("riscv64")
    source = f".option norvc\n{code}\n"
    assert riscv64.snippet(assembled("riscv64", source, tmp_path)) is None
    fine = assembled("riscv64", ".option norvc\nadd t0, a0, a1\n", tmp_path)
    assert riscv64.snippet(fine)


# By the manuals: (source; registers that it reads, and writes besides the result; whether it
# changes flags).  The result is in rcx, x16 and x5.
TOUCHED = [
    ("amd64", "mov rcx, rdx", "rdx", "", False),
    ("amd64", "lea rcx, [rdx + r9*8 - 5]", "rdx r9", "", False),
    ("amd64", "movzx eax, dl\nmov rcx, [rax + r15]", "rdx rax r15", "rax", False),
    ("amd64", "add ecx, r8d", "rcx r8", "", True),
    ("amd64", "cmp rdi, rsi\nsetb cl", "rdi rsi", "", True),
    ("amd64", "mov ch, bh", "rbx", "", False),
    # The rest of a partly written register is kept.
    ("amd64", "mov r10b, sil\nmov r11w, bp", "rsi rbp r10 r11", "r10 r11", False),
    ("amd64", "not rbx\nmov rcx, rbx", "rbx", "rbx", False),
    ("amd64", "shl r12, 3\nbswap r13", "r12 r13", "r12 r13", True),
    ("amd64", "mov rcx, gs:[0x40]", "", "", False),
    ("amd64", "cmovne rcx, r14", "r14 rcx", "", False),
    ("arm64", "mov x16, x2", "x2", "", False),
    ("arm64", "ldr x16, [x3, x4, lsl #3]", "x3 x4", "", False),
    ("arm64", "cmp w9, #5\ncset w16, eq", "x9", "", True),
    ("arm64", "add w10, w11, w12\neor x16, x10, x13", "x10 x11 x12 x13", "x10", False),
    ("arm64", "mrs x16, sp_el0", "", "", False),
    ("riscv64", "mv x5, x10", "x10", "", False),
    ("riscv64", "ld x5, 8(x11)", "x11", "", False),
    ("riscv64", "lui x6, 9\nadd x5, x6, x31", "x6 x31", "x6", False),
    ("riscv64", "sltu x5, x12, x13\nsubw x7, x14, x0", "x12 x13 x14", "x7", False),
    ("riscv64", "ld x5, 16(x4)", "", "", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source", "reads", "writes", "flags"), TOUCHED)
def test_what_a_snippet_touches(
    name: str, source: str, reads: str, writes: str, flags: bool, tmp_path: Path
) -> None:
    isa = load(name)
    heads = {"amd64": ".intel_syntax noprefix", "arm64": "", "riscv64": ".option norvc"}
    made = isa.snippet(assembled(name, f"{heads[name]}\n{source}", tmp_path))
    assert made is not None
    if name == "amd64":
        order = ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"]
        order += [f"r{n}" for n in range(8, 16)]  # by their encoding
    else:
        order = [f"x{n}" for n in range(32)]
    result = {"amd64": "rcx", "arm64": "x16", "riscv64": "x5"}[name]
    read, written = ({order[n] for n in numbers} for numbers in (made.reads, made.writes))
    if name == "arm64":  # counts as both
        assert read == written == {*reads.split(), *writes.split(), result}
    else:
        assert read - {result} == set(reads.split()) - {result}
        assert written == {*writes.split(), result}
    assert made.flags == flags
