"""An instruction set, as codegen, patch, session and the machines ask it.

Isa is the base class of every instruction set; its answers come in three parts:
- StoppingIsa: what stopping the machine at an instruction needs.  Its abstract methods, and its
  attributes without a value, are all that an instruction set must have.
- PlantingIsa: trampolines and patches.  Its own answer is that there are none, with the reason.
- Isa: questions about many instructions at once, answered one instruction after another.

All methods are pure.  Addresses are virtual, in the target.

Tested by tests/isa/test_isa_contract.py and tests/test_extending.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

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
from kinst.core.probe import Site
from kinst.core.registers import Register


class StoppingIsa(ABC):
    """Answers that are needed to stop the machine at an instruction."""

    # What the user types: amd64.
    name: str
    # ELF e_machine.
    elf_machine: int
    registers: tuple[Register, ...]
    # Frame slots of the program counter and the stack pointer.
    pc_slot: int
    sp_slot: int
    # An instruction that traps.
    breakpoint: bytes
    # Frame slots of the C argument registers, and of the one that returns a C function's value.
    argument_slots: tuple[int, ...]
    result_slot: int
    # Bytes from the stack pointer to the first argument on the stack, at a C function's entry.
    stack_arguments: int
    paging: Paging

    # Reasons why registers with these D names, which DTrace has, cannot be read.
    unavailable_registers: Mapping[str, str] = {}
    # D names by the ABI's DWARF register numbers, "" for none.
    dwarf_registers: tuple[str, ...] = ()
    # D names of the registers that C calls preserve, except the stack pointer.
    kept_registers: tuple[str, ...] = ()
    # Bits of a return address in the kernel that may hold a signature of it.
    signature_bits: int = 0
    # Globs of the names that thunk() may know.
    thunks: tuple[str, ...] = ()
    # (name, bytes) of the g packet of stubs that do not describe their registers.
    gdb_registers: tuple[tuple[str, int], ...] = ()
    # The stub's names of registers that hold the trap handler's address.
    vectors: tuple[str, ...] = ()
    # The fields of a kinst.isa._plain.PlainDisassembly, by which completion shows instructions;
    # empty if it shows none.
    plain: Mapping[str, object] = {}

    @property
    def board(self) -> Board:
        """How QEMU runs a kernel.  Raises KinstError if kinst does not know."""
        raise KinstError(
            f"kinst does not know how QEMU runs {self.name} kernels",
            "start the machine, and trace it with --gdb",
        )

    @cached_property
    def frame_slots(self) -> int:
        """The u64 slots of the frame that a trampoline, or a stop, hands to a clause."""
        return 1 + max(register.slot for register in self.registers)

    @cached_property
    def pc(self) -> str:
        """The stub's name of the program counter."""
        return self._stub_name(self.pc_slot)

    @cached_property
    def sp(self) -> str:
        """The stub's name of the stack pointer."""
        return self._stub_name(self.sp_slot)

    def _stub_name(self, slot: int) -> str:
        return next(register.gdb_name for register in self.registers if register.slot == slot)

    @abstractmethod
    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        """Yield the instructions of code in order, up to the first byte from which the length of
        an instruction is not known.

        An unknown instruction of known length is one of them: flow() lets it go anywhere, and
        displace() refuses it."""

    @abstractmethod
    def flow(self, code: bytes, address: int) -> Flow:
        """Return where control goes from the one instruction `code` at `address`."""

    def is_nop(self, code: bytes) -> bool:
        """Whether the one instruction `code` is known to be a no-operation."""
        return False

    def undecoded(self, code: bytes) -> str:
        """Return why decode() finds no instruction at the start of `code`, which is not empty."""
        return "no known instruction begins so"

    def pair_flow(self, first: Instruction, second: Instruction) -> Flow | None:
        """Return where control goes from `second` if the instruction directly before it has run,
        for a direct call or jump that takes two instructions; None for other pairs."""
        return None

    def thunk(self, name: str) -> Flow | None:
        """Return what a jump to a function of this name stands for, if compilers put such a
        function in place of a return or an indirect jump; otherwise None."""
        return None

    def has_sequences(self, code: bytes) -> bool:
        """Return False if unsafe() and rerun_starts() find nothing in a function with these live
        bytes.  Must be quick: True if telling takes longer."""
        return False

    def unsafe(self, instructions: Sequence[Instruction]) -> Mapping[int, str]:
        """Return the instructions of a function that cannot be planted because of those around
        them (within a load-exclusive and store-exclusive pair): address to reason.

        instructions: all live ones, in order."""
        return {}

    def rerun_starts(self, instructions: Sequence[Instruction]) -> Mapping[int, int]:
        """Return the instructions of a function that can be planted only if those before them run
        again after the probe's work (within a load-exclusive and store-exclusive pair): address to
        the address of the first that runs again.  A debugger cannot stop at them without harm.

        instructions: all live ones, in order."""
        return {}

    def jump_tables(self, instructions: Sequence[Instruction]) -> Sequence[JumpTable]:
        """Return data that may be the tables of a function's computed jumps, by the addresses that
        its instructions make.

        Some may be other data: the first two entries of a table lead to instructions of the
        function.  instructions: all live ones, in order."""
        return ()

    def returns_of(self, code: bytes, address: int, target: int) -> Sequence[int]:
        """Return the return addresses of the direct calls of `target` in code, ascending.  Some
        may be no calls, if their bytes are inside other instructions."""
        calls = (one for one in self.decode(code, address) if self._calls(one, target))
        return [one.end for one in calls]

    def _calls(self, instruction: Instruction, target: int) -> bool:
        flow = self.flow(instruction.code, instruction.address)
        return flow.kind == "call" and flow.target == target

    def unsteppable(self, code: bytes) -> str:
        """Return why a debugger cannot step over the one instruction `code` without harm, or ""."""
        return ""

    def padding(self, code: bytes) -> int:
        """Return the bytes of whole instructions at the start of `code` that only fill space.
        Compilers put them after code that does not go on; decode() may leave them out there."""
        return 0


