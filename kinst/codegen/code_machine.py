"""The machine that generated code runs on: a CPU of the traced kernel, or kinst's own process.

Tested by tests/codegen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.errors import KinstError
from kinst.core.isa import Isa, Register
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


@dataclass(frozen=True, slots=True)
class CodeMachine:
    """base: address of scratch as this machine sees it.

    host: the code runs in kinst's process. Then the CPU slot is scratch.cpus, and built-ins come
    from the CONTEXT_* area behind the frame; otherwise the slot is the CPU's number, and built-ins
    come from `builtins`. nofault_read: address of a C function (dst, src, size) -> i64, 0 when all
    bytes were read. convention: LLVM calling convention of entries and of cold helpers.
    timestamp_asm, timestamp_constraints: inline assembly that reads the cycle counter, or the name
    of an LLVM intrinsic that does (llvm.readcyclecounter), or a register (%cntvct_el0); llvmlite
    cannot reach LLVM's assembly parsers for ISAs other than the host's, but it can reach the
    intrinsics. trap_pc_offset, trap_pc_delta, user, paths: as in Facts; on the host, user's
    functions are native. llvm_options, signature_bits: as in Isa. parents: offsets in a task of its
    parent's address and of its process id; (0, 0) where they are unknown. symbols: the running
    address of each (module, name) that the program uses. reserves: records are written without a
    call, too (STATE_RESERVED). preemption, saved_registers: as in Facts. samples: clauses run in
    samples of CPUs, too, whose descriptors have no program counter.
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
        """Whether code for a CPU of the traced kernel can read the time."""
        return self.clock is not None and bool(self.timestamp_asm)

    def address(self, offset: int) -> int:
        """The address of an offset in scratch."""
        return self.base + offset


def parents_of(facts: Facts | None) -> tuple[int, int]:
    """CodeMachine.parents, taken from the way ppid is read."""
    access = facts.builtins.get("ppid") if facts else None
    if access is None or len(access.offsets) != 2:
        return 0, 0
    return access.offsets[0], access.offsets[1]


def target_machine(
    isa: Isa, facts: Facts, scratch: Scratch, dialect: Dialect = UNKNOWN
) -> CodeMachine:
    """A CPU of the traced kernel.  dialect: its system's.

    Raises KinstError when the system does not know where the CPU's number is, or no read function
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
    """kinst's own process, for frames of `isa` and values of a system with this dialect.

    base: address of the scratch mapping here.  nofault_read: native address of a callback that
    reads the target's memory.  triple: of this process (llvm_process_triple()).
    """
    return CodeMachine(
        "host", triple, "", True, base, scratch, nofault_read, isa.registers, isa.frame_slots,
        isa.sp_slot, "ccc", user=user, parents=parents, user_state=user_state,
        interrupt_masks=interrupt_masks, dialect=dialect,
    )  # fmt: skip
