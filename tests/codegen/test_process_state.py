"""Stacks, registers and arguments of processes.

Memory is drawn at random, and walked here by the documentation of each chain.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import unicorn
from unicorn import x86_const as x86

from kinst.codegen.code_machine import CodeMachine
from kinst.core import layout as lay
from kinst.core.dtypes import USER_WORDS
from kinst.core.errors import KinstError
from kinst.core.system import Access, ThreadTime, Unwinder, UserMemory, UserState
from tests.codegen.codegen_rig import (
    CURRENT_AT,
    FRAME,
    GS_BASE,
    NOW,
    PID,
    SLOTS,
    TASK_AT,
    HostRig,
    Rig,
    TargetRig,
    read_memory,
    scratch,
)
from tests.codegen.subroutines_rig import compiled

READ, UNWIND = 0x7100000, 0x7200000
TASK, MM = GS_BASE + TASK_AT, 0xFFFF_8880_0100_0000
KERNEL_STACK, FILE, DENTRY = 0xFFFF_C900_0010_0000, 0xFFFF_8880_0200_0000, 0xFFFF_8880_0300_0000
USER = 0x7FFF_0000_0000
STACK_OFFSET, MM_OFFSET, RUN_TIME = 0x40, 0x48, 0x60  # in the thread
ARG_START, ARG_END, CODE_START, EXE = 0x30, 0x38, 0x20, 0x28  # in mm
SAVED, PC, FP, R3, R5 = 0x3F58, 0x80, 0x20, 0x18, 0x58
MASK = (1 << 56) - 1
STATE = UserState(STACK_OFFSET, SAVED, {"R_3": R3, "R_5": R5}, PC, FP, -16, -8, MASK, CODE_START,
                  (EXE, 0x18, 0x60))  # fmt: skip
SIZE = 96
UNWINDER = Unwinder(UNWIND, 20, ((0, ""), (8, "R_4")), ((16, 0x77),))


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


@dataclass
class World:
    """A process.  None stands for unreadable memory."""

    mm: int = MM
    arguments: bytes = b"prog\0-x\0\0"
    pc: int = 0x401234
    frame: int = 0
    stack: dict[int, bytes] = field(default_factory=dict)
    name: bytes | None = b"bash"
    saved: bool = True

    def memory(self) -> dict[int, bytes]:
        task = bytearray(0x100)
        struct.pack_into("<QQ", task, STACK_OFFSET, KERNEL_STACK, self.mm)
        found = {TASK: bytes(task), USER: self.arguments} | self.stack
        mm = bytearray(0x100)
        struct.pack_into("<QQQQ", mm, CODE_START, 0x400000, FILE, USER, USER + len(self.arguments))
        found[MM] = bytes(mm)
        found[FILE + 0x18] = words(DENTRY)
        found[DENTRY + 0x60] = words(DENTRY + 0x100)
        if self.name is not None:
            found[DENTRY + 0x100] = (self.name + b"\0").ljust(SIZE, b"#")
        if self.saved:
            regs = bytearray(0x100)
            for at, value in ((PC, self.pc), (FP, self.frame), (R3, 0x3333), (R5, 0x5555)):
                struct.pack_into("<Q", regs, at, value)
            found[KERNEL_STACK + SAVED] = bytes(regs)
        return found


@dataclass
class ProcessRig(TargetRig):
    """A kernel with a process, and with an unwinder."""

    world: World = field(default_factory=World)
    frames: tuple[int, ...] = ()

    def target_machine(self) -> CodeMachine:
        mm = Access(CURRENT_AT, (MM_OFFSET,), 8)
        user = UserMemory(READ, 0, mm, ARG_START, ARG_END)
        plus, minus = (Access(CURRENT_AT, (RUN_TIME + at,), 8) for at in (0, 8))
        time = ThreadTime(plus=(plus,), minus=(minus,), offset_ns=-50)
        return replace(super().target_machine(), user=user, user_state=STATE, thread_time=time,
                       unwinder=UNWINDER)  # fmt: skip

    def start(self) -> None:
        super().start()
        self.memory = self.world.memory()
        self.emulator.mem_write(TASK + STACK_OFFSET, self.memory[TASK][STACK_OFFSET:][:16])
        self.emulator.mem_write(TASK + RUN_TIME, words(1000, 300))
        self.unwound: list[tuple[bytes, int, int]] = []
        for function, hook in ((READ, self._read_user), (UNWIND, self._unwind)):
            self.emulator.mem_map(function, 4096)
            self.emulator.mem_write(function, b"\xc3")
            self.emulator.hook_add(unicorn.UC_HOOK_CODE, hook, begin=function, end=function)

    def _arguments(self) -> list[int]:
        registers = (x86.UC_X86_REG_RDI, x86.UC_X86_REG_RSI, x86.UC_X86_REG_RDX, x86.UC_X86_REG_RCX)
        return [self.emulator.reg_read(one) for one in registers]

    def _read_user(self, emulator: unicorn.Uc, *_: Any) -> None:
        to, at, size, _rest = self._arguments()
        data = read_memory(self.memory, at, size)
        if data is not None:
            emulator.mem_write(to, data)
        emulator.reg_write(x86.UC_X86_REG_RAX, 0 if data is not None else -14)

    def _unwind(self, emulator: unicorn.Uc, *_: Any) -> None:
        saved, to, entries, skip = self._arguments()
        regs = bytes(emulator.mem_read(saved, UNWINDER.size))
        self.unwound.append((regs, entries & 0xFFFFFFFF, skip & 0xFFFFFFFF))
        frames = self.frames[: entries & 0xFFFFFFFF]
        emulator.mem_write(to, words(*frames))
        emulator.reg_write(x86.UC_X86_REG_RAX, 0xABCD << 32 | len(frames))  # a u32: the rest is any


def fired(body: str, kind: type[Rig] = ProcessRig, **more: Any) -> Rig:
    program = compiled(f"kinst::f:0 {{ {body} }} dtrace:::ERROR {{ trace(arg4); trace(arg5); }}")
    rig = kind(program, {7: (0,)}, error=(1,), strsize=64, **more)
    rig.fire(7, {4: 0x4444})
    return rig


def value(rig: Rig) -> int | tuple[int, int]:
    """Return the traced value, or the kind and the value of the fault."""
    (record,) = rig.records(rig.slot)
    numbers = [int.from_bytes(rig.fields(record, k)[0], "little") for k in range(1 + record.clause)]
    return (numbers[0], numbers[1]) if record.clause else numbers[0]


def raw(rig: Rig) -> bytes:
    (record,) = rig.records(rig.slot)
    assert record.clause == 0
    return rig.fields(record)[0]


def walked(world: World, most: int) -> list[int]:
    """Walk frames by the definition.

    Each frame has the caller's frame at -16 and the return address at -8.  The chain ends at 0, at
    an address that is not aligned or cannot be read, and at one that is not above the previous
    one.
    """
    if not world.mm or not world.saved or not world.pc:
        return []
    found, here = [world.pc], world.frame
    while len(found) < most and here and here % 8 == 0:
        pair = read_memory(world.stack, here - 16, 16)
        if pair is None:
            break
        above, back = struct.unpack("<QQ", pair)
        if not back & MASK:
            break
        found.append(back & MASK)
        if above <= here:
            break
        here = above
    return found


def random_world(rng: random.Random) -> World:
    places = sorted(rng.sample(range(0x1000, 0x4000, 8), rng.randrange(0, 9)))
    stack = {}
    for k, at in enumerate(places):
        above = places[k + 1] if k + 1 < len(places) else 0
        back = 0x400000 + rng.randrange(1 << 20) | rng.choice((0, 0xAB << 56))
        odd = rng.random()
        if odd < 0.08:
            above = rng.choice((at, at - 8, above + 4, 0x9000, places[0]))
        elif odd < 0.12:
            back = rng.choice((0, 0xAB << 56))
        if rng.random() > 0.04:
            stack[at - 16] = words(above, back)
    frame = rng.choice([places[0]] * 9 + [0, places[0] + 1]) if places else rng.choice((0, 0x5000))
    return World(rng.choice((MM,) * 9 + (0,)), pc=rng.choice((0x401234,) * 9 + (0,)), frame=frame,
                 stack=stack, saved=rng.random() > 0.05)  # fmt: skip


@pytest.fixture(scope="module")
def stacks() -> ProcessRig:
    rig = fired("ustack(4); trace(ustackdepth); trace(ucaller);")
    assert isinstance(rig, ProcessRig)
    return rig


def test_stacks_of_threads(stacks: ProcessRig) -> None:
    rng, deep = random.Random(5), 0
    for _ in range(150):
        world = random_world(rng)
        stacks.memory = world.memory()
        stacks.emulator.mem_write(TASK + MM_OFFSET, words(world.mm))
        stacks.consume(stacks.slot)
        stacks.fire(7)
        (record,) = stacks.records(stacks.slot)
        assert record.clause == 0
        stack, depth, caller = (stacks.fields(record, k)[0] for k in range(3))
        assert len(stack) == 8 * (USER_WORDS + 4)
        whole, four = walked(world, 512), walked(world, 4)
        shown = struct.unpack_from("<4Q", stack, 8 * USER_WORDS)
        assert shown == (*four, *[0] * (4 - len(four)))
        assert int.from_bytes(depth, "little") == len(whole)
        assert int.from_bytes(caller, "little") == (whole[1] if len(whole) > 1 else 0)
        pid, start = struct.unpack_from("<QQ", stack)
        name = stack[16 : 8 * USER_WORDS]
        assert pid == PID and (start, name.rstrip(b"\0")) == (
            (0x400000, b"bash") if world.mm else (0, b"")
        )
        deep += len(whole) > 4
    assert deep > 15


def test_return_addresses_are_kept_whole_where_no_bits_are_masked() -> None:
    """Any value that a process has put there."""

    class Unmasked(ProcessRig):
        def target_machine(self) -> CodeMachine:
            state = replace(STATE, address_mask=(1 << 64) - 1)
            return replace(super().target_machine(), user_state=state)

    back, pc = 0xFEDC_BA98_7654_3211, 0x8765_4321_FEDC_BA99
    world = World(frame=0x5010, pc=pc, stack={0x5000: words(0, back)})
    rig = fired("ustack(3);", Unmasked, world=world)
    assert raw(rig)[8 * USER_WORDS :] == words(pc, back, 0)


@pytest.mark.parametrize("name", [b"", b"a" * 31, b"b" * 32, b"c" * 50])
def test_the_name_of_a_program_is_cut(name: bytes) -> None:
    stack = raw(fired("ustack(1);", world=World(name=name)))
    room = 8 * (USER_WORDS - 2)
    assert stack[16 : 16 + room] == name[: room - 1].ljust(room, b"\0")


def test_a_program_whose_name_cannot_be_read() -> None:
    stack = raw(fired("ustack(1);", world=World(name=None)))
    assert struct.unpack_from("<QQ", stack) == (PID, 0x400000)
    assert stack[16 : 8 * USER_WORDS] == bytes(8 * USER_WORDS - 16)


def test_a_deep_stack_is_counted_to_its_limit() -> None:
    places = range(0x1000, 0x1000 + 600 * 16, 16)
    stack = {at - 16: words(at + 16, 0x400000 + at) for at in places}
    world = World(frame=0x1000, stack=stack)
    assert value(fired("trace(ustackdepth);", world=world)) == 512 == len(walked(world, 512))


def test_two_frames_have_room_for_two() -> None:
    """After the two frames is memory that the clause allocates when strings have no more
    memory."""
    places = range(0x1000, 0x1000 + 9 * 16, 16)
    world = World(frame=0x1000, stack={at - 16: words(at + 16, 0x400000 + at) for at in places})
    text = "this->p = (long *)alloca(8); *this->p = -1; trace(ucaller); trace(*this->p);"
    room = lay.ARENA + 64 + 64 + 16  # one more string of 64 bytes is kept; 64 are for words
    rig = fired(text, world=world, scratch=scratch(temp_size=room))
    (record,) = rig.records(rig.slot)
    found = [rig.fields(record, action)[0] for action in (2, 3)]
    assert found == [words(walked(world, 2)[1]), b"\xff" * 8]
    with pytest.raises(KinstError, match="one action needs more"):
        fired(text, world=world, scratch=scratch(temp_size=room - 8))


def test_registers_of_user_mode() -> None:
    assert value(fired("trace(uregs[R_3]);")) == 0x3333
    assert value(fired("trace(uregs[R_5]);")) == 0x5555
    assert value(fired("trace(uregs[R_3]);", world=World(mm=0))) == (lay.FAULT_ILLOP, 0)
    fault = value(fired("trace(uregs[R_3]);", world=World(saved=False)))
    assert fault == (lay.FAULT_BADADDR, KERNEL_STACK + SAVED + R3)
    with pytest.raises(KinstError, match=r"uregs\[4\] is not a register"):
        fired("trace(uregs[R_4]);")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (b"prog\0-x\0file\0", b"prog -x file"),
        (b"one\0", b"one"),
        (b"one", b"one"),
        (b"a\0\0b\0\0\0", b"a  b"),
        (b"\0\0", b""),
        (b"", b""),
        (b"x" * 62 + b"\0", b"x" * 62),
        (b"x" * 63 + b"\0", b"x" * 63),
        (b"x" * 64 + b"\0", b"x" * 63),
        (b"x" * 62 + b"\0y\0", b"x" * 62),
        (b"x" * 40 + b"\0" + b"y" * 40, b"x" * 40 + b" " + b"y" * 22),
    ],
)
def test_arguments_of_a_process(arguments: bytes, expected: bytes) -> None:
    rig = fired("trace(execargs);", world=World(arguments=arguments))
    assert raw(rig).split(b"\0")[0] == expected


def test_arguments_that_are_not_there() -> None:
    assert raw(fired("trace(execargs);", world=World(mm=0))).split(b"\0")[0] == b""
    text = "kinst::f:0 { trace(execargs); } dtrace:::ERROR { trace(arg4); trace(arg5); }"
    for missing, bad in ((USER, USER), (MM, MM + ARG_START), (TASK, TASK + MM_OFFSET)):
        rig = ProcessRig(compiled(text), {7: (0,)}, error=(1,), strsize=64)
        rig.memory = {at: data for at, data in rig.memory.items() if at != missing}
        rig.fire(7)
        assert value(rig) == (lay.FAULT_BADADDR, bad)


def test_time_of_a_thread() -> None:
    assert value(fired("trace(vtimestamp);")) == NOW - 50 + 1000 - 300


@pytest.mark.parametrize("depth", [0, 1, 3, 5])
def test_the_kernels_own_unwinder(depth: int) -> None:
    frames = tuple(0xFFFF_FFFF_8100_0000 + 16 * k for k in range(depth))
    rig = fired("stack(3);", frames=frames)
    assert isinstance(rig, ProcessRig)
    assert struct.unpack("<3Q", raw(rig)) == (*frames[:3], *[0] * (3 - len(frames[:3])))
    ((regs, entries, skip),) = rig.unwound
    # The program counter of the site's descriptor, a register, a constant; 20 bytes of it.
    assert (entries, skip) == (3, 0)
    assert regs == words(0, 0x4444) + (0x77).to_bytes(4, "little")
    rig = fired("trace(stackdepth);", frames=frames)
    assert isinstance(rig, ProcessRig)
    assert value(rig) == depth and rig.unwound[0][1:] == (512, 0)


@pytest.mark.parametrize("size", [16, 17, 20, 24, 25, 31])
def test_what_the_unwinder_is_not_told_is_zero(size: int) -> None:
    class Sized(ProcessRig):
        def target_machine(self) -> CodeMachine:
            unwinder = Unwinder(UNWIND, size, ((0, ""), (8, "R_4")), ())
            return replace(super().target_machine(), unwinder=unwinder)

        def _unwind(self, emulator: unicorn.Uc, *rest: Any) -> None:
            saved = self._arguments()[0]
            given.append(bytes(emulator.mem_read(saved, size)))
            super()._unwind(emulator, *rest)

    given: list[bytes] = []
    fired("stack(3);", Sized)
    assert given == [words(0, 0x4444).ljust(size, b"\0")]
    # After it, if working memory has no more room, allocations begin.
    kept = "this->p = (long *)alloca(8); *this->p = -1; stack(3); trace(*this->p);"
    for room in range(0, 256, 8):
        try:
            rig = fired(kept, Sized, scratch=scratch(temp_size=lay.ARENA + room))
        except KinstError as error:
            assert "one action needs more" in str(error)
        else:
            break
    (record,) = rig.records(rig.slot)
    assert rig.fields(record, 3) == [b"\xff" * 8]


@pytest.mark.parametrize("samples", [False, True])
def test_an_instruction_is_unwound_from_where_it_is(samples: bool) -> None:
    class Planted(ProcessRig):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), samples=samples)

    rig = Planted(compiled("kinst::f:0 { stack(3); }"), {7: (0,)}, strsize=64)
    rig.emulator.mem_write(rig.site(7) + lay.SITE_PC, words(0xFFFF_FFFF_8123_4567))
    rig.fire(7)
    assert rig.unwound[0][0][:8] == words(0xFFFF_FFFF_8123_4567)


def test_a_sample_is_unwound_from_where_its_cpu_was() -> None:
    """The site has no address; after the frame's registers is the program counter, or 0 in user
    mode."""

    class Sampled(ProcessRig):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), samples=True)

    program = compiled("kinst::f:0 { stack(3); }")
    for place in (0xFFFF_FFFF_8123_4567, 0):
        rig = Sampled(program, {7: (0,)}, strsize=64)
        rig.emulator.mem_write(FRAME + 8 * SLOTS, words(place))
        rig.fire(7)
        assert rig.unwound[0][0][:8] == words(place)


def test_without_what_the_kernel_must_offer() -> None:
    for body, said in (("ustack(2);", "where this kernel saves the registers of user mode"),
                       ("stack(2);", "no unwinder that clauses can call"),
                       ("trace(execargs);", "memory cannot be read"),
                       ("trace(vtimestamp);", "vtimestamp is not available")):  # fmt: skip
        with pytest.raises(KinstError, match=said):
            fired(body, TargetRig)

    class NoArguments(ProcessRig):
        def target_machine(self) -> CodeMachine:
            user = UserMemory(READ, 0, Access(CURRENT_AT, (MM_OFFSET,), 8))
            return replace(super().target_machine(), user=user)

    with pytest.raises(KinstError, match="where this kernel keeps the arguments"):
        fired("trace(execargs);", NoArguments)


class StoppedRig(HostRig):
    """A clause that runs on the host while a process of the traced kernel is at a stop."""

    def host_machine(self) -> CodeMachine:
        mm = Access(CURRENT_AT, (MM_OFFSET,), 8)
        user = UserMemory(self.callback.address, 0, mm, ARG_START, ARG_END)
        return replace(super().host_machine(), user=user, user_state=STATE)


class BegunRig(StoppedRig):
    """BEGIN: there is no thread, and readable memory at its structure's address is not one."""

    context: ClassVar[dict[int, int]] = {lay.CONTEXT_CURTHREAD: 0}


