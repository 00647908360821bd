"""Compile typed trees to machine code, for the target and for the host.

Tested by tests/codegen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from kinst.codegen.analysis import makes_pointers, shares_variables, slots_read
from kinst.codegen.aside import aside
from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.entries import write_entry, write_error
from kinst.codegen.firing import Unit
from kinst.codegen.hooks import write_fault_hook, write_sampler, write_trap_hook
from kinst.codegen.ssa import IrFunction, module_text
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.records import ProgramLayout
from kinst.dlang import typed

_SYMBOL = struct.Struct("<IBBHQQ")

# Sections that are not loaded, or that LLVM writes for tools.
_IDLE = (
    b".note",
    b".comment",
    b".llvm",
    b".eh_frame",
    b".riscv.attributes",
)


class ObjectError(Exception):
    """LLVM emitted more than plain code at a fixed address: a defect of codegen."""


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Machine code of functions.

    Attributes:
        code: the text section.
        offsets: where each function begins in it, by name.
        sizes: bytes of each function, by name.
    """

    code: bytes
    offsets: dict[str, int]
    sizes: dict[str, int]


def read_object(data: bytes) -> ObjectCode:
    """Read the text section of an ELF object (System V ABI, chapter 4).

    Raises ObjectError if anything else would have to be loaded or relocated.
    """
    sections: dict[bytes, bytes] = {}
    for section in llvm.ObjectFileRef.from_data(data).sections():
        name = section.name() or b""
        if section.size() and not name.startswith(_IDLE):
            sections[name] = section.data()
    code = sections.pop(b".text", b"")
    symbols, names = sections.pop(b".symtab", b""), sections.pop(b".strtab", b"")
    sections.pop(b"", None)
    if sections:
        raise ObjectError(f"sections besides .text: {sorted(sections)}")
    offsets, sizes = {}, {}
    for name_at, info, _, section_index, value, size in _SYMBOL.iter_unpack(symbols):
        if info & 0xF == 2 and section_index:  # STT_FUNC
            name = names[name_at : names.index(b"\0", name_at)].decode()
            offsets[name], sizes[name] = value, size
    return ObjectCode(code, offsets, sizes)


Entry = tuple[int, ...]  # clause indexes that one entry runs, in order


@dataclass(frozen=True, slots=True)
class TargetCode:
    """Code for one address in the target.

    Attributes:
        code: the bytes.
        address: where they have to be written.
        entry_offsets: offset of each entry in the code.
        slots: the frame slots that each entry reads.
        caller: entries that also read the slot named by their site's descriptor (SITE_CFA_SLOT).
        arguments: numbers of the arguments that each entry reads, which the descriptor locates.
        strings: the bytes of the strings area.
        trap_hook: offset of the trap hook in the code.
        fault_hook: offset of the fault hook in the code.
        ir: LLVM assembly before optimisation, for --dump.
        samplers: addresses of functions that run an entry with the registers that an interrupt has
            saved.
    """

    code: bytes
    address: int
    entry_offsets: dict[Entry, int]
    slots: dict[Entry, frozenset[int]]
    caller: frozenset[Entry]
    arguments: dict[Entry, frozenset[int]]
    strings: bytes
    trap_hook: int
    fault_hook: int
    ir: str
    samplers: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The first address after the code."""
        return self.address + len(self.code)

    def entry(self, clauses: Entry) -> int:
        """Return the address of the entry for these clauses."""
        return self.address + self.entry_offsets[clauses]


@dataclass(frozen=True, slots=True)
class HostCode:
    """Code in this process.

    Attributes:
        entries: native address of each, a void(u64 site descriptor, u64 frame followed by the
            CONTEXT_* words).
        strings: the bytes of the strings area.
        engine: LLVM's; the entries are valid while it lives.
        ir: LLVM assembly before optimisation, for --dump.
    """

    entries: dict[Entry, int]
    strings: bytes
    engine: Any
    ir: str


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for inline assembly, see CodeMachine.timestamp_asm


@cache
def _set_options(options: tuple[str, ...]) -> None:
    """Set LLVM's options, once: LLVM ends the process if an option is set a second time."""
    for option in options:
        llvm.set_option("kinst", option)


