"""What every ISA answers; codegen, patch and the targets ask only through this protocol.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kinst.core.board import Board
from kinst.core.bodies import Body, Snippet, SnippetRegisters
from kinst.core.columns import I32, I64, U8, U64, Batch, Bools, Columns, Leads, Made, Scanned
from kinst.core.displaced import UNCHAINED, Onward, Refused, Relocated
from kinst.core.instruction import Flow, Instruction, JumpTable
from kinst.core.paging import Paging
from kinst.core.probe import Site


@dataclass(frozen=True, slots=True)
class Register:
    """One register: its D name (R_RAX), its index in regs[], and the stub's name (rax).

    The index is the number that regs[] takes; saved values live at frame[slot] (u64 each).
    """

    d_name: str
    index: int
    slot: int
    gdb_name: str


class Isa(Protocol):
    """One instruction set.  All methods are pure; addresses are virtual, in the target."""

    name: str  # what the user types: amd64
    elf_machine: int  # ELF e_machine
    triple: str  # LLVM triple of in-target code
    cpu_features: str  # LLVM feature string: no vector or floating-point registers
    registers: tuple[Register, ...]
    unavailable_registers: Mapping[str, str]  # D names that are known, to why they are not there
    frame_slots: int  # u64 slots of the frame that a trampoline hands to a clause
    pc_slot: int
    sp_slot: int
    flags_slot: int
    breakpoint: bytes
    convention: str  # LLVM calling convention of the entries that trampolines call
    llvm_options: tuple[str, ...]  # of LLVM's command line, for this ISA's code generator
    shared_counters: bool  # CountBody's counters are one block for all CPUs, added to atomically
    records_inline: bool  # trampoline() knows RecordBody
    argument_slots: tuple[int, ...]  # frame slots of the C argument registers
    dwarf_registers: tuple[str, ...]  # D names by the ABI's DWARF register numbers, "" for none
    stack_arguments: int  # from the stack pointer to the first argument on the stack, at entry
    kept_registers: tuple[str, ...]  # D names of those that C calls keep, but the stack pointer
    signature_bits: int  # of a return address in the kernel, that may hold a signature of it
    result_slot: int  # of the register that returns a C function's value
    thunks: tuple[str, ...]  # globs of the names that thunk() may know
    RUN_SIZE: int  # bytes of a jump over several instructions; 0: none is ever needed
    RUN_STEP: int  # from its start to its second instruction, where it has one; else 0
    needs_spare: bool  # whether jumps need a register that they may spoil
    timestamp_asm: str  # inline assembly, "=r"-style: reads the cycle counter to one i64
    paging: Paging
    board: Board
    snippets: SnippetRegisters

    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        """Instructions of code in order; stops at the first byte from which the length of an
        instruction is not known.  An instruction that is not known, but whose length is, is one
        of them: flow() lets it go anywhere and displace() refuses it."""
        ...

    def is_nop(self, code: bytes) -> bool:
        """Whether the one instruction `code` is a no-operation."""
        ...

    def undecoded(self, code: bytes) -> str:
        """Why decode() finds no instruction at the start of `code`, which is not empty."""
        ...

    def flow(self, code: bytes, address: int) -> Flow:
        """Where control goes from the one instruction `code` at `address`."""
        ...

    def joined(self, before: Instruction, one: Instruction) -> Flow | None:
        """Where control goes from `one` when the instruction straight before it has run: a direct
        call or jump in two instructions; None where they are not that."""
        ...

    def thunk(self, name: str) -> Flow | None:
        """What a jump to a function of this name is really: a return or an indirect jump, when
        compilers put such a function in its place; otherwise None."""
        ...

    def hangs_together(self, code: bytes) -> bool:
        """False where unsafe() and rerun_starts() have nothing to say of a function of these live
        bytes; quick, and True where that takes a longer look."""
        ...

    def unsafe(self, instructions: Sequence[Instruction]) -> Mapping[int, str]:
        """Of a function's live instructions in order, those that cannot be planted because of
        the others (within a load-exclusive and store-exclusive pair): address to reason."""
        ...

    def rerun_starts(self, instructions: Sequence[Instruction]) -> Mapping[int, int]:
        """Of a function's live instructions in order, those that can be planted only when others,
        all of those straight before them from some place on, are run again after the probe's work
        (within a load-exclusive and store-exclusive pair): address to that of the first of
        these.  A debugger cannot stop at them without harm."""
        ...

    def jump_tables(self, instructions: Sequence[Instruction]) -> Sequence[JumpTable]:
        """What may be the tables of a function's computed jumps, by the addresses that its
        instructions, in order, make.  Some may be other data: the first two entries of a table
        lead to instructions of the function."""
        ...

    def may_make_tables(self, columns: Columns) -> Bools:
        """Of which instructions jump_tables() may have something to say: of all others it says
        nothing, whether they are there or not."""
        ...

    def returns_of(self, code: bytes, address: int, target: int) -> Sequence[int]:
        """Return addresses of the direct calls of `target` in code, ascending.  Some may be no
        calls (their bytes are within other instructions)."""
        ...

    def branches(self, code: bytes, address: int) -> tuple[U64, U64]:
        """(where, where to) of all direct branches within `code`, and of all addresses in it that
        its instructions make, ascending by where they lead.  Some are none: their bytes are within
        other instructions.  Not asked of an ISA without RUN_SIZE."""
        ...

    def unsteppable(self, code: bytes) -> str:
        """Why a debugger cannot step over the one instruction `code` without harm, or ""."""
        ...

    def displace(self, code: bytes, address: int, to: int) -> Relocated | Refused:
        """Code at `to` with the effect of the one instruction `code` at `address`."""
        ...

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Exactly `size` bytes that branch from address to `to`, or None if it cannot be done."""
        ...

    def jump_patches(self, columns: Columns, to: U64) -> tuple[Bools, U8]:
        """For many instructions: whether jump_patch() leads from each to its `to`, and what it is,
        a row of WIDTH bytes for each."""
        ...

    def run_patch(self, code: bytes, address: int, to: int, spare: int = 0) -> bytes | None:
        """What is written over the instructions `code` at address, RUN_SIZE bytes or more, so that
        control goes from the first of them to `to`; None if it cannot be done.  spare: see
        spare()."""
        ...

    def run_patches(
        self, start: U64, at: I64, code: bytes, to: U64, spare: Sequence[int]
    ) -> tuple[Bools, bytes]:
        """run_patch() of many: whether there is one, and the bytes of all, one behind the other.
        code: of all, those of each from `at` on, which has one number more at the end."""
        ...

    def spare(self, instructions: Sequence[Instruction], flows: Sequence[Flow]) -> Sequence[int]:
        """Of a function's instructions in order: the registers that nothing reads from each of
        them on before it writes them, as bits by frame slot.  A jump may need one of them; 0
        everywhere where none does.  flows: of the instructions."""
        ...

    def padding(self, code: bytes) -> int:
        """Bytes of whole instructions at the start of `code` that only fill room: compilers put
        them behind code that does not go on, and decode() may leave them out there."""
        ...

    def leave_patch(self, at: int, to: int) -> bytes:
        """What turns the start of a trampoline at `at` that is a head (Onward) into a jump to its
        site at `to`: no longer than the instruction that is there."""
        ...

    def trap_patch(self, size: int) -> bytes:
        """The bytes, at most `size`, to write over the start of an instruction so that it traps."""
        ...

    def snippet(self, code: bytes, zero: bool = False) -> Snippet | None:
        """Code that LLVM made for a snippet, with what it touches; None where it is not straight,
        writes memory or uses the stack."""
        ...

    def counts_freely(self, sites: Columns, following: Sequence[bytes]) -> Bools:
        """At which sites counting has to save no flags.  following: live bytes after each."""
        ...

    def stub(self, at: int, counter: int, to: int, free: bool) -> bytes | Refused:
        """Code at `at` that adds one to a counter (one of CountBody's offsets), changes nothing
        else, and jumps to `to`.  free: counts_freely() of the place."""
        ...

    def stubs(self, at: int, counters: I64, to: U64, free: Bools) -> tuple[U8, I64] | None:
        """stub() of many, one straight behind the other from `at` on, and the bytes of each; None
        where one cannot be made.  counters: as 64 bits with a sign."""
        ...

    def trampoline(
        self,
        site: Site,
        following: bytes,
        to: int,
        bodies: Sequence[Body],
        rerun_prefix: bytes = b"",
        onward: Onward = UNCHAINED,
    ) -> Relocated | Refused:
        """The whole trampoline at address `to`: run bodies, then the displaced instruction.

        following: live bytes after the instruction, for flag liveness.  rerun_prefix: live bytes
        straight before it that are run again between the two (see rerun_starts()).  onward: where
        control goes on.  Interrupts are off while the code of a CallBody runs; registers and
        flags reach the displaced instruction unchanged.
        """
        ...

    def scan(self, pieces: Sequence[tuple[int, bytes]]) -> Scanned:
        """The instructions of decode() of pieces of code, (address, bytes) each, with what is
        marked of them.  What an instruction's mark says of those behind it is seen in its own
        piece, within FOLLOWING bytes."""
        ...

    def leads(self, columns: Columns) -> Leads:
        """Where control goes from marked instructions; of others that is not said."""
        ...

    def trampoline_sizes(self, batch: Batch) -> I32:
        """The bytes of each trampoline of a batch, wherever in the batch's memory it will lie; -1
        where trampoline() is to be asked."""
        ...

    def trampolines(self, batch: Batch, to: U64, goal: U64) -> Made:
        """The trampolines of a batch, whose sizes are all known: byte for byte what trampoline()
        makes.  to: where each will lie.  goal: where its direct branch is to lead to."""
        ...

    def detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """Hook a C function of the kernel at its first instruction.

        Returns (patch at address, stub at `to`).  The stub calls hook(arg0), a C function
        that returns 0 to go on in the original function, or 1 to return from it at once.
        """
        ...

    def translate_detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """As detour, but the stub replaces the first argument by hook(arg0) and goes on."""
        ...
