"""The machine that generated code runs on: a CPU of the traced kernel, or kinst's own process.

Tested by tests/codegen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.errors import KinstError
from kinst.core.layout import Scratch
from kinst.core.system import (
    Access,
    Clock,
    Facts,
    Paths,
    PerCpu,
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
    """A machine that code is generated for.

    Attributes:
        name: of the machine, for messages.
        triple: LLVM's target triple.
        features: LLVM's target features.
        host: whether the code runs in kinst's process.  Then the CPU slot is scratch.cpus, and
            built-ins come from the CONTEXT_* area after the frame; otherwise the slot is the CPU's
            number, and built-ins come from `builtins`.
        base: address of scratch as this machine sees it.
        scratch: layout of scratch memory.
        nofault_read: address of a C function (dst, src, size) -> i64, 0 when all bytes were read.
        registers: registers of a frame.
        frame_slots: slots of a frame.
        sp_slot: slot of the stack pointer.
        convention: LLVM calling convention of entries and of cold helpers.
        per_cpu: how code reaches the CPU's own data.
        builtins: how the target's built-in variables are read.
        timestamp_asm: reads the cycle counter: inline assembly, the name of an LLVM intrinsic
            (llvm.readcyclecounter), or a register (%cntvct_el0).  llvmlite cannot reach LLVM's
            assembly parsers for ISAs other than the host's, but it can reach the intrinsics.
        timestamp_constraints: constraints of that inline assembly.
        clock: converts cycles to ns.
        trap_pc_offset: as in Facts.
        trap_pc_delta: as in Facts.
        thread_time: as in Facts.
        unwinder: as in Facts.
        llvm_options: as in Isa.
        user: as in Facts; on the host, its functions are native.
        parents: offsets in a task of its parent's address and of its process id; (0, 0) if they
            are unknown.
        symbols: running address of each (module, name) that the program uses.
        paths: as in Facts.
        user_state: as in Facts.
        signature_bits: as in Isa.
        reserves: whether trampolines write records without a call, too (STATE_RESERVED).
        preemption: as in Facts.
        saved_registers: as in Facts.
        samples: whether clauses also run in samples of CPUs, whose descriptors have no program
            counter.
        interrupt_masks: as in Facts.
        pin: as in Facts.
        dialect: how the system encodes what D shows.
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
    # As in Facts.
    interrupt_masks: tuple[int, ...] = ()
    pin: Access | None = None
    # How the system encodes what D shows.
    dialect: Dialect = UNKNOWN

    @property
    def keeps_time(self) -> bool:
        """Return whether code for a CPU of the traced kernel can read the time."""
        return self.clock is not None and bool(self.timestamp_asm)

    def address(self, offset: int) -> int:
        """Return the address of an offset in scratch."""
        return self.base + offset


def parents_of(facts: Facts | None) -> tuple[int, int]:
    """Return CodeMachine.parents, from the way ppid is read."""
    access = facts.builtins.get("ppid") if facts else None
    if access is None or len(access.offsets) != 2:
        return 0, 0
    return access.offsets[0], access.offsets[1]


def target_machine(
    isa: Isa, facts: Facts, scratch: Scratch, dialect: Dialect = UNKNOWN
) -> CodeMachine:
    """Describe a CPU of the traced kernel.

    Raises KinstError if the system does not know where the CPU's number is, or no read function
    that cannot fault: without them no clause can run in the target.
    """
    if "cpu" not in facts.builtins:
        raise KinstError(
            f"the CPU number of this kernel ({facts.os} {facts.release}) cannot be found",
            "probes can only be stop-planted",
        )
    if not facts.nofault_read:
        raise KinstError(
            f"{facts.os} {facts.release} has no known read function that cannot fault",
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
    )  # fmt: skip


def host_machine(
    isa: Isa,
    scratch: Scratch,
    base: int,
    nofault_read: int,
    triple: str,
    user: UserMemory | None = None,
    parents: tuple[int, int] = (0, 0),
    user_state: UserState | None = None,
    interrupt_masks: tuple[int, ...] = (),
    dialect: Dialect = UNKNOWN,
) -> CodeMachine:
    """Describe kinst's own process, for frames of `isa`.

    Args:
        isa: of the traced kernel.
        scratch: layout of scratch memory.
        base: address of the scratch mapping here.
        nofault_read: native address of a callback that reads the target's memory.
        triple: of this process (host_triple()).
        user: native functions that read and write user memory.
        parents: as CodeMachine's.
        user_state: as in Facts.
        interrupt_masks: as in Facts.
        dialect: the system's.
    """
    return CodeMachine(
        "host", triple, "", True, base, scratch, nofault_read, isa.registers, isa.frame_slots,
        isa.sp_slot, "ccc", user=user, parents=parents, user_state=user_state,
        interrupt_masks=interrupt_masks, dialect=dialect,
    )  # fmt: skip
