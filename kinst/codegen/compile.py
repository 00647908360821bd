"""Compile the typed trees of a D program to machine code, for the target and for the host.

Tested by tests/codegen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from kinst.codegen.actions.perturbing import Perturbation, changes_of
from kinst.codegen.actions.signals import RAISE_HOOK, write_raise_hook
from kinst.codegen.analysis import makes_pointers, shares_variables, slots_read
from kinst.codegen.aside import aside
from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.entries import write_entry, write_error
from kinst.codegen.firing import Unit
from kinst.codegen.hooks import (
    Chosen,
    write_chooser,
    write_fault_hook,
    write_sampler,
    write_trap_hook,
)
from kinst.codegen.saved_code import ObjectCode, ObjectError, SavedCode
from kinst.codegen.ssa import IrFunction, module_text
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.probe import Selection
from kinst.core.records import ProgramLayout
from kinst.core.words import PAGE
from kinst.dlang import typed
from kinst.dlang.walk import find
from kinst.wire.memory import CodeMemory

Entry = tuple[int, ...]  # indexes of the clauses that one entry function runs, in order


@dataclass(frozen=True, slots=True)
class TargetCode:
    """The machine code of a program for the target, linked to one address.

    Attributes:
        code: the bytes.
        address: address in the target that the code was linked to.
        entry_offsets: offset of each entry function in `code`.
        slots: the frame slots that each entry function reads or may write.
        caller: the entry functions that read `caller`. Each also reads the frame slot whose number
            is in the site's descriptor (SITE_CFA_SLOT).
        arguments: numbers of the probe's arguments that each entry function reads; the site's
            descriptor says where they are.
        strings: the bytes of the strings area.
        trap_hook: offset in `code` of the function that the kernel's breakpoint handler calls.
        fault_hook: offset in `code` of the function that the kernel's exception table search calls.
        ir: LLVM assembly before optimisation, for --dump.
        samplers: addresses of the functions that the kernel calls when it samples a CPU, one for
            each profile-N probe, in the order of ProgramEntries.sampled.
        choosers: addresses of the functions that choose, at each hit, which of a site's probes
            fires, in the order of ProgramEntries.chosen.
        raise_hook: offset in `code` of the function that sends signals; -1 if there is none.
        changes: what the clauses of each entry function may change in the traced function.
        clock: the words of the kernel's clock that clauses load (HEADER_CLOCK); empty without one.
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
    choosers: tuple[int, ...] = ()
    changes: Mapping[Entry, Perturbation] = field(default_factory=dict)
    raise_hook: int = -1
    clock: bytes = b""

    @property
    def end(self) -> int:
        """The first address after the code."""
        return self.address + len(self.code)

    def entry(self, clauses: Entry) -> int:
        """Return the address in the target of the entry function for these clauses."""
        return self.address + self.entry_offsets[clauses]


@dataclass(frozen=True, slots=True)
class HostCode:
    """The machine code of a program in kinst's own process.

    Attributes:
        entries: native address of each entry function. Its parameters are two u64: the address of
            the site descriptor, and that of the frame of saved registers. The values of built-in
            variables (the CONTEXT_* words of core/layout.py) follow the frame in memory.
        strings: the bytes of the strings area.
        owner: what keeps the code mapped; the entry functions are valid while it lives.
        ir: LLVM assembly before optimisation, for --dump.
    """

    entries: dict[Entry, int]
    strings: bytes
    owner: object
    ir: str


def _name(entry: Entry) -> str:
    return "entry_" + "_".join(map(str, entry))


def _chooser(number: int) -> str:
    return f"chooser_{number}"


def _sampler(number: int) -> str:
    return f"sampler_{number}"


def _check_sizes(machine: CodeMachine, layout: ProgramLayout) -> None:
    """Raise KinstError if a record does not fit in a ring, or the program's data do not fit in
    their areas of scratch.
    """
    scratch = machine.scratch
    biggest = max((c.size for c in layout.clauses), default=0)
    # If the program sets a smaller buffer, its records that do not fit are dropped, as in DTrace.
    if biggest > scratch.ring_size >= PAGE:
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
    """What is to be compiled of a program for one machine: for the target, or for the host.

    Attributes:
        program: the program.
        layout: layout of the data that the program writes.
        entries: for each entry function, the indexes of the clauses that it runs.
        error_clauses: indexes of the clauses of dtrace:::ERROR.
        error_site: address of dtrace:::ERROR's site descriptor on this machine.
        sampled: (indexes of the clauses, address of the site descriptor) of each profile-N probe,
            which fires when the kernel samples a CPU.
        chosen: the sites at which a number in memory (such as a system call's number) decides which
            of several probes fires. Each site is a sequence of its probes: (selection, indexes of
            the clauses, address of the site descriptor).
    """

    program: typed.TypedProgram
    layout: ProgramLayout
    entries: Sequence[Entry]
    error_clauses: Entry
    error_site: int
    sampled: Sequence[tuple[Entry, int]] = ()
    chosen: Sequence[Sequence[tuple[Selection, Entry, int]]] = ()


