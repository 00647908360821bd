"""What every ISA answers; codegen, patch and the targets ask only through this protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kinst.core.columns import I32, I64, U8, U64, Batch, Bools, Columns, Leads, Made, Scanned
from kinst.core.page_tables import Leaf, Read, Root
from kinst.core.probe import Site
from kinst.core.system import Clock


@dataclass(frozen=True, slots=True)
class Instruction:
    """A decoded instruction. text is mnemonic and operands as the disassembler spells them."""

    address: int
    code: bytes
    text: str

    @property
    def size(self) -> int:
        return len(self.code)

    @property
    def end(self) -> int:
        return self.address + len(self.code)


@dataclass(frozen=True, slots=True)
class Flow:
    """Where control goes from an instruction.

    kind: "next"; "landing" (next, and indirect branches may come here); "jump", "branch"
    (conditional) and "call" by target; "return"; "indirect" (a jump to a computed place);
    "trap".  falls_through: the next instruction may follow (after a call: when it returns).
    target: of a direct branch or call.  condition, otherwise: D expressions over regs[], true
    at the instruction when a conditional branch will be taken, and when not.  destination: of
    an indirect jump, as a D expression; "" when D cannot say it.  fault: where control goes when
    the instruction faults on purpose (not the ISA's word but the kernel's exception table).
    """

    kind: str
    falls_through: bool = True
    target: int | None = None
    condition: str = ""
    otherwise: str = ""
    destination: str = ""
    fault: int | None = None


@dataclass(frozen=True, slots=True)
class JumpTable:
    """Data that a computed jump takes its target from: target = base + scale * entry, where base
    0 means that entries are whole addresses.

    address: of the first entry.  size: bytes of an entry, which is signed unless it is an address.
    count: of entries; 0 where the code does not say it.
    """

    address: int
    size: int
    base: int = 0
    scale: int = 1
    count: int = 0


@dataclass(frozen=True, slots=True)
class Relocated:
    """Displaced code for one place: runs the instruction's effect, then goes where it went.

    code: bytes valid at the address they were made for; control leaves it at the original
    successor (the jump back is part of it), at a branch target, or at a callee.
    original_at: offset in code of the copy that can fault as the original did, or -1 when
    nothing in it can (a direct branch).  A fault there must be reported to the kernel's
    exception tables as at the original address.
    """

    code: bytes
    original_at: int = -1


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a site cannot be planted, in words for the user."""

    reason: str


