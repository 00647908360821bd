"""The base class of instruction sets: what codegen, patch, session and the machines ask an
instruction set.

The class Isa has three parts:
- StoppingIsa: what kinst needs to stop the machine at an instruction. An instruction set must
  define its abstract methods, and its attributes without a value. Everything else has a default.
- PlantingIsa: trampolines and patches. By default, every request for a trampoline is refused with a
  reason.
- Isa: questions about many instructions at once. By default, each is answered instruction by
  instruction.

All methods are pure. Addresses are virtual addresses of the target.

Tested by tests/isa/test_isa_contract.py and tests/test_extending.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np

from kinst.core.board import Board
from kinst.core.bodies import Body, Snippet, SnippetRegisters
from kinst.core.columns import (
    I32,
    I64,
    NO_COLUMNS,
    U8,
    U64,
    Bools,
    Columns,
    Leads,
    MadeTrampolines,
    Scanned,
    TrampolineBatch,
    columns_in,
)
from kinst.core.displaced import UNCHAINED, Onward, Refused, Relocated
from kinst.core.errors import KinstError
from kinst.core.instruction import Flow, Instruction, JumpTable
from kinst.core.page_tables import Paging
from kinst.core.probe import Argument, Site
from kinst.core.registers import Register, slots_of
from kinst.core.symbolic_run import SymbolicRun


class StoppingIsa(ABC):
    """The part of an instruction set that kinst needs to stop the machine at an instruction."""

    # The name that the user types: amd64.
    name: str
    # ELF e_machine.
    elf_machine: int
    registers: tuple[Register, ...]
    # Frame slots of the program counter and the stack pointer.
    pc_slot: int
    sp_slot: int
    # An instruction that traps.
    breakpoint: bytes
    # Frame slots of the C argument registers, and of the register with a C function's result.
    argument_slots: tuple[int, ...]
    result_slot: int
    # Offset from the stack pointer to the first argument on the stack, at a C function's entry.
    stack_arguments: int
    paging: Paging

    # Frame slot of the register that has the return address at a C function's entry; -1 if the
    # return address is in the word at the stack pointer, which the return removes.
    link_slot: int = -1
    # Frame slot that no register has. In it clauses store where control goes after them
    # (core/bodies.py, Exit.number). -1 if kinst changes neither registers nor control there.
    exit_slot: int = -1
    # Frame slots of the registers that clauses may change; and for another register the reason why
    # they may not.
    writable_slots: frozenset[int] = frozenset()
    fixed_slots: Mapping[int, str] = MappingProxyType({})

    # D names that DTrace has for registers which kinst cannot read -> the reason.
    unavailable_registers: Mapping[str, str] = {}
    # D names by the ABI's DWARF register numbers, "" for none.
    dwarf_registers: tuple[str, ...] = ()
    # D names of the registers that C calls preserve, except the stack pointer.
    kept_registers: tuple[str, ...] = ()
    # Mask of the bits of a kernel return address that may hold its signature (pointer
    # authentication).
    signature_bits: int = 0
    # Globs of the function names for which thunk() may return a flow.
    thunks: tuple[str, ...] = ()
    # (name, bytes) of each register in the g packet, for stubs that do not describe their
    # registers.
    gdb_registers: tuple[tuple[str, int], ...] = ()
    # The stub's names of registers that hold the trap handler's address.
    vectors: tuple[str, ...] = ()
    # The fields of a kinst.isa._plain.PlainDisassembly, by which completion shows instructions;
    # empty if it shows none.
    plain: Mapping[str, object] = {}

    @property
    def board(self) -> Board:
        """How QEMU runs a kernel of this instruction set. Raises KinstError if kinst does not know
        how."""
        raise KinstError(
            f"kinst does not know how QEMU runs {self.name} kernels",
            "start the machine, and trace it with --gdb",
        )

    @cached_property
    def frame_slots(self) -> int:
        """How many u64 slots a frame of saved registers has."""
        return slots_of(self.registers, self.exit_slot)

    @cached_property
    def pc(self) -> str:
        """The GDB stub's name of the program counter."""
        return self._stub_name(self.pc_slot)

    @cached_property
    def sp(self) -> str:
        """The GDB stub's name of the stack pointer."""
        return self._stub_name(self.sp_slot)

    def _stub_name(self, slot: int) -> str:
        return next(register.gdb_name for register in self.registers if register.slot == slot)

    @abstractmethod
    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        """Yield the instructions of `code`, which lies at `address`, in order. Stop at the first
        instruction whose length is not known.

        An unknown instruction of known length is yielded. For such an instruction flow() says that
        control may go anywhere, and displace() refuses."""

    @abstractmethod
    def flow(self, code: bytes, address: int) -> Flow:
        """Return where control can go from one instruction.

        Args:
            code: the bytes of the instruction.
            address: the address of the instruction.
        """

    def is_nop(self, code: bytes) -> bool:
        """Whether the instruction with these bytes is known to have no effect."""
        return False

    def undecoded(self, code: bytes) -> str:
        """Return why decode() finds no instruction at the start of `code`, which is not empty."""
        return "no known instruction begins so"

    def pair_flow(self, first: Instruction, second: Instruction) -> Flow | None:
        """Return where control can go from `second`, for a direct call or jump that takes two
        instructions (auipc and jalr on riscv64); None for any other pair.

        Args:
            first: the instruction directly before `second`; it has run.
            second: the instruction that jumps.
        """
        return None

    def thunk(self, name: str) -> Flow | None:
        """Return what a jump to the function of this name really does, if the function is a thunk:
        a return (return thunk) or an indirect jump (retpoline). None if it is no thunk."""
        return None

    def has_sequences(self, code: bytes) -> bool:
        """Whether a function with these live bytes may have instructions whose neighbours limit
        how they are planted, such as a load-exclusive and store-exclusive pair. If False,
        unsafe() and rerun_starts() return nothing for the function, and need not be called.

        Must be fast: if an exact answer takes long, return True."""
        return False

    def unsafe(self, instructions: Sequence[Instruction]) -> Mapping[int, str]:
        """Return the instructions of a function that cannot be planted because of their neighbours,
        such as some between a load-exclusive and its store-exclusive instruction. The result maps
        the address of each to the reason.

        Args:
            instructions: all live instructions of the function, in order.
        """
        return {}

    def rerun_starts(self, instructions: Sequence[Instruction]) -> Mapping[int, int]:
        """Return the instructions of a function that can be planted only if instructions before
        them run again after the probe's work. An example are instructions between a load-exclusive
        and its store-exclusive instruction: the work makes the store fail, unless the load runs
        again.

        The result maps the address of each such instruction to the address of the first instruction
        that runs again. A debugger's breakpoint at such an instruction would make the store fail,
        too.

        Args:
            instructions: all live instructions of the function, in order.
        """
        return {}

    def jump_tables(self, instructions: Sequence[Instruction]) -> Sequence[JumpTable]:
        """Return the possible tables of a function's computed jumps, found by the data addresses
        that its instructions compute.

        Some results may be other data. The caller rejects those whose first two entries do not lead
        to instructions of the function.

        Args:
            instructions: all live instructions of the function, in order.
        """
        return ()

    def guarded_call(
        self, pieces: Sequence[tuple[int, bytes]], call: int, guard: int, count: int
    ) -> tuple[int, bytes, Sequence[Argument]] | None:
        """Find where a function loads a pointer that guards a call: the function loads the pointer,
        tests it for null, and makes the call if it is not null.

        Returns (address of the load instruction, its bytes, how to find the call's arguments when
        the load is about to run). Returns None if the call's arguments are not known, if control
        can enter between the load and the call, or if there is another branch between them than the
        test for null.

        Args:
            pieces: (address, code) of every part of the function.
            call: address of the call instruction, which calls a C function.
            guard: address of the memory that holds the pointer.
            count: how many arguments the call has.
        """
        return None

    def symbolic_run(self) -> SymbolicRun | None:
        """Return a symbolic execution that begins with unchanged registers; None if kinst has none
        for this instruction set."""
        return None

    def returns_of(self, code: bytes, address: int, target: int) -> Sequence[int]:
        """Return the return addresses of all direct calls of `target` in the code, ascending. Some
        may be wrong: bytes inside other instructions can look like a call."""
        calls = (one for one in self.decode(code, address) if self._calls(one, target))
        return [one.end for one in calls]

    def _calls(self, instruction: Instruction, target: int) -> bool:
        flow = self.flow(instruction.code, instruction.address)
        return flow.kind == "call" and flow.target == target

    def unsteppable(self, code: bytes) -> str:
        """Return why a debugger cannot step over the instruction with these bytes without harm; ""
        if it can."""
        return ""

    def unskippable(self, code: bytes, address: int) -> str:
        """Return, in words for the user, why D's skip() may not leave out an instruction. "" if it
        may: the instruction does not change the stack pointer. Only asked of instructions after
        which control goes on to the next one.
        """
        return f"kinst does not know the effects of instructions of {self.name} well enough"

    def padding(self, code: bytes) -> int:
        """Return how many bytes at the start of `code` are whole padding instructions.

        Compilers put padding after code that does not fall through. decode() may leave the padding
        out.
        """
        return 0


