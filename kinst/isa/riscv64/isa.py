"""The instruction set riscv64 (RV64GC), put together from the modules of this folder.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kinst.core.bodies import Body
from kinst.core.displaced import UNCHAINED, Onward, OutOfReach, Refused, Relocated
from kinst.core.isa import Isa
from kinst.core.probe import Site
from kinst.isa.riscv64 import (
    ELF_MACHINE,
    control,
    encode,
    liveness,
    refuse,
    relocate,
    tables,
    targets,
    trampoline,
)
from kinst.isa.riscv64 import board as _board
from kinst.isa.riscv64 import decode as decoder
from kinst.isa.riscv64 import detour as detours
from kinst.isa.riscv64 import paging as _paging
from kinst.isa.riscv64 import registers as regs
from kinst.isa.riscv64 import snippets as _snippets
from kinst.isa.riscv64.symbolic import Riscv64Run


class Riscv64(Isa):
    """The instruction set riscv64; implements Isa (core/isa.py)."""

    name = "riscv64"
    elf_machine = ELF_MACHINE
    registers = regs.REGISTERS
    unavailable_registers = regs.UNAVAILABLE
    pc_slot = regs.PC_SLOT
    sp_slot = regs.SP_SLOT
    breakpoint = encode.C_EBREAK
    argument_slots = regs.NAMED.argument_slots
    # RISC-V psABI: the ninth argument is where the stack pointer points.
    stack_arguments = 0
    result_slot = encode.A0
    link_slot = encode.RA
    exit_slot = regs.EXIT_SLOT
    writable_slots, fixed_slots = regs.WRITABLE, regs.FIXED
    dwarf_registers = regs.DWARF
    kept_registers = tuple(f"R_S{n}" for n in range(12))  # psABI, "Integer Register Convention"
    gdb_registers = regs.GDB_REGISTERS
    vectors = regs.VECTORS
    paging = _paging.PAGING
    board = _board
    plain = asdict(decoder.PLAIN)

    no_trampolines = ""
    triple = "riscv64-unknown-none-elf"
    # Without relaxation the assembler resolves calls within the module itself.  Loads of odd
    # addresses are single instructions: a processor that cannot do them leaves them to firmware.
    cpu_features = "+m,+a,+c,-relax,+unaligned-scalar-mem"
    # Constants are made by instructions, not loaded from a section of their own.
    llvm_options = ("-riscv-max-build-ints-cost=99",)
    timestamp_asm = "llvm.readsteadycounter"  # rdtime, which Linux keeps time by
    counting_changes_flags = False
    RUN_SIZE = 8  # auipc and jalr
    RUN_STEP = 4
    needs_dead_register = True
    snippets = _snippets.REGISTERS

    decode = staticmethod(decoder.decode)
    sizes = staticmethod(decoder.sizes)
    unskippable = staticmethod(decoder.unskippable)
    flow = staticmethod(control.flow)
    returns_of = staticmethod(control.returns_of)
    pair_flow = staticmethod(control.pair_flow)
    unsafe = staticmethod(refuse.unsafe)
    has_sequences = staticmethod(refuse.has_sequences)
    jump_tables = staticmethod(tables.jump_tables)
    symbolic_run = Riscv64Run
    branches = staticmethod(targets.branches)
    dead_registers = staticmethod(liveness.dead_registers)
    displace = staticmethod(relocate.displace)
    snippet = staticmethod(_snippets.snippet)
    stub = staticmethod(trampoline.stub)
    detour = staticmethod(detours.detour)
    translate_detour = staticmethod(detours.translate_detour)

    def is_nop(self, code: bytes) -> bool:
        """Return whether an instruction is addi x0, x0, 0 or c.nop."""
        return code in (encode.NOP, encode.C_NOP)

    def undecoded(self, code: bytes) -> str:
        """Return why decode() finds no instruction: the lowest bits give no length, or the function
        ends inside the instruction."""
        return "no instruction begins so, or the function ends inside one"

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Return a jal (size 4) or c.j (size 2) from address to `to`; None if `to` is out of their
        reach of 1 MB or 2 KB."""
        try:
            if size == 2:
                return encode.c_j(to - address)
            return encode.jal(encode.X0, to - address) if size == 4 else None
        except OutOfReach:
            return None

    def run_patch(self, code: bytes, address: int, to: int, dead: int = 0) -> bytes | None:
        """Return a jump to `to` (auipc and jalr, by a register of `dead`), followed by
        no-operations up to the length of `code`. None if `dead` is empty or `to` is out of reach.

        The no-operations keep the code decodable: the kernel decodes a function from its start
        before it sets a kprobe, and must find the instructions after the patch.
        """
        register = liveness.choose(dead)
        if not register:
            return None
        try:
            jump = encode.jump(address, to, register)
        except OutOfReach:
            return None
        return jump + encode.C_NOP * ((len(code) - len(jump)) // len(encode.C_NOP))

    def leave_patch(self, at: int, to: int) -> bytes:
        """Return a no-operation. Unplanting writes it over the jump at the start of a head, a
        trampoline with Onward.head. The code after that jump leads back to the site
        (trampoline.py), so threads leave the chain there."""
        return encode.NOP

    def trap_patch(self, size: int) -> bytes:
        """Return the breakpoint that is as long as the instruction it replaces: c.ebreak or ebreak.

        The kernel decodes a function from its start before it sets a kprobe, and must find the
        instructions after the breakpoint.

        Args:
            size: bytes of the instruction, 2 or 4.
        """
        if size not in (len(encode.C_EBREAK), len(encode.EBREAK)):
            raise ValueError("an instruction has two or four bytes")
        return encode.C_EBREAK if size == len(encode.C_EBREAK) else encode.EBREAK

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
        return trampoline.trampoline(site, to, bodies, onward)


ISA = Riscv64()
