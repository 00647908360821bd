"""arm64 (AArch64): see the modules of this package; ISA is what kinst.isa.load() gives.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.core import unmarked
from kinst.core.board import Board
from kinst.core.bodies import Body
from kinst.core.columns import I64, NO_COLUMNS, U8, U64, Bools, Columns, Scanned
from kinst.core.displaced import UNCHAINED, Onward, OutOfReach, Refused, Relocated
from kinst.core.instruction import Flow, Instruction
from kinst.core.isa import Register
from kinst.core.paging import Paging
from kinst.core.probe import Site
from kinst.isa.arm64 import board as _board
from kinst.isa.arm64 import control, encode, relocate, sequences, tables, trampoline
from kinst.isa.arm64 import decode as decoder
from kinst.isa.arm64 import detour as detours
from kinst.isa.arm64 import inline as _inline
from kinst.isa.arm64 import paging as _paging
from kinst.isa.arm64 import registers as regs
from kinst.isa.arm64 import snippets as _snippets


class Arm64:
    """The Isa protocol (kinst/core/isa.py) for arm64.

    For kernels that run at EL1, as in kinst's own machine (machine.py): at EL2 (VHE) the
    per-CPU base is in tpidr_el2, and what clauses find by tpidr_el1 is not there.
    """

    name = "arm64"
    elf_machine = 183  # EM_AARCH64
    triple = "aarch64-unknown-none"
    # x18 is the shadow call stack's in kernels that have one.
    cpu_features = "-fp-armv8,-neon,+reserve-x18"
    registers: tuple[Register, ...] = regs.REGISTERS
    unavailable_registers: Mapping[str, str] = regs.UNAVAILABLE
    frame_slots = regs.FRAME_SLOTS
    pc_slot = regs.PC_SLOT
    sp_slot = regs.SP_SLOT
    flags_slot = regs.PSTATE_SLOT
    breakpoint = encode.BREAKPOINT
    convention = "preserve_mostcc"
    llvm_options: tuple[str, ...] = ()
    shared_counters = True
    records_inline = False
    # AAPCS64, 6.4.2: the ninth integer argument is at the stack pointer.
    argument_slots = tuple(range(8))
    stack_arguments = 0
    dwarf_registers = regs.DWARF
    kept_registers = tuple(f"R_X{n}" for n in range(19, 30))  # AAPCS64, 6.1.1
    signature_bits = regs.SIGNATURE
    result_slot = 0
    thunks: tuple[str, ...] = ()
    RUN_SIZE = 0
    RUN_STEP = 0
    needs_spare = False
    timestamp_asm = "%cntvct_el0"
    paging: Paging = _paging
    board: Board = _board
    snippets = _snippets.REGISTERS

    # Described in the protocol, and where they are.
    decode = staticmethod(decoder.decode)
    flow = staticmethod(control.flow)
    rerun_starts = staticmethod(sequences.rerun_starts)
    jump_tables = staticmethod(tables.jump_tables)
    may_make_tables = staticmethod(unmarked.may_make_tables)
    returns_of = staticmethod(control.returns_of)
    unsteppable = staticmethod(sequences.unsteppable)
    displace = staticmethod(relocate.displace)
    leads = staticmethod(unmarked.leads)
    trampoline_sizes = staticmethod(unmarked.trampoline_sizes)
    trampolines = staticmethod(unmarked.trampolines)
    snippet = staticmethod(_snippets.snippet)
    stub = staticmethod(_inline.stub)
    counts_freely = staticmethod(unmarked.counts_freely)
    detour = staticmethod(detours.detour)
    translate_detour = staticmethod(detours.translate_detour)
    unsafe = staticmethod(sequences.unsafe)
    hangs_together = staticmethod(sequences.hangs_together)

    def joined(self, before: Instruction, one: Instruction) -> Flow | None:
        """None: direct branches reach all of the kernel."""
        return None

    def thunk(self, name: str) -> Flow | None:
        """None: compilers return and branch in place."""
        return None

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """One b; None when `to` is more than 128 MB away."""
        if size != encode.SIZE:
            return None
        try:
            return encode.branch(address, to)
        except OutOfReach:
            return None

    def branches(self, code: bytes, address: int) -> tuple[U64, U64]:
        """Not asked for: there are no runs."""
        return NO_COLUMNS.address, NO_COLUMNS.address

    def is_nop(self, code: bytes) -> bool:
        """NOP alone: other hints may have an effect."""
        return code == encode.NOP

    def undecoded(self, code: bytes) -> str:
        """Only an instruction that is cut off is not decoded."""
        return "the function ends inside an instruction"

    def padding(self, code: bytes) -> int:
        """Not asked for."""
        return 0

    def spare(self, instructions: Sequence[Instruction], flows: Sequence[Flow]) -> Sequence[int]:
        """Jumps need none."""
        return [0] * len(instructions)

    def run_patch(self, code: bytes, address: int, to: int, spare: int = 0) -> bytes | None:
        """None is needed: every instruction has room for a jump."""
        return None

    def leave_patch(self, at: int, to: int) -> bytes:
        """One jump, as the way back is."""
        return encode.branch(at, to)

    def trap_patch(self, size: int) -> bytes:
        """One brk, with a number that the kernel gives no meaning to."""
        if size < encode.SIZE:
            raise ValueError("an instruction has four bytes")
        return encode.BREAKPOINT

    def jump_patches(self, columns: Columns, to: U64) -> tuple[Bools, U8]:
        """See unmarked.py."""
        return unmarked.jump_patches_with(self.jump_patch, columns, to)

    def run_patches(
        self, start: U64, at: I64, code: bytes, to: U64, spare: Sequence[int]
    ) -> tuple[Bools, bytes]:
        """See unmarked.py."""
        return unmarked.run_patches_with(self.run_patch, start, at, code, to, spare)

    def stubs(self, at: int, counters: I64, to: U64, free: Bools) -> tuple[U8, I64] | None:
        """See unmarked.py."""
        return unmarked.stubs_with(self.stub, at, counters, to, free)

    def scan(self, pieces: Sequence[tuple[int, bytes]]) -> Scanned:
        """See unmarked.py."""
        return unmarked.scan_sizes(decoder.sizes_in, pieces)

    def trampoline(
        self,
        site: Site,
        following: bytes,
        to: int,
        bodies: Sequence[Body],
        rerun_prefix: bytes = b"",
        onward: Onward = UNCHAINED,
    ) -> Relocated | Refused:
        """The whole trampoline at address `to` (trampoline.py)."""
        return trampoline.trampoline(site, to, bodies, rerun_prefix, onward)


ISA = Arm64()
