"""Description of the machine that generated code runs on: a CPU of the traced kernel, or kinst's
own process.

Tested by tests/codegen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from kinst.core.dataclass import dataclass
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.errors import KinstError
from kinst.core.layout import Scratch
from kinst.core.system import (
    Access,
    Clock,
    Facts,
    Paths,
    PerCpu,
    Signals,
    ThreadTime,
    Unwinder,
    UserMemory,
    UserState,
)

if TYPE_CHECKING:
    from kinst.core.isa import Isa
    from kinst.core.registers import Register


@dataclass(frozen=True, slots=True)
class CodeMachine:
    """The machine that code is generated for: a CPU of the traced kernel, or kinst's own process.

    Attributes:
        name: name of the machine, for messages.
        triple: LLVM's target triple. If `host` is True, it is "" until the code is compiled.
        features: LLVM's target features.
        host: whether the code runs in kinst's own process. Such code uses the host's slot in
            scratch (index scratch.cpus), and reads built-ins from the CONTEXT_* words after the
            frame. Other code uses the slot of the CPU that it runs on, and reads built-ins as
            `builtins` says.
        base: address of scratch, as the code sees it: in the traced kernel's address space or, if
            `host` is True, in that of kinst's process.
        scratch: layout of scratch memory.
        nofault_read: address of a C function (dst, src, size) -> i64 that copies memory and returns
            0 if it could read all bytes.
        nofault_write: address of a C function (dst, src, size) -> i64 that writes memory of the
            traced kernel and returns 0 if it could write all bytes; 0 if clauses may write only
            their own memory and D variables.
        panic: address of the kernel's function (text) that ends the kernel; 0 if there is none.
        signals: how code sends signals; None if that is not known.
        registers: the registers that a frame holds.
        frame_slots: number of 8-byte slots of a frame.
        sp_slot: the frame slot of the stack pointer.
        result_slot: the frame slot of the register with a C function's result.
        exit_slot: the frame slot in which clauses store where control goes after them (Exit of
            core/bodies.py).
        convention: LLVM calling convention of entry functions and of the helper functions that
            they call.
        per_cpu: how code reads this CPU's per-CPU data.
        builtins: how code reads each built-in variable of D, by name.
        timestamp_asm: how code reads the cycle counter: inline assembly, the name of an LLVM
            intrinsic (llvm.readcyclecounter), or a register (%cntvct_el0). llvmlite has LLVM's
            assembly parser only for the host's ISA, so code for other ISAs cannot use inline
            assembly.
        timestamp_constraints: constraints of the inline assembly in timestamp_asm.
        clock: converts cycles to ns; None if the kernel's clock is not known.
        trap_pc_offset: offset of the program counter in the registers that the kernel saves at a
            breakpoint.
        trap_pc_delta: the saved program counter minus the breakpoint's address.
        thread_time: how code computes vtimestamp; None if that is not known.
        unwinder: the kernel's function that unwinds stacks; None if the kernel has no such function
            that clauses can call.
        llvm_options: options of LLVM's command line.
        user: functions that read and write the memory of the current process; None if no such
            functions are known. On the host, they are native code of kinst's process.
        parents: two offsets in the kernel's task structure, for ppid: the offset of the pointer to
            the parent's task, and the offset of the process id. (0, 0) if they are not known.
        symbols: address of each (module, name) that the program uses, in the running kernel.
        paths: the system's code generator for file paths; None if the kernel's structures are not
            known.
        user_state: how code finds the user-mode registers of the current thread; None if that is
            not known.
        signature_bits: mask of the bits of a kernel return address that may hold its signature
            (pointer authentication).
        reserves: whether trampolines of the program write some records without a call. If so,
            clauses reserve the bytes of their records in STATE_RESERVED, as these trampolines do.
        preemption: when a thread that runs in the kernel may lose its CPU to another thread. None
            means at any time, and 0 means never. Any other number is the address of a u32 in the
            kernel: the thread keeps its CPU while the u32 is 0 or 1.
        saved_registers: (D name, offset) of each register that the kernel saves when a CPU is
            interrupted. The offset is from the start of the saved registers.
        samples: whether clauses also run when profile-N samples a CPU. If so, code does not read
            the program counter from the site descriptor: a sample has no site.
        interrupt_masks: for each level of interrupts, a mask of bits of builtins["interrupt"]. If
            any of these bits is set, the CPU handles an interrupt of that level.
        pin: how code finds a per-CPU counter of the kernel. While the counter is raised, the
            current thread stays on its CPU. None if the kernel has no such counter.
        dialect: how the system encodes errno, devices, sockets and the like.
        saved_code: folder of machine code in the cache; None to keep no code there.
    """

    name: str
    triple: str
    features: str
    host: bool
    base: int
    scratch: Scratch
    nofault_read: int
    registers: tuple[Register, ...]
    frame_slots: int
    sp_slot: int
    convention: str
    per_cpu: PerCpu | None = None
    builtins: Mapping[str, Access] = field(default_factory=dict)
    timestamp_asm: str = ""
    timestamp_constraints: str = "=r"
    clock: Clock | None = None
    trap_pc_offset: int = 0
    trap_pc_delta: int = 0
    thread_time: ThreadTime | None = None
    unwinder: Unwinder | None = None
    llvm_options: tuple[str, ...] = ()
    user: UserMemory | None = None
    parents: tuple[int, int] = (0, 0)
    symbols: Mapping[tuple[str, str], int] = field(default_factory=dict)
    paths: Paths | None = None
    user_state: UserState | None = None
    signature_bits: int = 0
    reserves: bool = False
    preemption: int | None = None
    saved_registers: tuple[tuple[str, int], ...] = ()
    samples: bool = False
    interrupt_masks: tuple[int, ...] = ()
    pin: Access | None = None
    dialect: Dialect = UNKNOWN
    saved_code: Path | None = None
    result_slot: int = -1
    exit_slot: int = -1
    nofault_write: int = 0
    panic: int = 0
    signals: Signals | None = None

    @property
    def callbacks(self) -> tuple[int, ...]:
        """Addresses of the functions in kinst's own process that code on the host calls."""
        user = () if self.user is None else (self.user.read, self.user.write)
        return tuple(filter(None, (self.nofault_read, self.nofault_write, *user)))

    @property
    def keeps_time(self) -> bool:
        """Whether code on a CPU of the traced kernel can read the time; always False on the
        host.
        """
        return self.clock is not None and bool(self.timestamp_asm)

    def address(self, offset: int) -> int:
        """Return the address of the byte at this offset in scratch, as code for this machine sees
        it.
        """
        return self.base + offset


