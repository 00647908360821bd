"""amd64 (x86-64): see the modules of this package; ISA is what kinst.isa.load() gives.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.core.board import Board
from kinst.core.bodies import Body
from kinst.core.displaced import UNCHAINED, Onward, OutOfReach, Refused, Relocated
from kinst.core.instruction import Flow, Instruction
from kinst.core.isa import Register
from kinst.core.paging import Paging
from kinst.core.probe import Site
from kinst.isa.amd64 import batch, control, encode, marks, relocate, tables, targets, trampoline
from kinst.isa.amd64 import board as _board
from kinst.isa.amd64 import decode as decoder
from kinst.isa.amd64 import detour as detours
from kinst.isa.amd64 import inline as _inline
from kinst.isa.amd64 import paging as _paging
from kinst.isa.amd64 import registers as regs
from kinst.isa.amd64 import snippets as _snippets

# LLVM's generic x86-64 has these; kernel code must not touch the registers behind them.
_LLVM_OFF = (
    "x87", "mmx", "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "sse4a", "avx", "avx2",
    "avx512f", "aes", "pclmul", "fma", "f16c",
)  # fmt: skip


class Amd64:
    """The Isa protocol (kinst/core/isa.py) for amd64."""

    name = "amd64"
    elf_machine = 62  # EM_X86_64
    triple = "x86_64-unknown-none"
    cpu_features = ",".join([*(f"-{feature}" for feature in _LLVM_OFF), "+soft-float"])
    registers: tuple[Register, ...] = regs.REGISTERS
    unavailable_registers: Mapping[str, str] = regs.UNAVAILABLE
    frame_slots = regs.FRAME_SLOTS
    pc_slot = regs.PC_SLOT
    sp_slot = regs.SP_SLOT
    flags_slot = regs.FLAGS_SLOT
    breakpoint = encode.INT3
    convention = "preserve_mostcc"
    llvm_options: tuple[str, ...] = ()
    shared_counters = False
    records_inline = True
    # System V ABI, 3.2.3: integer arguments; the first one on the stack is above the return
    # address at a function's first instruction.
    argument_slots = tuple(regs.SLOT[name] for name in ("rdi", "rsi", "rdx", "rcx", "r8", "r9"))
    stack_arguments = 8
    dwarf_registers = regs.DWARF
    # System V ABI, 3.2.1, "Registers and the Stack Frame".
    kept_registers = ("R_RBX", "R_RBP", "R_R12", "R_R13", "R_R14", "R_R15")
    signature_bits = 0
    result_slot = regs.SLOT["rax"]
    thunks = control.THUNKS
    RUN_SIZE = encode.JUMP_SIZE
    RUN_STEP = 0
    needs_spare = False
    timestamp_asm = "rdtsc\n\tshlq $$32, %rdx\n\torq %rdx, %rax"
    timestamp_constraints = "={rax},~{rdx},~{flags}"
    paging: Paging = _paging
    board: Board = _board
    snippets = _snippets.REGISTERS

    # Described in the protocol, and where they are.
    decode = staticmethod(decoder.decode)
    flow = staticmethod(control.flow)
    returns_of = staticmethod(control.returns_of)
    detour = staticmethod(detours.detour)
    translate_detour = staticmethod(detours.translate_detour)
    thunk = staticmethod(control.thunk)
    jump_tables = staticmethod(tables.jump_tables)
    may_make_tables = staticmethod(tables.may_make_tables)
    displace = staticmethod(relocate.displace)
    scan = staticmethod(marks.scan)
    leads = staticmethod(marks.leads)
    trampoline_sizes = staticmethod(batch.trampoline_sizes)
    trampolines = staticmethod(batch.trampolines)
    jump_patches = staticmethod(batch.jump_patches)
    run_patches = staticmethod(batch.run_patches)
    stubs = staticmethod(batch.stubs)
    branches = staticmethod(targets.branches)
    snippet = staticmethod(_snippets.snippet)
    padding = staticmethod(decoder.padding)
    undecoded = staticmethod(decoder.undecoded)
    is_nop = staticmethod(decoder.is_nop)
    stub = staticmethod(_inline.stub)
    counts_freely = staticmethod(marks.counts_freely)

    def joined(self, before: Instruction, one: Instruction) -> Flow | None:
        """None: direct branches reach all of the kernel."""
        return None

    def hangs_together(self, code: bytes) -> bool:
        """Never; see unsafe()."""
        return False

    def unsafe(self, instructions: Sequence[Instruction]) -> Mapping[int, str]:
        """None: what one instruction of amd64 does never depends on those around it, but for
        sti's shadow, which trampoline() looks at."""
        return {}

    def rerun_starts(self, instructions: Sequence[Instruction]) -> Mapping[int, int]:
        """None need that."""
        return {}

    def unsteppable(self, code: bytes) -> str:
        """None is."""
        return ""

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """A jmp rel32 and, up to `size`, breakpoints that are never reached; None when size is
        below 5 or `to` is out of reach."""
        if size < encode.JUMP_SIZE:
            return None
        try:
            jump = encode.jump(address, to)
        except OutOfReach:
            return None
        return jump + encode.INT3 * (size - len(jump))

    def spare(self, instructions: Sequence[Instruction], flows: Sequence[Flow]) -> Sequence[int]:
        """Jumps need none."""
        return [0] * len(instructions)

    def run_patch(self, code: bytes, address: int, to: int, spare: int = 0) -> bytes | None:
        """The same jump."""
        return self.jump_patch(len(code), address, to)

    def leave_patch(self, at: int, to: int) -> bytes:
        """One jump, as the way back is."""
        return encode.jump(at, to)

    def trap_patch(self, size: int) -> bytes:
        """One int3: the processor reads no further, and a single byte is written atomically."""
        if size < 1:
            raise ValueError("an instruction has at least one byte")
        return encode.INT3

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
        return trampoline.trampoline(site, following, to, bodies, onward)


ISA = Amd64()