class OutOfReach(Exception):  # noqa: N818 - it is a result on its way up, not an error
    """An instruction cannot get to its target.  what: in words for the user."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True, slots=True)
class Moved:
    """One displaced instruction without its way back.

    falls_through: control can run off its end, and must then go to the original successor.
    branches: control can also leave it elsewhere.  original_at: as in Relocated.
    """

    code: bytes
    falls_through: bool
    branches: bool
    original_at: int


@dataclass(frozen=True, slots=True)
class Onward:
    """Where a chained trampoline sends control, in place of original code that is planted too.

    links: address of a planted instruction -> address of its trampoline.  falls_into: the planted
    instruction whose trampoline lies straight behind this one, or -1.  head: the trampoline begins
    with one instruction that a jump fits over, so that unplanting can turn it into the way back.
    spare: address of an original instruction -> registers that may be spoiled on the way there
    (Isa.spare).
    """

    links: Mapping[int, int] = field(default_factory=dict)
    falls_into: int = -1
    head: bool = False
    spare: Mapping[int, int] = field(default_factory=dict)

    def of(self, address: int) -> int:
        """Where control goes that was to go to an original instruction."""
        return self.links.get(address, address)


UNCHAINED = Onward()


def with_way_back(
    moved: Moved | Refused, to: int, back: Callable[[int], bytes]
) -> Relocated | Refused:
    """Displaced code at `to`, with what leads from its end to the original successor.

    back: makes that at an address (nothing where the successor's trampoline is right there); it
    may raise OutOfReach."""
    if isinstance(moved, Refused):
        return moved
    if not moved.falls_through:
        return Relocated(moved.code, moved.original_at)
    try:
        return Relocated(moved.code + back(to + len(moved.code)), moved.original_at)
    except OutOfReach as far:
        return Refused(far.what)


@dataclass(frozen=True, slots=True)
class Register:
    """One register: its D name (R_RAX), its index in regs[], and the stub's name (rax).

    The index is the number that regs[] takes; saved values live at frame[slot] (u64 each).
    """

    d_name: str
    index: int
    slot: int
    gdb_name: str


@dataclass(frozen=True, slots=True)
class Snippet:
    """Straight machine code that works one word out of the registers at a site, to be copied into
    a trampoline: control enters it at its start with the site's general registers and leaves it
    at its end, with the word in SnippetRegisters.result.

    It runs before any frame is made, with interrupts as they are at the site, so it writes no
    memory, does not use the stack, and reads only memory that is always mapped.

    reads, writes: numbers of general registers, as the ISA encodes them; the result's is among
    the written ones.  flags: it changes condition flags.  zero: of a guard, the work is done
    where the word is zero; otherwise where it is not.
    """

    code: bytes
    reads: frozenset[int]
    writes: frozenset[int]
    flags: bool
    zero: bool = False


@dataclass(frozen=True, slots=True)
class SnippetRegisters:
    """What code generation must know to make a Snippet.

    names: frame slot to what LLVM's inline assembly calls the register whose value at the site
    goes there; only of those that a snippet may read.  result: the name of the register for the
    word.  features: LLVM features besides Isa.cpu_features.  selects: there is an instruction that
    chooses between two values; without one LLVM would branch.
    """

    names: Mapping[int, str]
    result: str
    features: str = ""
    selects: bool = True


@dataclass(frozen=True, slots=True)
class CallBody:
    """The probe's work is a call: entry(site_descriptor, frame) in the ISA's `convention`.

    entry: address of the code.  argument: address of the site descriptor.
    slots: frame slots that the clauses read and the trampoline must fill (Register.slot).
    guard: a word without which the call would do nothing; the code called tests the same again.
    """

    entry: int
    argument: int
    slots: frozenset[int]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class CountBody:
    """The probe's work is to add one to 8-byte counters, each at per-CPU base + offset.

    offsets: signed 32-bit displacements from the kernel's per-CPU base register; or, where the
    ISA has shared_counters, addresses of counters that all CPUs add to.
    guard: a word that decides whether it is done at all.
    """

    offsets: tuple[int, ...]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class IndexedBody:
    """The probe's work is to add one to the counter whose offset (as in CountBody) is a snippet's
    word; where that is 0, `otherwise`.  guard: as in CountBody."""

    index: Snippet
    otherwise: CallBody
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class RecordField:
    """`size` bytes of a record at `offset`.

    kind: "time" or "cpu", the record's own; "register", the one whose value at the site goes to
    frame slot `value`; or "constant", `value` itself."""

    offset: int
    size: int
    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """What writing records without a call needs of a CPU.

    cpu, busy: signed 32-bit displacements from the per-CPU base register of this CPU's number and
    of the word (32 bits each) that keeps the thread on it, and others off it, while it is raised.
    settled: address of a word (32 bits) that says by being less than 2 that this needs no raising;
    0 where it never does, and None where it always does.
    state, rings: addresses of CPU 0's state page and ring; those of the others follow.
    ring_size: a power of two.  clock: of the cycle counter."""

    cpu: int
    busy: int
    settled: int | None
    state: int
    rings: int
    ring_size: int
    clock: Clock


@dataclass(frozen=True, slots=True)
class RecordBody:
    """The probe's work is one record in this CPU's ring (core/layout.py RECORD_*), of `size` bytes;
    where that cannot be written at once (no room, an NMI within a clause), `otherwise`.

    clause: its number in the record.  probe: Probe.id.  guard: as in CountBody.

    Interrupts stay as they are, and an interrupt handler may write records of its own meanwhile.
    So room is reserved first, by one instruction that changes STATE_RESERVED, and the records show,
    by STATE_HEAD, when the outermost of those that are being written is whole: handlers end before
    what they interrupt goes on, so all behind it is whole by then, too."""

    places: RecordPlaces
    clause: int
    probe: int
    size: int
    fields: tuple[RecordField, ...]
    otherwise: CallBody
    guard: Snippet | None = None


Body = CallBody | CountBody | IndexedBody | RecordBody


@dataclass(frozen=True, slots=True)
class PerCpu:
    """How target code of this ISA reaches per-CPU data: an LLVM address space whose zero is
    this CPU's base (x86: 256 is %gs), or what Function.asm() of codegen reads the base by:
    inline assembly or, where LLVM's parser is out of reach, a register (%tpidr_el1).
    thread_asm: the same for the current thread's address, where kernels keep it in a register.
    """

    address_space: int | None
    base_asm: str = ""
    thread_asm: str = ""


class Paging(Protocol):
    """Page tables of one ISA: found by registers, walked and extended through physical memory.

    read: read_physical(address, size) -> bytes.  Registers are by the stub's names.  image: the
    range [low, high) of virtual addresses in which a system maps its kernel (Territory.image).
    """

    REACH: int  # of a direct branch, with a margin; bytes

    def root_of(self, registers: Mapping[str, int]) -> Root:
        """The top-level table of the kernel's half as this CPU has it.  Raises TargetError where
        the CPU does not translate addresses, or its tables are of a kind that kinst cannot
        read."""
        ...

    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU stands in user mode."""
        ...

    def walk(self, read: Read, root: Root, address: int) -> Leaf | None:
        """The mapping of one virtual address, with the rights of all levels, or None."""
        ...

    def leaves(self, read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
        """Mappings that touch [low, high), in address order."""
        ...

    def free_slots(self, read: Read, root: Root, low: int, high: int) -> list[int]:
        """Virtual addresses in [low, high) where make_leaf() can map LEAF_SIZE bytes."""
        ...

    def slot_free(self, read: Read, root: Root, address: int) -> bool:
        """Whether make_leaf() could map the LEAF_SIZE bytes at address."""
        ...

    def make_leaf(
        self, read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
    ) -> list[tuple[int, bytes]] | None:
        """(physical address, bytes) to write, in order, so that address is mapped by `entry`;
        None where it cannot be."""
        ...

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """An entry that maps LEAF_SIZE bytes at physical, writable and executable for the kernel,
        otherwise as the mapping `like`.  Raises TargetError where that would not run."""
        ...

    def find_text(self, read: Read, root: Root, image: tuple[int, int]) -> int:
        """Where the kernel's text starts, by what is executable in its image's range.  Raises
        TargetError when nothing is: the kernel is not up yet."""
        ...

    def text_is_final(
        self, read: Read, registers: Mapping[str, int], image: tuple[int, int]
    ) -> bool:
        """Whether the tables show that the kernel has protected its text, or given up the code
        that only boots: the last thing before it runs programs."""
        ...


class Board(Protocol):
    """What QEMU is asked for to run a kernel of this ISA, and what its GDB stub calls things."""

    QEMU: str  # the program
    PACKAGE: str  # of Debian, that has it
    MACHINE: str
    BOOT_IMAGE: str  # what QEMU boots, in the folder in which a kernel was built
    CPU: str  # which cpu_for() answers for most kernels; "" for QEMU's own choice
    HOST_MACHINES: tuple[str, ...]  # os.uname().machine of hosts that could run it with KVM
    SERIAL: tuple[str, ...]  # -device of console, output and control; "" for the machine's own
    # Registers that arm a CPU's timer when they are written: QEMU saves what is in them, but not
    # that anything is to happen then.  The stub does not name them: each is so many numbers behind
    # one that has a name.
    TIMERS: tuple[tuple[str, int], ...]
    CARD_SLOT: str  # -device into which a card is put while it runs; "" where kernels take none
    CONSOLE: str  # what the kernel calls the first serial port,
    PORTS: tuple[str, str]  # and the other two
    PARAMETERS: str  # of the kernel's command line, in guests of kinst's own
    MODULES_APPEND: str  # of the command line, when modules are loaded
    PC: str  # the stub's name of the program counter
    SP: str  # and of the stack pointer
    LINK: str  # of the register that holds a function's return address; "" where its stack does
    CALL_CHANGES: tuple[str, ...]  # of what a call of a C function may change, PC and SP included
    VECTORS: tuple[str, ...]  # the stub's names of registers that hold the trap handler's address
    GDB_REGISTERS: tuple[tuple[str, int], ...]  # (name, bytes) of the g packet without description

    def cpu_for(self, head: bytes) -> str:
        """QEMU's name of a CPU that can run a kernel whose file begins with these 64 bytes."""
        ...

    def interrupts_off(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU does not come when it is called."""
        ...

    def is_lost(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU can do nothing but fault any more."""
        ...

    def memory_map(self, size: int) -> tuple[tuple[int, int, int], ...]:
        """(physical address, offset in the backing file, bytes) of RAM of `size` bytes."""
        ...

    def memory_limit(self, end: int) -> str:
        """Kernel parameter that makes it leave physical memory from `end` on alone."""
        ...


class Isa(Protocol):
    """One instruction set.  All methods are pure; addresses are virtual, in the target."""

    name: str  # what the user types: amd64
    elf_machine: int  # ELF e_machine
    triple: str  # LLVM triple of in-target code
    cpu_features: str  # LLVM feature string: no vector or floating-point registers
    registers: tuple[Register, ...]
    unavailable_registers: Mapping[str, str]  # D names that are known, to why they are not there
    frame_slots: int  # u64 slots of the frame that a trampoline hands to a clause
    pc_slot: int
    sp_slot: int
    flags_slot: int
    breakpoint: bytes
    per_cpu: PerCpu
    convention: str  # LLVM calling convention of the entries that trampolines call
    llvm_options: tuple[str, ...]  # of LLVM's command line, for this ISA's code generator
    shared_counters: bool  # CountBody's counters are one block for all CPUs, added to atomically
    records_inline: bool  # trampoline() knows RecordBody
    argument_slots: tuple[int, ...]  # frame slots of the C argument registers
    dwarf_registers: tuple[str, ...]  # D names by the ABI's DWARF register numbers, "" for none
    stack_arguments: int  # from the stack pointer to the first argument on the stack, at entry
    kept_registers: tuple[str, ...]  # D names of those that C calls keep, but the stack pointer
    signature_bits: int  # of a return address in the kernel, that may hold a signature of it
    result_slot: int  # of the register that returns a C function's value
    thunks: tuple[str, ...]  # globs of the names that thunk() may know
    RUN_SIZE: int  # bytes of a jump over several instructions; 0: none is ever needed
    RUN_STEP: int  # from its start to its second instruction, where it has one; else 0
    needs_spare: bool  # whether jumps need a register that they may spoil
    timestamp_asm: str  # inline assembly, "=r"-style: reads the cycle counter to one i64
    paging: Paging
    board: Board
    snippets: SnippetRegisters

    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        """Instructions of code in order; stops at the first byte that does not decode."""
        ...

    def flow(self, code: bytes, address: int) -> Flow:
        """Where control goes from the one instruction `code` at `address`."""
        ...

    def joined(self, before: Instruction, one: Instruction) -> Flow | None:
        """Where control goes from `one` when the instruction straight before it has run: a direct
        call or jump in two instructions; None where they are not that."""
        ...

    def thunk(self, name: str) -> Flow | None:
        """What a jump to a function of this name is really: a return or an indirect jump, when
        compilers put such a function in its place; otherwise None."""
        ...

    def hangs_together(self, code: bytes) -> bool:
        """False where unsafe() and rerun_starts() have nothing to say of a function of these live
        bytes; quick, and True where that takes a longer look."""
        ...

    def unsafe(self, instructions: Sequence[Instruction]) -> Mapping[int, str]:
        """Of a function's live instructions in order, those that cannot be planted because of
        the others (within a load-exclusive and store-exclusive pair): address to reason."""
        ...

    def rerun_starts(self, instructions: Sequence[Instruction]) -> Mapping[int, int]:
        """Of a function's live instructions in order, those that can be planted only when others,
        all of those straight before them from some place on, are run again after the probe's work
        (within a load-exclusive and store-exclusive pair): address to that of the first of
        these.  A debugger cannot stop at them without harm."""
        ...

    def jump_tables(self, instructions: Sequence[Instruction]) -> Sequence[JumpTable]:
        """What may be the tables of a function's computed jumps, by the addresses that its
        instructions, in order, make.  Some may be other data: the first two entries of a table
        lead to instructions of the function."""
        ...

    def may_make_tables(self, columns: Columns) -> Bools:
        """Of which instructions jump_tables() may have something to say: of all others it says
        nothing, whether they are there or not."""
        ...

    def returns_of(self, code: bytes, address: int, target: int) -> Sequence[int]:
        """Return addresses of the direct calls of `target` in code, ascending.  Some may be no
        calls (their bytes are within other instructions)."""
        ...

    def branches(self, code: bytes, address: int) -> tuple[U64, U64]:
        """(where, where to) of all direct branches within `code`, and of all addresses in it that
        its instructions make, ascending by where they lead.  Some are none: their bytes are within
        other instructions.  Not asked of an ISA without RUN_SIZE."""
        ...

    def unsteppable(self, code: bytes) -> str:
        """Why a debugger cannot step over the one instruction `code` without harm, or ""."""
        ...

    def displace(self, code: bytes, address: int, to: int) -> Relocated | Refused:
        """Code at `to` with the effect of the one instruction `code` at `address`."""
        ...

    def jump_patch(self, size: int, address: int, to: int) -> bytes | None:
        """Exactly `size` bytes that branch from address to `to`, or None if it cannot be done."""
        ...

    def jump_patches(self, columns: Columns, to: U64) -> tuple[Bools, U8]:
        """For many instructions: whether jump_patch() leads from each to its `to`, and what it is,
        a row of WIDTH bytes for each."""
        ...

    def run_patch(self, code: bytes, address: int, to: int, spare: int = 0) -> bytes | None:
        """What is written over the instructions `code` at address, RUN_SIZE bytes or more, so that
        control goes from the first of them to `to`; None if it cannot be done.  spare: see
        spare()."""
        ...

    def run_patches(
        self, start: U64, at: I64, code: bytes, to: U64, spare: Sequence[int]
    ) -> tuple[Bools, bytes]:
        """run_patch() of many: whether there is one, and the bytes of all, one behind the other.
        code: of all, those of each from `at` on, which has one number more at the end."""
        ...

    def spare(self, instructions: Sequence[Instruction], flows: Sequence[Flow]) -> Sequence[int]:
        """Of a function's instructions in order: the registers that nothing reads from each of
        them on before it writes them, as bits by frame slot.  A jump may need one of them; 0
        everywhere where none does.  flows: of the instructions."""
        ...

    def padding(self, code: bytes) -> int:
        """Bytes of whole instructions at the start of `code` that only fill room: compilers put
        them behind code that does not go on."""
        ...

    def leave_patch(self, at: int, to: int) -> bytes:
        """What turns the start of a trampoline at `at` that is a head (Onward) into a jump to its
        site at `to`: no longer than the instruction that is there."""
        ...

    def trap_patch(self, size: int) -> bytes:
        """The bytes, at most `size`, to write over the start of an instruction so that it traps."""
        ...

    def snippet(self, code: bytes, zero: bool = False) -> Snippet | None:
        """Code that LLVM made for a snippet, with what it touches; None where it is not straight,
        writes memory or uses the stack."""
        ...

    def counts_freely(self, sites: Columns, following: Sequence[bytes]) -> Bools:
        """At which sites counting has to save no flags.  following: live bytes after each."""
        ...

    def stub(self, at: int, counter: int, to: int, free: bool) -> bytes | Refused:
        """Code at `at` that adds one to a counter (one of CountBody's offsets), changes nothing
        else, and jumps to `to`.  free: counts_freely() of the place."""
        ...

    def stubs(self, at: int, counters: I64, to: U64, free: Bools) -> tuple[U8, I64] | None:
        """stub() of many, one straight behind the other from `at` on, and the bytes of each; None
        where one cannot be made.  counters: as 64 bits with a sign."""
        ...

    def trampoline(
        self,
        site: Site,
        following: bytes,
        to: int,
        bodies: Sequence[Body],
        rerun_prefix: bytes = b"",
        onward: Onward = UNCHAINED,
    ) -> Relocated | Refused:
        """The whole trampoline at address `to`: run bodies, then the displaced instruction.

        following: live bytes after the instruction, for flag liveness.  rerun_prefix: live bytes
        straight before it that are run again between the two (see rerun_starts()).  onward: where
        control goes on.  Interrupts are off while the code of a CallBody runs; registers and
        flags reach the displaced instruction unchanged.
        """
        ...

    def scan(self, pieces: Sequence[tuple[int, bytes]]) -> Scanned:
        """The instructions of decode() of pieces of code, (address, bytes) each, with what is
        marked of them.  What an instruction's mark says of those behind it is seen in its own
        piece, within FOLLOWING bytes."""
        ...

    def leads(self, columns: Columns) -> Leads:
        """Where control goes from marked instructions; of others that is not said."""
        ...

    def trampoline_sizes(self, batch: Batch) -> I32:
        """The bytes of each trampoline of a batch, wherever in the batch's memory it will lie; -1
        where trampoline() is to be asked."""
        ...

    def trampolines(self, batch: Batch, to: U64, goal: U64) -> Made:
        """The trampolines of a batch, whose sizes are all known: byte for byte what trampoline()
        makes.  to: where each will lie.  goal: where its direct branch is to lead to."""
        ...

    def detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """Hook a C function of the kernel at its first instruction.

        Returns (patch at address, stub at `to`).  The stub calls hook(arg0), a C function
        that returns 0 to go on in the original function, or 1 to return from it at once.
        """
        ...

    def translate_detour(
        self, code: bytes, address: int, to: int, hook: int
    ) -> tuple[bytes, bytes] | Refused:
        """As detour, but the stub replaces the first argument by hook(arg0) and goes on."""
        ...
