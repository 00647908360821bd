"""The instruction set arm64 (AArch64), put together from the modules of this folder.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kinst.core.bodies import Body
from kinst.core.displaced import UNCHAINED, Onward, OutOfReach, Refused, Relocated
from kinst.core.isa import Isa
from kinst.core.probe import Site
from kinst.isa.arm64 import ELF_MACHINE, control, encode, relocate, sequences, tables, trampoline
from kinst.isa.arm64 import board as _board
from kinst.isa.arm64 import decode as decoder
from kinst.isa.arm64 import detour as detours
from kinst.isa.arm64 import inline as _inline
from kinst.isa.arm64 import paging as _paging
from kinst.isa.arm64 import registers as regs
from kinst.isa.arm64 import snippets as _snippets
from kinst.isa.arm64.symbolic import Arm64Run


class Arm64(Isa):
    """The instruction set arm64; implements Isa (core/isa.py).

    It is for kernels at EL1: at EL2 (VHE) the per-CPU base is in tpidr_el2, and clauses that read
    tpidr_el1 would not find it.
    """

    name = "arm64"
    elf_machine = ELF_MACHINE
    registers = regs.REGISTERS
    pc_slot = regs.PC_SLOT
    sp_slot = regs.SP_SLOT
    breakpoint = encode.BREAKPOINT
    argument_slots = regs.NAMED.argument_slots
    # AAPCS64, 6.4.2: the ninth integer argument is at the stack pointer.
    stack_arguments = 0
    result_slot = 0
    link_slot = encode.LR
    exit_slot = regs.EXIT_SLOT
    writable_slots, fixed_slots = regs.WRITABLE, regs.FIXED
    dwarf_registers = regs.DWARF
    kept_registers = tuple(f"R_X{n}" for n in range(19, 30))  # AAPCS64, 6.1.1
    signature_bits = regs.SIGNATURE
    gdb_registers = regs.GDB_REGISTERS
    vectors = regs.VECTORS
    paging = _paging.PAGING
    board = _board
    plain = asdict(decoder.PLAIN)

    no_trampolines = ""
    triple = "aarch64-unknown-none"
    # x18 is the shadow call stack's in kernels that have one.
    cpu_features = "-fp-armv8,-neon,+reserve-x18"
    convention = "preserve_mostcc"
    timestamp_asm = "%cntvct_el0"
    counting_changes_flags = False
    snippets = _snippets.REGISTERS

    decode = staticmethod(decoder.decode)
    sizes = staticmethod(decoder.sizes)
    unskippable = staticmethod(decoder.unskippable)
    flow = staticmethod(control.flow)
    returns_of = staticmethod(control.returns_of)
    unsafe = staticmethod(sequences.unsafe)
    has_sequences = staticmethod(sequences.has_sequences)
    rerun_starts = staticmethod(sequences.rerun_starts)
    unsteppable = staticmethod(sequences.unsteppable)
    jump_tables = staticmethod(tables.jump_tables)
    symbolic_run = Arm64Run
    displace = staticmethod(relocate.displace)
    snippet = staticmethod(_snippets.snippet)
    stub = staticmethod(_inline.stub)
    detour = staticmethod(detours.detour)
    translate_detour = staticmethod(detours.translate_detour)

    def is_nop(self, code: bytes) -> bool:
        """Return whether an instruction is NOP; other hints may have an effect."""
        return code == encode.NOP

    def undecoded(self, code: bytes) -> str:
        """Return why decode() finds no instruction in `code`: on arm64 the only reason is that the
        function ends inside the instruction."""
        return "the function ends inside an instruction"

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Return a branch (b) from `address` to `to`; None if `to` is more than 128 MB away, or if
        `size` is not 4, the size of every instruction."""
        if size != encode.SIZE:
            return None
        try:
            return encode.branch(address, to)
        except OutOfReach:
            return None

    def leave_patch(self, at: int, to: int) -> bytes:
        """Return a jump from the address `at`, where a site's trampoline starts, to the site at
        `to`. Unplanting writes the jump over the start of the trampoline, so that threads leave the
        chain there."""
        return encode.branch(at, to)

    def trampoline(
        self,
        site: Site,
        following: bytes,
        to: int,
        bodies: Sequence[Body],
        rerun_prefix: bytes = b"",
        onward: Onward = UNCHAINED,
    ) -> Relocated | Refused:
        """Return a site's whole trampoline at the address `to`, or why there can be none
        (trampoline.py)."""
        return trampoline.trampoline(site, to, bodies, rerun_prefix, onward)


ISA = Arm64()