def host_triple() -> str:
    """Return LLVM's target triple for this process."""
    return str(llvm.get_process_triple())


def _name(entry: Entry) -> str:
    return "entry_" + "_".join(map(str, entry))


def _sampler(number: int) -> str:
    return f"sampler_{number}"


def _check_sizes(machine: CodeMachine, layout: ProgramLayout) -> None:
    """Raise KinstError if data of the clauses do not fit their areas of scratch."""
    scratch = machine.scratch
    biggest = max((c.size for c in layout.clauses), default=0)
    if biggest > scratch.ring_size:
        raise KinstError(
            f"a record of {biggest} bytes does not fit the buffer of {scratch.ring_size}",
            "use a larger bufsize or a smaller strsize",
        )
    _, strings = layout.strings
    for area, need, room in (
        ("globals", layout.globals_area, scratch.globals_size),
        ("strings", len(strings), scratch.strings_size),
        ("aggregations", layout.agg_size, scratch.agg_size),
        ("dynamic variables", layout.dynamic_size, scratch.dynamic_size),
    ):
        if need > room:
            raise KinstError(f"the program's {area} need {need} bytes, scratch has {room}")


@dataclass(frozen=True, slots=True)
class ProgramEntries:
    """The entries of a program that one machine runs.

    Attributes:
        program: the program.
        layout: of the data that it writes.
        entries: the distinct tuples of clauses that sites run.
        error_clauses: the clauses of dtrace:::ERROR.
        error_site: address of dtrace:::ERROR's site descriptor as the machine sees it.
        sampled: entries that samples of CPUs run, with the addresses of their descriptors.
    """

    program: typed.TypedProgram
    layout: ProgramLayout
    entries: Sequence[Entry]
    error_clauses: Entry
    error_site: int
    sampled: Sequence[tuple[Entry, int]] = ()


def _lower_entries(wanted: ProgramEntries, machine: CodeMachine) -> tuple[str, bytes]:
    """Return LLVM assembly of the entries, and the bytes of the program's strings area.  Raises
    KinstError if the machine cannot do what a clause asks for."""
    program, layout = wanted.program, wanted.layout
    _check_sizes(machine, layout)
    offsets, strings = layout.strings
    keys = max(
        (
            *(a.data_offset - 8 for a in layout.aggregations if a.keys),
            *(8 * d.key_words for d in layout.dynamic),
        ),
        default=0,
    )
    unit = Unit(machine, layout, offsets, keys, makes_pointers(program), shares_variables(program))
    in_error = [program.clauses[i] for i in wanted.error_clauses]
    error = write_error(unit, wanted.error_site, in_error)
    functions: list[IrFunction] = [error]
    for entry in wanted.entries:
        clauses = [program.clauses[i] for i in entry]
        functions.append(write_entry(unit, _name(entry), clauses, error))
    for number, (entry, descriptor) in enumerate(wanted.sampled):
        clauses = [program.clauses[i] for i in entry]
        body = write_entry(unit, f"{_sampler(number)}_entry", clauses, error)
        body.internal = True  # a call of an exported function would have to be relocated
        functions += [body, write_sampler(machine, _sampler(number), body, descriptor)]
    if not machine.host:
        functions += [write_trap_hook(machine), write_fault_hook(machine)]
    functions += unit.helpers.values()
    return module_text(machine.triple, functions), strings


