"""riscv64 (RV64GC): see the modules of this package; ISA is what kinst.isa.load() gives.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.core import unmarked
from kinst.core.board import Board
from kinst.core.bodies import Body
from kinst.core.columns import I64, U8, U64, Bools, Columns, Scanned
from kinst.core.displaced import UNCHAINED, Onward, OutOfReach, Refused, Relocated
from kinst.core.instruction import Flow, Instruction
from kinst.core.isa import Register
from kinst.core.paging import Paging
from kinst.core.probe import Site
from kinst.isa.riscv64 import board as _board
from kinst.isa.riscv64 import (
    control,
    encode,
    liveness,
    refuse,
    relocate,
    tables,
    targets,
    trampoline,
)
from kinst.isa.riscv64 import decode as decoder
from kinst.isa.riscv64 import detour as detours
from kinst.isa.riscv64 import paging as _paging
from kinst.isa.riscv64 import registers as regs
from kinst.isa.riscv64 import snippets as _snippets


class Riscv64:
    """The Isa protocol (kinst/core/isa.py) for riscv64."""

    name = "riscv64"
    elf_machine = 243  # EM_RISCV
    triple = "riscv64-unknown-none-elf"
    # Without relaxation the assembler resolves calls within the module itself.  Loads of odd
    # addresses are single instructions: where the processor cannot do them its firmware does.
    cpu_features = "+m,+a,+c,-relax,+unaligned-scalar-mem"
    registers: tuple[Register, ...] = regs.REGISTERS
    unavailable_registers: Mapping[str, str] = regs.UNAVAILABLE
    frame_slots = regs.FRAME_SLOTS
    pc_slot = regs.PC_SLOT
    sp_slot = regs.SP_SLOT
    flags_slot = regs.STATUS_SLOT
    breakpoint = encode.C_EBREAK
    convention = "ccc"
    # Constants are made by instructions, not loaded from a section of their own.
    llvm_options: tuple[str, ...] = ("-riscv-max-build-ints-cost=99",)
    shared_counters = True
    records_inline = False
    # RISC-V psABI: a0 to a7; the ninth argument is where the stack pointer points.
    argument_slots = tuple(range(encode.A0, encode.A0 + 8))
    stack_arguments = 0
    dwarf_registers = regs.DWARF
    kept_registers = tuple(f"R_S{n}" for n in range(12))  # psABI, "Integer Register Convention"
    signature_bits = 0
    result_slot = encode.A0
    thunks: tuple[str, ...] = ()
    RUN_SIZE = 8  # auipc and jalr
    RUN_STEP = 4
    needs_spare = True
    timestamp_asm = "llvm.readsteadycounter"  # rdtime, which Linux keeps time by
    paging: Paging = _paging
    board: Board = _board
    snippets = _snippets.REGISTERS

    # Described in the protocol, and where they are.
    decode = staticmethod(decoder.decode)
    flow = staticmethod(control.flow)
    returns_of = staticmethod(control.returns_of)
    detour = staticmethod(detours.detour)
    translate_detour = staticmethod(detours.translate_detour)
    joined = staticmethod(control.joined)
    unsafe = staticmethod(refuse.unsafe)
    hangs_together = staticmethod(refuse.hangs_together)
    jump_tables = staticmethod(tables.jump_tables)
    may_make_tables = staticmethod(unmarked.may_make_tables)
    branches = staticmethod(targets.branches)
    spare = staticmethod(liveness.spare)
    displace = staticmethod(relocate.displace)
    leads = staticmethod(unmarked.leads)
    trampoline_sizes = staticmethod(unmarked.trampoline_sizes)
    trampolines = staticmethod(unmarked.trampolines)
    snippet = staticmethod(_snippets.snippet)
    stub = staticmethod(trampoline.stub)
    counts_freely = staticmethod(unmarked.counts_freely)

    def thunk(self, name: str) -> Flow | None:
        """None: compilers put no thunks in place of jumps on this ISA."""
        return None

    def rerun_starts(self, instructions: Sequence[Instruction]) -> Mapping[int, int]:
        """None need that."""
        return {}

    def unsteppable(self, code: bytes) -> str:
        """None is."""
        return ""

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """jal or c.j; None where `to` is out of their reach of 1 MB or 2 KB."""
        try:
            if size == 2:
                return encode.c_j(to - address)
            return encode.jal(encode.X0, to - address) if size == 4 else None
        except OutOfReach:
            return None

    def is_nop(self, code: bytes) -> bool:
        """addi x0, x0, 0 and c.nop."""
        return code in (encode.NOP, encode.C_NOP)

    def undecoded(self, code: bytes) -> str:
        """The lowest bits do not tell a length, or there are fewer bytes than they tell."""
        return "no instruction begins so, or the function ends inside one"

    def padding(self, code: bytes) -> int:
        """None: what looks like it in front of functions is a tracer's."""
        return 0

    def run_patch(self, code: bytes, address: int, to: int, spare: int = 0) -> bytes | None:
        """auipc and jalr by a register that is dead there, and no-operations up to the end, so that
        who decodes the function finds its instructions behind them."""
        register = liveness.choose(spare)
        if not register:
            return None
        try:
            jump = encode.jump(address, to, register)
        except OutOfReach:
            return None
        return jump + encode.C_NOP * ((len(code) - len(jump)) // len(encode.C_NOP))

    def leave_patch(self, at: int, to: int) -> bytes:
        """A nop: the way back is behind the jump that it takes the place of (trampoline.py)."""
        return encode.NOP

    def trap_patch(self, size: int) -> bytes:
        """c.ebreak or ebreak, as long as the instruction: who decodes a function from its start,
        as the kernel does before it sets a kprobe, must find its instructions behind this one."""
        if size not in (len(encode.C_EBREAK), len(encode.EBREAK)):
            raise ValueError("an instruction has two or four bytes")
        return encode.C_EBREAK if size == len(encode.C_EBREAK) else encode.EBREAK

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
        return trampoline.trampoline(site, to, bodies, onward)


ISA = Riscv64()