def test_before_any_thread() -> None:
    memory = World(arguments=b"no\0").memory()
    memory[0] = memory[TASK]
    for name in ("execargs", "stringof(execargs)"):
        assert raw(fired(f"trace({name});", BegunRig, memory=memory)).split(b"\0")[0] == b""
    assert value(fired("trace(ustackdepth);", BegunRig, memory=memory)) == 0
    assert value(fired("trace(ucaller);", BegunRig, memory=memory)) == 0
    found = fired("trace(uregs[R_3]);", BegunRig, memory=memory)
    assert value(found) == (lay.FAULT_ILLOP, 0)
    assert raw(fired("ustack(2);", BegunRig, memory=memory)) == words(PID, *[0] * (USER_WORDS + 1))


def test_a_process_that_stands_at_a_stop() -> None:
    frame = 0x7FFF_1000_0010
    world = World(frame=frame, stack={frame - 16: words(0, 0x405678)})
    body = ("ustack(3); trace(ustackdepth); trace(ucaller); trace(uregs[R_3]); trace(execargs);"
            f"tracemem(copyin({USER}, 4), 4); trace(progenyof(pid));")  # fmt: skip
    program = compiled(f"kinst::f:0 {{ {body} }} dtrace:::ERROR {{ trace(arg4); trace(arg5); }}")
    host = StoppedRig(program, {7: (0,)}, error=(1,), strsize=64, memory=world.memory())
    host.fire(7)
    (record,) = host.records(host.slot)
    stack, *others = [host.fields(record, k)[0] for k in range(7)]
    name = world.name or b""
    assert stack[:24] == words(PID, 0x400000) + name.ljust(8, b"\0")
    assert stack[8 * USER_WORDS :] == words(world.pc, 0x405678, 0)
    assert [int.from_bytes(one, "little") for one in others[:3]] == [2, 0x405678, 0x3333]
    assert others[3].split(b"\0")[0] == b"prog -x" and others[4] == world.arguments[:4]
    assert int.from_bytes(others[5], "little") == 1
    kernel_thread = World(mm=0)
    host = StoppedRig(program, {7: (0,)}, error=(1,), strsize=64, memory=kernel_thread.memory())
    host.fire(7)
    assert value(host) == (lay.FAULT_ILLOP, 0), "uregs[] of a thread that has no user mode"