def _optimise(module: Any, target: Any) -> None:
    """Run -O2 without the passes that are useless in straight code of a few dozen lines."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(target, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    # In llvmlite 0.50 its close() frees nothing, by the order of its base classes.
    NewPassManager._dispose(passes)
    passes.detach()


def _module(ir: str, triple: str, features: str, *, jit: bool) -> tuple[Any, Any]:
    """Return an optimised module of LLVM assembly, and the target machine that it is for."""
    module = llvm.parse_assembly(ir)
    module.verify()
    target = llvm.Target.from_triple(triple).create_target_machine(
        features=features,
        opt=2,
        reloc="static",
        codemodel="jitdefault" if jit else "small",
        jit=jit,
    )
    _optimise(module, target)
    return module, target


@lru_cache(maxsize=8)
def _object_code(ir: str, triple: str, features: str) -> ObjectCode:
    """Compile LLVM assembly for a traced kernel.  The cache serves clients that trace one program
    again and again on an open machine."""
    return aside(partial(_emitted, ir, triple, features))


def _emitted(ir: str, triple: str, features: str) -> ObjectCode:
    module, target = _module(ir, triple, features, jit=False)
    return read_object(target.emit_object(module))


def compile_functions(
    functions: Sequence[IrFunction], machine: CodeMachine, features: str = ""
) -> dict[str, bytes]:
    """Return the machine code of each function by name; it needs no other code or data.

    Args:
        functions: the functions.
        machine: that the code is for.
        features: LLVM features besides the machine's.
    """
    _initialize()
    _set_options(machine.llvm_options)
    every = ",".join(filter(None, (machine.features, features)))
    compiled = _object_code(module_text(machine.triple, functions), machine.triple, every)
    return {
        name: compiled.code[at : at + compiled.sizes[name]] for name, at in compiled.offsets.items()
    }


def compile_target(wanted: ProgramEntries, machine: CodeMachine, address: int) -> TargetCode:
    """Compile the text area.

    Args:
        wanted: the entries.
        machine: a CPU of the target.
        address: where the code will be written, a multiple of 16.

    Raises:
        KinstError: this kernel cannot do what a clause asks for (a built-in that its system does
            not know, arg0 at an instruction).
    """
    _initialize()
    _set_options(machine.llvm_options)
    ir, strings = _lower_entries(wanted, machine)
    compiled = _object_code(ir, machine.triple, machine.features)
    clauses, entries = wanted.program.clauses, wanted.entries
    in_error = [slots_read(clauses[i], machine) for i in wanted.error_clauses]
    slots: dict[Entry, frozenset[int]] = {}
    caller: set[Entry] = set()
    arguments: dict[Entry, frozenset[int]] = {}
    for entry in entries:
        reads = [slots_read(clauses[i], machine) for i in entry]
        slots[entry] = frozenset[int]().union(*(read.slots for read in reads + in_error))
        # dtrace:::ERROR's own arguments describe the fault and are not in the frame.
        arguments[entry] = frozenset[int]().union(*(read.arguments for read in reads))
        if any(read.caller for read in reads + in_error):
            caller.add(entry)
    return TargetCode(
        compiled.code, address, {entry: compiled.offsets[_name(entry)] for entry in entries}, slots,
        frozenset(caller), arguments, strings, compiled.offsets["trap_hook"],
        compiled.offsets["fault_hook"], ir,
        tuple(address + compiled.offsets[_sampler(k)] for k in range(len(wanted.sampled))),
    )  # fmt: skip


def _engine(ir: str, triple: str, features: str) -> Any:
    """Compile LLVM assembly for this process; the code lives as long as the result."""
    module, target = _module(ir, triple, features, jit=True)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


def compile_host(wanted: ProgramEntries, machine: CodeMachine) -> HostCode:
    """Compile for this process, which runs BEGIN, END, timers and stop-planted probes.

    Without entries nothing is compiled: most programs have probes in the target alone.  Raises
    KinstError as compile_target() does.
    """
    if not wanted.entries:
        return HostCode({}, wanted.layout.strings[1], None, "")
    _initialize()
    ir, strings = _lower_entries(wanted, machine)
    engine = aside(partial(_engine, ir, machine.triple, machine.features))
    addresses = {entry: int(engine.get_function_address(_name(entry))) for entry in wanted.entries}
    return HostCode(addresses, strings, engine, ir)