def parents_of(facts: Facts | None) -> tuple[int, int]:
    """Return the two offsets in the kernel's task structure by which ppid is read: the offset of
    the pointer to the parent's task, and the offset of the process id. (0, 0) if they are not
    known.

    Args:
        facts: what is known of the traced kernel; None if nothing is known of it.
    """
    access = facts.builtins.get("ppid") if facts else None
    if access is None or len(access.offsets) != 2:
        return 0, 0
    return access.offsets[0], access.offsets[1]


def target_machine(
    isa: Isa, facts: Facts, scratch: Scratch, dialect: Dialect = UNKNOWN
) -> CodeMachine:
    """Describe a CPU of the traced kernel as a machine to generate code for.

    Raises KinstError if the system cannot supply the CPU's number or a read function that cannot
    fault: no clause can run in the target without them.
    """
    if "cpu" not in facts.builtins and not facts.only_counts:
        raise KinstError(
            f"kinst does not know where {facts.os} {facts.release} keeps the number of a CPU",
            "probes can only be stop-planted",
        )
    if not facts.nofault_read and not facts.only_counts:
        raise KinstError(
            f"kinst knows no function of {facts.os} {facts.release} that reads memory without"
            " faulting",
            "probes can only be stop-planted",
        )
    return CodeMachine(
        f"{isa.name} target", isa.triple, isa.cpu_features, False, scratch.address, scratch,
        facts.nofault_read, isa.registers, isa.frame_slots, isa.sp_slot, isa.convention,
        facts.per_cpu, facts.builtins, isa.timestamp_asm,
        isa.timestamp_constraints, facts.clock and facts.clock.from_zero(),
        facts.trap_pc_offset, facts.trap_pc_delta, facts.thread_time,
        facts.unwinder, isa.llvm_options, facts.user, parents_of(facts), paths=facts.paths,
        user_state=facts.user_state, signature_bits=isa.signature_bits,
        preemption=facts.preemption, saved_registers=facts.saved_registers,
        interrupt_masks=facts.interrupt_masks, pin=facts.pin, dialect=dialect,
        result_slot=isa.result_slot, exit_slot=isa.exit_slot, panic=facts.panic,
        signals=facts.signals,
    )  # fmt: skip


def host_machine(
    isa: Isa,
    scratch: Scratch,
    base: int,
    nofault_read: int,
    user: UserMemory | None = None,
    parents: tuple[int, int] = (0, 0),
    user_state: UserState | None = None,
    interrupt_masks: tuple[int, ...] = (),
    dialect: Dialect = UNKNOWN,
) -> CodeMachine:
    """Describe kinst's own process as a machine to generate code for.

    Args:
        isa: the traced kernel's ISA, which defines the frames of saved registers.
        scratch: layout of scratch memory.
        base: address of scratch in kinst's process.
        nofault_read: native address of a callback that reads the target's memory.
        user: native functions that read and write user memory.
        parents: two offsets in the kernel's task structure: the offset of the pointer to the
            parent's task, and the offset of the process id; (0, 0) if they are not known.
        user_state: how code finds the user-mode registers of the current thread; None if that is
            not known.
        interrupt_masks: for each level of interrupts, a mask of bits of the word
            builtins["interrupt"].
        dialect: the dialect of the traced kernel's system.
    """
    return CodeMachine(
        "host", "", "", True, base, scratch, nofault_read, isa.registers, isa.frame_slots,
        isa.sp_slot, "ccc", user=user, parents=parents, user_state=user_state,
        interrupt_masks=interrupt_masks, dialect=dialect, result_slot=isa.result_slot,
        exit_slot=isa.exit_slot,
    )  # fmt: skip
