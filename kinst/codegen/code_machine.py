"""Which machine runs the code: the traced kernel's CPU, or the host that kinst runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst.core.errors import KinstError
from kinst.core.isa import Isa, PerCpu, Register
from kinst.core.layout import Scratch
from kinst.core.system import (
    Access,
    Clock,
    Facts,
    Paths,
    ThreadTime,
    Unwinder,
    UserMemory,
    UserState,
)


@dataclass(frozen=True, slots=True)
class CodeMachine:
    """base: address of scratch as this machine sees it.

    host: the code runs in kinst's process: CPU slot scratch.cpus, built-ins from the CONTEXT_*
    area behind the frame.  Otherwise built-ins come from `builtins`, the slot is the CPU number.
    nofault_read: address of a C function (dst, src, size) -> i64, 0 when all bytes were read.
    convention: LLVM calling convention of entries and of cold helpers.
    timestamp_asm, timestamp_constraints: inline assembly that reads the cycle counter, or the
    name of an LLVM intrinsic that does (llvm.readcyclecounter), or a register (%cntvct_el0).
    LLVM's assembly parsers for other ISAs than the host's are out of reach of llvmlite, its
    intrinsics are not.
    trap_pc_offset, trap_pc_delta, user: as in Facts; on the host, user's functions are native.
    llvm_options: as in Isa.
    parents: offsets in a task of its parent's address and of its process id; (0, 0): not known.
    symbols: (module, name) to the running address, of those that the program uses.
    paths: as in Facts.
    signature_bits: as in Isa.
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

    def address(self, offset: int) -> int:
        """Of this offset of scratch."""
        return self.base + offset


def parents_of(facts: Facts | None) -> tuple[int, int]:
    """Machine.parents, from how ppid is found."""
    access = facts.builtins.get("ppid") if facts else None
    if access is None or len(access.offsets) != 2:
        return 0, 0
    return access.offsets[0], access.offsets[1]


def target_machine(isa: Isa, facts: Facts, scratch: Scratch) -> CodeMachine:
    """The traced kernel.

    Raises KinstError when the personality does not know where the CPU number is, or a read
    function that cannot fault: without them no clause can run inside the target.
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
        isa.per_cpu, facts.builtins, isa.timestamp_asm,
        getattr(isa, "timestamp_constraints", "=r"), facts.clock,
        facts.trap_pc_offset, facts.trap_pc_delta, facts.thread_time,
        facts.unwinder, isa.llvm_options, facts.user, parents_of(facts), paths=facts.paths,
        user_state=facts.user_state, signature_bits=isa.signature_bits,
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
) -> CodeMachine:
    """kinst's own process, for frames of `isa`.

    base: address of the scratch mapping here.  nofault_read: native address of a callback that
    reads the target's memory.  triple: of this process (llvm_process_triple()).
    """
    return CodeMachine(
        "host", triple, "", True, base, scratch, nofault_read, isa.registers, isa.frame_slots,
        isa.sp_slot, "ccc", user=user, parents=parents, user_state=user_state,
    )  # fmt: skip