def _lower_entries(needed: ProgramEntries, machine: CodeMachine) -> tuple[str, bytes]:
    """Return LLVM assembly of the entry functions and their helpers, and the bytes of the program's
    strings area.  Raises KinstError if the machine cannot do what a clause asks for.
    """
    program, layout = needed.program, needed.layout
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
    in_error = [program.clauses[i] for i in needed.error_clauses]
    error = write_error(unit, needed.error_site, in_error)
    functions: list[IrFunction] = [error]
    for entry in needed.entries:
        clauses = [program.clauses[i] for i in entry]
        functions.append(write_entry(unit, _name(entry), clauses, error))
    for number, (entry, descriptor) in enumerate(needed.sampled):
        clauses = [program.clauses[i] for i in entry]
        body = write_entry(unit, f"{_sampler(number)}_entry", clauses, error)
        body.internal = True  # a call of an exported function would have to be relocated
        functions += [body, write_sampler(machine, _sampler(number), body, descriptor)]
    functions += _choosers(needed, unit, error)
    if not machine.host:
        functions += [write_trap_hook(machine), write_fault_hook(machine)]
        if machine.signals is not None and any(find(program, typed.RaiseAction)):
            functions.append(write_raise_hook(machine))
    functions += unit.helpers.values()
    return module_text(machine.triple, functions), strings


def _choosers(needed: ProgramEntries, unit: Unit, error: IrFunction) -> list[IrFunction]:
    """Return the choosers: one function for each site in needed.chosen, where a number in memory
    decides which probe fires. At a hit, the chooser runs the entry function of that probe.

    Before the choosers, the result has the entry functions that they call. These are internal
    copies: for a call of the exported entry functions, LLVM would emit a relocation.

    Args:
        needed: the program's entry functions.
        unit: the LLVM module under construction.
        error: the LLVM function of write_error(), which a faulting clause calls.
    """
    entries: dict[Entry, IrFunction] = {}
    functions: list[IrFunction] = []
    for number, probes in enumerate(needed.chosen):
        for _, entry, _ in probes:
            if entry not in entries:
                clauses = [needed.program.clauses[i] for i in entry]
                body = write_entry(unit, f"chosen_{_name(entry)}", clauses, error)
                body.internal, body.noinline = True, True
                entries[entry] = body
        chosen = [Chosen(one, entries[entry], at) for one, entry, at in probes]
        functions.append(write_chooser(unit.machine, _chooser(number), chosen))
    return [*entries.values(), *functions]


def _llvm() -> Any:
    """Import the module that calls LLVM, and return it."""
    return import_module("kinst.codegen.llvm_calls")


@lru_cache(maxsize=8)
def _object_code(
    ir: str,
    triple: str,
    features: str,
    options: tuple[str, ...],
    folder: Path | None,
    optimised: bool = True,
) -> ObjectCode:
    """Compile LLVM assembly to machine code for a traced kernel, or return the cached machine code
    of an earlier call. The cache is in memory, for clients that trace one program again and again
    on an open machine, and in files.

    Args:
        ir: the assembly.
        triple: LLVM's target triple.
        features: LLVM's target features.
        options: LLVM's command line options.
        folder: the folder of machine code in the cache; None to use no files.
        optimised: whether LLVM optimises the code, which takes four fifths of the time to compile
            it.
    """
    saved = (
        None
        if folder is None
        else SavedCode(folder, [ir, triple, features, str(optimised), *options])
    )
    code = None if saved is None else saved.load()
    if code is None:
        llvm = _llvm()
        llvm.initialize()
        llvm.set_options(options)
        code = aside(partial(llvm.emitted, ir, triple, features, optimised))
        if saved is not None:
            saved.save(code)
    return code


