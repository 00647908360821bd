"""The instruction set amd64 (x86-64), put together from the modules of this folder.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kinst.core.bodies import Body
from kinst.core.columns import I32, I64, U8, U64, Bools, MadeTrampolines, TrampolineBatch
from kinst.core.displaced import UNCHAINED, Onward, OutOfReach, Refused, Relocated
from kinst.core.instruction import Flow
from kinst.core.isa import Isa
from kinst.core.probe import Site
from kinst.isa.amd64 import (
    ELF_MACHINE,
    batch,
    call_arguments,
    control,
    encode,
    marks,
    relocate,
    tables,
    targets,
    trampoline,
)
from kinst.isa.amd64 import board as _board
from kinst.isa.amd64 import decode as decoder
from kinst.isa.amd64 import detour as detours
from kinst.isa.amd64 import inline as _inline
from kinst.isa.amd64 import paging as _paging
from kinst.isa.amd64 import registers as regs
from kinst.isa.amd64 import snippets as _snippets

# LLVM features to turn off: kernel code must not use their registers.
_LLVM_OFF = (
    "x87", "mmx", "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "sse4a", "avx", "avx2",
    "avx512f", "aes", "pclmul", "fma", "f16c",
)  # fmt: skip


_SYSCALL = b"\x0f\x05"


class Amd64(Isa):
    """The instruction set amd64; implements Isa (core/isa.py).

    The effect of an instruction does not depend on the instructions around it, so unsafe() and
    rerun_starts() find nothing. The one exception is sti: interrupts stay off during the
    instruction after it. trampoline() refuses an sti if the instruction after it depends on that
    (shadow_refusal() in refuse.py).
    """

    name = "amd64"
    elf_machine = ELF_MACHINE
    registers = regs.REGISTERS
    unavailable_registers = regs.UNAVAILABLE
    pc_slot = regs.PC_SLOT
    sp_slot = regs.SP_SLOT
    breakpoint = encode.INT3
    argument_slots = regs.NAMED.argument_slots
    # System V ABI, 3.2.3: the first argument on the stack is above the return address at a
    # function's first instruction.
    stack_arguments = 8
    result_slot = regs.SLOT["rax"]
    exit_slot = regs.EXIT_SLOT
    writable_slots, fixed_slots = regs.WRITABLE, regs.FIXED
    dwarf_registers = regs.DWARF
    # System V ABI, 3.2.1, "Registers and the Stack Frame".
    kept_registers = ("R_RBX", "R_RBP", "R_R12", "R_R13", "R_R14", "R_R15")
    thunks = control.THUNKS
    gdb_registers = regs.GDB_REGISTERS
    paging = _paging.PAGING
    board = _board
    plain = asdict(decoder.PLAIN)

    no_trampolines = ""
    triple = "x86_64-unknown-none"
    cpu_features = ",".join([*(f"-{feature}" for feature in _LLVM_OFF), "+soft-float"])
    convention = "preserve_mostcc"
    timestamp_asm = "rdtsc\n\tshlq $$32, %rdx\n\torq %rdx, %rax"
    timestamp_constraints = "={rax},~{rdx},~{flags}"
    shared_counters = False
    records_inline = True
    RUN_SIZE = encode.JUMP_SIZE
    snippets = _snippets.REGISTERS

    decode = staticmethod(decoder.decode)
    undecoded = staticmethod(decoder.undecoded)
    is_nop = staticmethod(decoder.is_nop)
    unskippable = staticmethod(decoder.unskippable)
    padding = staticmethod(decoder.padding)
    flow = staticmethod(control.flow)
    guarded_call = staticmethod(call_arguments.guarded_call)
    returns_of = staticmethod(control.returns_of)
    thunk = staticmethod(control.thunk)
    jump_tables = staticmethod(tables.jump_tables)
    table_starts = staticmethod(tables.table_starts)
    branches = staticmethod(targets.branches)
    displace = staticmethod(relocate.displace)
    snippet = staticmethod(_snippets.snippet)
    stub = staticmethod(_inline.stub)
    detour = staticmethod(detours.detour)
    translate_detour = staticmethod(detours.translate_detour)

    # Methods for many instructions at once.
    scan = staticmethod(marks.scan)
    leads = staticmethod(marks.leads)
    may_make_tables = staticmethod(tables.may_make_tables)
    counts_freely = staticmethod(marks.counts_freely)
    jump_patches = staticmethod(batch.jump_patches)
    run_patches = staticmethod(batch.run_patches)
    stubs = staticmethod(batch.stubs)
    trampoline_sizes = staticmethod(batch.trampoline_sizes)
    trampolines = staticmethod(batch.trampolines)

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Return a patch of `size` bytes: a jmp rel32 from `address` to `to`, then breakpoints,
        which are never executed. None if `size` is less than 5 or `to` is out of reach."""
        if size < encode.JUMP_SIZE:
            return None
        try:
            jump = encode.jump(address, to)
        except OutOfReach:
            return None
        return jump + encode.INT3 * (size - len(jump))

    def run_patch(self, code: bytes, address: int, to: int, dead: int = 0) -> bytes | None:
        """Return a patch as long as the instructions `code` at `address`: a jmp rel32 to `to`, then
        breakpoints. None if `to` is out of reach. The jump needs no register, so `dead` is not
        used."""
        return self.jump_patch(len(code), address, to)

    def leave_patch(self, at: int, to: int) -> bytes:
        """Return a jump from the address `at`, where a site's trampoline starts, to the site at
        `to`. Unplanting writes the jump over the start of the trampoline, so that threads leave the
        chain there."""
        return encode.jump(at, to)

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
        return trampoline.trampoline(site, following, to, bodies, onward)


class ProgramAmd64(Amd64):
    """The instruction set amd64 as user programs use it: they keep data below the stack pointer
    (the red zone), and make system calls. Trampolines only count."""

    def flow(self, code: bytes, address: int) -> Flow:
        """Return where control goes from an instruction. After a system call, control goes to the
        next instruction, as after a call."""
        return control.CALL if code == _SYSCALL else control.flow(code, address)

    def displace(  # type: ignore[override]
        self, code: bytes, address: int, to: int, onward: Onward = UNCHAINED
    ) -> Relocated | Refused:
        return relocate.displace(code, address, to, onward, user=True)

    def trampoline(
        self,
        site: Site,
        following: bytes,
        to: int,
        bodies: Sequence[Body],
        rerun_prefix: bytes = b"",
        onward: Onward = UNCHAINED,
    ) -> Relocated | Refused:
        return trampoline.trampoline(site, following, to, bodies, onward, user=True)

    def stub(  # type: ignore[override]
        self, at: int, counter: int, to: int, free: bool
    ) -> bytes | Refused:
        return _inline.stub(at, counter, to, free, red_zone=True)

    def stubs(  # type: ignore[override]
        self, at: int, counters: I64, to: U64, free: Bools
    ) -> tuple[U8, I64] | None:
        return batch.stubs(at, counters, to, free, red_zone=True)

    def trampoline_sizes(self, batch_: TrampolineBatch) -> I32:  # type: ignore[override]
        return batch.trampoline_sizes(batch_, red_zone=True)

    def trampolines(  # type: ignore[override]
        self, batch_: TrampolineBatch, to: U64, target: U64
    ) -> MadeTrampolines:
        return batch.trampolines(batch_, to, target, red_zone=True)


ISA = Amd64()
ISA.programs = ProgramAmd64()