class PlantingIsa(StoppingIsa):
    """The part of an instruction set that makes trampolines and patches.

    By default every request is refused. An instruction set that can plant sets no_trampolines to ""
    and overrides the methods."""

    # Why no site is planted inside the kernel; "" if sites are.
    no_trampolines: str = "kinst makes no trampolines for this instruction set"
    # LLVM's triple and features (no vector or floating-point registers) of code in the target.
    triple: str = ""
    cpu_features: str = ""
    # Options of LLVM's command line for this ISA's code generator.
    llvm_options: tuple[str, ...] = ()
    # LLVM's calling convention of the entries that trampolines call.
    convention: str = "ccc"
    # How code reads the cycle counter to one i64, and the constraints of that inline assembly (see
    # codegen's CodeMachine); "" if it cannot.
    timestamp_asm: str = ""
    timestamp_constraints: str = "=r"
    # CountBody's counters are one block for all CPUs, and are added to atomically.
    shared_counters: bool = True
    # Code that adds to a counter changes the flags.
    counting_changes_flags: bool = True
    # This instruction set as it is used in user programs, whose instructions trampolines only
    # count; None if kinst plants no user programs of it.
    programs: Isa | None = None
    # trampoline() accepts a RecordBody.
    records_inline: bool = False
    # Size of the jump of a run; 0 if every instruction is long enough for a jump.
    RUN_SIZE: int = 0
    # Offset of the second instruction of a run's jump; 0 if the jump is one instruction.
    RUN_STEP: int = 0
    # The jump of a run, and other jumps that lead far, change a register.
    needs_dead_register: bool = False
    snippets: SnippetRegisters = SnippetRegisters({}, "")

    def displace(self, code: bytes, address: int, to: int) -> Relocated | Refused:
        """Return code for address `to` that has the effect of one instruction, or the reason why
        there is no such code.

        Args:
            code: the bytes of the instruction.
            address: the original address of the instruction.
            to: the address at which the returned code will run.
        """
        return Refused(self.no_trampolines)

    def trampoline(
        self,
        site: Site,
        following: bytes,
        to: int,
        bodies: Sequence[Body],
        rerun_prefix: bytes = b"",
        onward: Onward = UNCHAINED,
    ) -> Relocated | Refused:
        """Return the whole trampoline for a site, to lie at address `to`, or the reason why it
        cannot be made. The trampoline does the work of `bodies`, then runs the displaced
        instruction.

        Interrupts are off while the code of a CallBody runs. The displaced instruction finds the
        flags unchanged, and all registers except those that a CallBody has changed.

        Args:
            site: the instruction.
            following: live bytes after the instruction, from which flag liveness is found.
            to: the address of the trampoline.
            bodies: the work, in order. A CallBody may change registers (CallBody.written), and may
                lead control past the displaced instruction (CallBody.exits).
            rerun_prefix: live bytes directly before the instruction, which run again after the work
                and before the displaced instruction (see rerun_starts()).
            onward: where control goes after the displaced instruction.
        """
        return Refused(self.no_trampolines)

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Return exactly `size` bytes that jump from `address` to `to`; None if no jump of that
        size reaches."""
        return None

    def run_patch(self, code: bytes, address: int, to: int, dead: int = 0) -> bytes | None:
        """Return the patch of a run: bytes to write over the instructions `code` at `address`, so
        that control goes from the first instruction to `to`. None if no such jump can be made.

        Args:
            code: the run's original bytes, at least RUN_SIZE.
            address: the address of the run's first instruction.
            to: where the jump leads.
            dead: registers that the jump may change, as a mask from dead_registers().
        """
        return None

    def trap_patch(self, size: int) -> bytes:
        """Return at most `size` bytes that make an instruction trap when they are written over its
        start."""
        if size < len(self.breakpoint):
            raise ValueError(f"an instruction has {len(self.breakpoint)} bytes or more")
        return self.breakpoint

    def leave_patch(self, at: int, to: int) -> bytes:
        """Return the bytes of a jump that replaces the first instruction of a head (a trampoline
        with Onward.head). The head is at address `at`; the jump leads to its site at address `to`.
        The bytes are not longer than the instruction that they replace."""
        raise NotImplementedError(self.no_trampolines)

    def dead_registers(
        self, instructions: Sequence[Instruction], flows: Sequence[Flow]
    ) -> Sequence[int]:
        """Return a mask of the dead registers at each of a function's instructions, one mask per
        instruction in the same order: bit n is the register of frame slot n. If needs_dead_register
        is False, every mask is 0.

        A register is dead at an instruction if nothing from that instruction on reads the register
        before writing it.

        Args:
            flows: where control goes from each instruction.
        """
        return [0] * len(instructions)

    def branches(self, code: bytes, address: int) -> tuple[U64, U64]:
        """Return the direct branches in `code`, and the instructions in it that compute an address.
        The first column has the address of each; the second has its branch target, or the address
        that it computes. Both columns are sorted by the second one.

        Some pairs may be wrong: bytes inside other instructions can look like a branch. Called only
        for an ISA on which a jump may cover several instructions (RUN_SIZE is not 0)."""
        return NO_COLUMNS.address, NO_COLUMNS.address

    def table_starts(self, code: bytes, address: int) -> U64:
        """Return the addresses at which there may be jump tables whose entries are distances from
        the table's start. They are the addresses that instructions in `code` compute: ascending,
        each once.

        Some may be wrong: bytes inside other instructions can look like such an instruction."""
        return NO_COLUMNS.address

    def snippet(self, code: bytes, zero: bool = False) -> Snippet | None:
        """Return a Snippet of machine code that LLVM made, after finding which registers the code
        reads and writes. None if the code branches, writes memory or uses the stack.

        Args:
            code: the machine code.
            zero: Snippet.zero: whether the work is done if the computed word is 0.
        """
        return None

    def stub(self, at: int, counter: int, to: int, free: bool) -> bytes | Refused:
        """Return the code of a stub, which counts control that enters the middle of a basic block:
        it adds one to a counter, changes nothing else, and jumps to `to`. Or return why it cannot
        be made.

        Args:
            counter: the counter, as in CountBody.offsets.
            free: True if the code may leave the flags unsaved, since adding does not change them or
                nothing reads them afterwards (counts_freely()).
        """
        return Refused(self.no_trampolines)

    def detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """Return code that hooks a C function of the kernel at its first instruction: (patch to
        write at `address`, stub to write at `to`). Return Refused if the function cannot be hooked.

        The stub calls hook(arg0), a C function. If hook() returns 0, the original function runs; if
        hook() returns 1, the original function does not run.

        Args:
            code: the function's first HOOK_BYTES bytes (core/system.py), or all of them if it is
                shorter.
            address: the address of the function.
            to: the address of the stub.
            hook: the address of the C function to call.
        """
        return Refused(self.no_trampolines)

    def translate_detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """Return code that hooks a C function of the kernel: (patch to write at `address`, stub to
        write at `to`). Return Refused if the function cannot be hooked.

        The stub replaces the function's first argument by hook(arg0), then runs the original
        function. The arguments are those of detour()."""
        return Refused(self.no_trampolines)


class Isa(PlantingIsa):
    """An instruction set: StoppingIsa, PlantingIsa, and questions about many instructions at once.

    By default, questions about many instructions are answered instruction by instruction. An
    instruction set may override these methods to answer faster for the instructions to which its
    scan() gives a mark (Columns.marks). The answers must be equal."""

    def sizes(self, code: bytes) -> I64:
        """Return the size in bytes of each instruction that decode() finds in `code`, in order."""
        return np.array([one.size for one in self.decode(code, 0)], np.int64)

    def scan(self, pieces: Sequence[tuple[int, bytes]]) -> Scanned:
        """Return the instructions that decode() finds in several pieces of code. Columns.marks of
        the result has a mark for each instruction that scan() has examined, else 0.

        If the mark of an instruction depends on following instructions, only following bytes of its
        own piece count, at most FOLLOWING bytes. By default all marks are 0.

        Args:
            pieces: (address, bytes) of each piece.
        """
        sizes = [self.sizes(code) for _, code in pieces]
        bounds = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum([len(some) for some in sizes], out=bounds[1:])
        if not bounds[-1]:
            return Scanned(NO_COLUMNS, bounds)
        addresses = [
            np.uint64(at) + (np.cumsum(some) - some).astype(np.uint64)
            for (at, _), some in zip(pieces, sizes, strict=True)
        ]
        every = columns_in(pieces, bounds, np.concatenate(addresses), np.concatenate(sizes))
        return Scanned(every, bounds)

    def leads(self, columns: Columns) -> Leads:
        """Return where control goes from each instruction, read from its mark (Columns.marks).

        If the mark of an instruction is 0, its values in the result have no meaning: call flow()
        for it."""
        count = len(columns)
        return Leads(
            np.zeros(count, np.bool_), np.zeros(count, np.uint64), np.zeros(count, np.uint8)
        )

    def may_make_tables(self, columns: Columns) -> Bools:
        """Return for each instruction whether jump_tables() may need to see it. If jump_tables()
        gets only these instructions of a function, its result is the same."""
        return np.ones(len(columns), np.bool_)

    def counts_freely(self, sites: Columns, following: Sequence[bytes]) -> Bools:
        """Return for each site whether code there can add to a counter without saving the flags.

        Args:
            following: live bytes after each site, from which flag liveness is found.
        """
        return np.full(len(sites), not self.counting_changes_flags)

    def jump_patches(self, columns: Columns, to: U64) -> tuple[Bools, U8]:
        """Return for each instruction whether jump_patch() reaches its target, and the patches: one
        row of WIDTH bytes per instruction.

        Args:
            columns: the instructions.
            to: the target of each instruction's jump.
        """
        rows, reaches = np.zeros(columns.code.shape, np.uint8), np.zeros(len(columns), np.bool_)
        sites = zip(columns.size.tolist(), columns.address.tolist(), to.tolist(), strict=True)
        for k, (size, address, target) in enumerate(sites):
            patch = self.jump_patch(size, address, target)
            if patch is not None:
                reaches[k] = True
                rows[k, :size] = np.frombuffer(patch, np.uint8)
        return reaches, rows

    def run_patches(
        self, start: U64, at: I64, code: bytes, to: U64, dead: Sequence[int]
    ) -> tuple[Bools, bytes]:
        """Return for each run whether run_patch() can make its patch; and the patches of all runs,
        one after another. A run that cannot have a patch has its original bytes in place of one.

        Args:
            start: address of each run.
            at: offset in `code` of each run's bytes, then the length of `code`.
            code: the original bytes of all runs, one after another.
            to: target of each jump.
            dead: for each jump, the registers that it may change, as a mask from dead_registers().
        """
        reaches, parts, bounds = np.zeros(len(start), np.bool_), [], at.tolist()
        runs = zip(start.tolist(), bounds, bounds[1:], to.tolist(), dead, strict=False)
        for k, (address, low, high, target, free) in enumerate(runs):
            patch = self.run_patch(code[low:high], address, target, free)
            reaches[k] = patch is not None
            parts.append(patch or code[low:high])
        return reaches, b"".join(parts)

    def stubs(self, at: int, counters: I64, to: U64, free: Bools) -> tuple[U8, I64] | None:
        """Return the code of many stub()s, one directly after another from address `at` on, and the
        size of each stub in bytes. None if any of the stubs cannot be made.

        Args:
            counters: CountBody's offset of each stub's counter, as signed 64-bit numbers.
            to: where each stub jumps.
            free: for each stub, True if it may leave the flags unsaved (counts_freely()).
        """
        parts, sizes = [], []
        for counter, target, saves_none in zip(
            counters.view(np.uint64).tolist(), to.tolist(), free.tolist(), strict=True
        ):
            code = self.stub(at, counter, target, saves_none)
            if isinstance(code, Refused):
                return None
            parts.append(code)
            sizes.append(len(code))
            at += len(code)
        return np.frombuffer(b"".join(parts), np.uint8), np.array(sizes, np.int64)

    def trampoline_sizes(self, batch: TrampolineBatch) -> I32:
        """Return the size in bytes of each trampoline of a batch. The size is the same anywhere in
        the batch's memory; -1 means that only trampoline() can make this trampoline."""
        return np.full(len(batch.columns), -1, np.int32)

    def trampolines(self, batch: TrampolineBatch, to: U64, target: U64) -> MadeTrampolines:
        """Return the trampolines of a batch. trampoline_sizes() must have returned a size for each
        of them, not -1. Each is byte for byte what trampoline() would return.

        Args:
            to: address of each trampoline.
            target: for each instruction that is a direct branch, where the branch leads from the
                trampoline: to the original target or, if the instruction there is planted, to its
                trampoline.
        """
        return MadeTrampolines(np.zeros(0, np.uint8), np.zeros(0, np.int32))