def compile_functions(
    functions: Sequence[IrFunction], machine: CodeMachine, features: str = ""
) -> dict[str, bytes]:
    """Compile functions and return the machine code of each by name.  The code of each function
    stands alone: it refers to no other code or data.

    Args:
        machine: the machine that runs the code.
        features: LLVM target features besides the machine's.
    """
    every = ",".join(filter(None, (machine.features, features)))
    text = module_text(machine.triple, functions)
    compiled = _object_code(text, machine.triple, every, machine.llvm_options, machine.saved_code)
    return {
        name: compiled.code[at : at + compiled.sizes[name]] for name, at in compiled.offsets.items()
    }


def compile_target(needed: ProgramEntries, machine: CodeMachine, address: int) -> TargetCode:
    """Compile a program's entry functions and hooks for the text area of scratch.

    Args:
        needed: the program's entry functions.
        machine: a CPU of the target.
        address: address in the target that the code will be written to, a multiple of 16.

    Raises:
        KinstError: this kernel cannot do what a clause asks for, such as a built-in variable that
            its system does not know.
    """
    ir, strings = _lower_entries(needed, machine)
    compiled = _object_code(
        ir, machine.triple, machine.features, machine.llvm_options, machine.saved_code
    )
    clauses, entries = needed.program.clauses, needed.entries
    in_error = [slots_read(clauses[i], machine) for i in needed.error_clauses]
    slots: dict[Entry, frozenset[int]] = {}
    caller: set[Entry] = set()
    arguments: dict[Entry, frozenset[int]] = {}
    changes: dict[Entry, Perturbation] = {}
    of_choosers = (entry for probes in needed.chosen for _, entry, _ in probes)
    for entry in dict.fromkeys((*entries, *of_choosers)):
        reads = [slots_read(clauses[i], machine) for i in entry]
        changes[entry] = changes_of((clauses[i] for i in entry), machine)
        slots[entry] = changes[entry].slots.union(*(read.slots for read in reads + in_error))
        # dtrace:::ERROR's own arguments describe the fault and are not in the frame.
        arguments[entry] = frozenset[int]().union(*(read.arguments for read in reads))
        if any(read.caller for read in reads + in_error):
            caller.add(entry)
    return TargetCode(
        compiled.code, address, {entry: compiled.offsets[_name(entry)] for entry in entries}, slots,
        frozenset(caller), arguments, strings, compiled.offsets["trap_hook"],
        compiled.offsets["fault_hook"], ir,
        tuple(address + compiled.offsets[_sampler(k)] for k in range(len(needed.sampled))),
        tuple(address + compiled.offsets[_chooser(k)] for k in range(len(needed.chosen))),
        changes, compiled.offsets.get(RAISE_HOOK, -1),
        b"" if machine.clock is None else machine.clock.words,
    )  # fmt: skip


def compile_host(needed: ProgramEntries, machine: CodeMachine) -> HostCode:
    """Compile a program's entry functions for kinst's own process, which runs the clauses of BEGIN,
    END, timers and stop-planted probes.

    If there are no entries, return empty code: most programs have probes in the target alone.
    The code is not optimised: that would save at most a fifth of a firing, some microseconds.
    Clauses that run here fire once (BEGIN, END) or rarely (timers), or each firing stops the
    target, which takes longer.

    Raises KinstError if a clause asks for something that the host cannot do.
    """
    if not needed.entries:
        return HostCode({}, needed.layout.strings[1], None, "")
    machine = replace(machine, triple=f"{os.uname().machine}-unknown-linux-gnu")
    ir, strings = _lower_entries(needed, machine)
    # Code that has addresses of callbacks is of no use to other processes: theirs differ.
    repeatable = not any(str(address) in ir for address in machine.callbacks)
    saved = machine.saved_code if repeatable else None
    names = {entry: _name(entry) for entry in needed.entries}
    try:
        compiled = _object_code(ir, machine.triple, machine.features, (), saved, optimised=False)
    except ObjectError:
        # TODO: on riscv64 hosts LLVM keeps big constants outside of the code.
        engine = aside(partial(_llvm().engine_of, ir, machine.triple, machine.features))
        addresses = {entry: int(engine.get_function_address(names[entry])) for entry in names}
        return HostCode(addresses, strings, engine, ir)
    code = CodeMemory(compiled.code)
    return HostCode(
        {entry: code.address + compiled.offsets[name] for entry, name in names.items()},
        strings, code, ir,
    )  # fmt: skip