class PlantingIsa(StoppingIsa):
    """Trampolines and patches.

    An instruction set that plants sets no_trampolines to "" and overrides the methods.
    """

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
    # CountBody's counters are one block for all CPUs, added to atomically.
    shared_counters: bool = True
    # Code that adds to a counter changes flags.
    counting_changes_flags: bool = True
    # trampoline() knows RecordBody.
    records_inline: bool = False
    # Bytes of a jump over several instructions; 0 if every instruction has room for its own.
    RUN_SIZE: int = 0
    # Bytes from its start to its second instruction, if it has one; otherwise 0.
    RUN_STEP: int = 0
    # That jump, and others that lead far, change a register.
    needs_dead_register: bool = False
    snippets: SnippetRegisters = SnippetRegisters({}, "")

    def displace(self, code: bytes, address: int, to: int) -> Relocated | Refused:
        """Return code at `to` with the effect of the one instruction `code` at `address`."""
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
        """Return the whole trampoline at address `to`: it runs bodies, then the displaced
        instruction.

        Interrupts are off while the code of a CallBody runs; registers and flags reach the
        displaced instruction unchanged.

        Args:
            following: live bytes after the instruction, for flag liveness.
            rerun_prefix: live bytes directly before it that run again between the two (see
                rerun_starts()).
            onward: where control goes on.
        """
        return Refused(self.no_trampolines)

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Return exactly `size` bytes that branch from address to `to`; None if none do."""
        return None

    def run_patch(self, code: bytes, address: int, to: int, dead: int = 0) -> bytes | None:
        """Return what is written over the instructions `code` at address, RUN_SIZE bytes or more,
        so that control goes from the first of them to `to`; None if it cannot.

        dead: registers that it may change, as from dead_registers()."""
        return None

    def trap_patch(self, size: int) -> bytes:
        """Return the bytes, at most `size`, to write over the start of an instruction so that it
        traps."""
        if size < len(self.breakpoint):
            raise ValueError(f"an instruction has {len(self.breakpoint)} bytes or more")
        return self.breakpoint

    def leave_patch(self, at: int, to: int) -> bytes:
        """Return what turns the start of a trampoline at `at` that is a head (Onward) into a jump
        to its site at `to`: no longer than the instruction that is there."""
        raise NotImplementedError(self.no_trampolines)

    def dead_registers(
        self, instructions: Sequence[Instruction], flows: Sequence[Flow]
    ) -> Sequence[int]:
        """Return, for each of a function's instructions, the registers that are dead there: from
        it on nothing reads them before they are written.  Bits by frame slot; 0 for each if
        needs_dead_register is False.

        flows: of the instructions."""
        return [0] * len(instructions)

    def branches(self, code: bytes, address: int) -> tuple[U64, U64]:
        """Return (where, where to) of all direct branches within `code` and of all addresses that
        its instructions make, ascending by where they lead.

        Some are none: their bytes are inside other instructions.  Only asked if there is a
        RUN_SIZE."""
        return NO_COLUMNS.address, NO_COLUMNS.address

    def snippet(self, code: bytes, zero: bool = False) -> Snippet | None:
        """Return code that LLVM made for a snippet, with what it reads and writes; None if it is
        not straight, writes memory or uses the stack.  zero: as in Snippet."""
        return None

    def stub(self, at: int, counter: int, to: int, free: bool) -> bytes | Refused:
        """Return code at `at` that adds one to a counter (one of CountBody's offsets), changes
        nothing else, and jumps to `to`.  free: counts_freely() at the place."""
        return Refused(self.no_trampolines)

    def detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """Hook a C function of the kernel at its first instruction.

        Returns (patch at address, stub at `to`).  The stub calls hook(arg0), a C function that
        returns 0 to go on in the original function, or 1 to return from it at once.

        code: the function's first bytes, HOOK_BYTES (core/system.py) or as many as it has."""
        return Refused(self.no_trampolines)

    def translate_detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """Hook as detour() does, with a stub that replaces the first argument by hook(arg0) and
        goes on."""
        return Refused(self.no_trampolines)


class Isa(PlantingIsa):
    """Questions about many instructions at once.

    An instruction set overrides these if one after another is too slow, for all instructions that
    it marks in scan().  Its answers are those that one after another would have.
    """

    def sizes(self, code: bytes) -> I64:
        """Return the sizes of the instructions of decode(), in order."""
        return np.array([one.size for one in self.decode(code, 0)], np.int64)

    def scan(self, pieces: Sequence[tuple[int, bytes]]) -> Scanned:
        """Return the instructions of decode() of pieces of code, (address, bytes) each, with their
        marks.

        A mark that depends on the instructions after it sees those of its own piece, FOLLOWING
        bytes at most.  Without marks, only their sizes are needed."""
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
        """Return where control goes from marked instructions; for others nothing."""
        count = len(columns)
        return Leads(
            np.zeros(count, np.bool_), np.zeros(count, np.uint64), np.zeros(count, np.uint8)
        )

    def may_make_tables(self, columns: Columns) -> Bools:
        """Return the instructions that jump_tables() may need; it does without the rest."""
        return np.ones(len(columns), np.bool_)

    def counts_freely(self, sites: Columns, following: Sequence[bytes]) -> Bools:
        """Return the sites at which counting need not save flags.

        following: live bytes after each."""
        return np.full(len(sites), not self.counting_changes_flags)

    def jump_patches(self, columns: Columns, to: U64) -> tuple[Bools, U8]:
        """Return whether jump_patch() leads from each instruction to its `to`, and the patches, a
        row of WIDTH bytes for each."""
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
        """Return which runs have a run_patch(), and the bytes of all, one after another.

        Args:
            start: address of each run.
            at: where the bytes of each begin in `code`, and in the end their number.
            code: the original bytes of all, one after another.
            to: where each jump is to lead.
            dead: registers that each may change.
        """
        reaches, parts, bounds = np.zeros(len(start), np.bool_), [], at.tolist()
        runs = zip(start.tolist(), bounds, bounds[1:], to.tolist(), dead, strict=False)
        for k, (address, low, high, target, free) in enumerate(runs):
            patch = self.run_patch(code[low:high], address, target, free)
            reaches[k] = patch is not None
            parts.append(patch or code[low:high])
        return reaches, b"".join(parts)

    def stubs(self, at: int, counters: I64, to: U64, free: Bools) -> tuple[U8, I64] | None:
        """Return the code of many stub()s, one directly after another from `at` on, and the bytes
        of each; None if one cannot be made.  counters: as signed 64-bit numbers."""
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
        """Return the bytes of each trampoline of a batch, wherever in the batch's memory it lies;
        -1 for those that trampoline() must make."""
        return np.full(len(batch.columns), -1, np.int32)

    def trampolines(self, batch: TrampolineBatch, to: U64, goal: U64) -> MadeTrampolines:
        """Return the trampolines of a batch, whose sizes are all known: byte for byte those of
        trampoline().

        Args:
            to: where each lies.
            goal: where the direct branch of each leads.
        """
        return MadeTrampolines(np.zeros(0, np.uint8), np.zeros(0, np.int32))