def test_the_host_has_found_the_frames_before() -> None:
    """Frames are as many as any stack() asks for, followed by zeros."""

    class Walked(HostRig):
        frames = (0xFFFF_FFFF_8100_0001, 0xFFFF_FFFF_8200_0002, 3, 0, 0)

    assert raw(fired("stack(2);", Walked)) == words(*Walked.frames[:2])
    assert raw(fired("stack(5);", Walked)) == words(*Walked.frames)
    assert value(fired("trace(stackdepth);", Walked)) == 5


def test_places_in_programs_and_in_the_kernel() -> None:
    """An address of a process has words that identify the process (USER_WORDS)."""
    process = raw(fired("ustack(1);"))[: 8 * USER_WORDS]
    for name in ("usym", "ufunc", "umod", "uaddr"):
        assert raw(fired(f"{name}(0xFEDCBA9876543210);")) == process + words(0xFEDCBA9876543210)
    for name in ("sym", "func", "mod"):
        assert raw(fired(f"{name}(regs[R_4]);")) == words(0x4444)
    rig = fired("@a[sym(regs[R_4])] = count(); @b[usym(5), 7] = count(); @c[ustack(2)] = count();")
    stack = process + words(World().pc, 0)
    tables = [rig.table(k, 0) for k in range(3)]
    keys = [words(0x4444), process + words(5, 7), stack]
    assert [next(iter(table)) for table in tables] == [key[: len(key)] for key in keys]
    assert all(list(table.values()) == [(1,)] for table in tables)


def test_where_no_process_is_traced() -> None:
    """The pid of the context is recorded on the host, in BEGIN and the like, and nothing else."""
    stack = raw(fired("ustack(2);", HostRig))
    assert stack == words(PID, *[0] * (USER_WORDS + 1))
    assert value(fired("trace(ustackdepth);", HostRig)) == 0
    assert value(fired("trace(ucaller);", HostRig)) == 0
    assert value(fired("trace(uregs[R_3]);", HostRig)) == 0
    for name in ("execargs", "cwd", "root"):
        assert raw(fired(f"trace({name});", HostRig)).split(b"\0")[0] == b""
        assert value(fired(f"trace(strlen({name}));", HostRig)) == 0
