"""Stage that replaces the parts of D that need debug information by plain clauses.

These parts are kinst::F:entry and kinst::F:return of inline functions, source lines, and
locals->NAME.

Tested by tests/image/dwarf/test_locals.py and tests/fake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from kinst.codegen.analysis import asks_caller
from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie
from kinst.core.instruction import Instruction
from kinst.core.isa import Isa
from kinst.core.kernel import Kernel, no_function
from kinst.core.locals import Local
from kinst.core.probe import Function, ProbePattern
from kinst.core.types import KERNEL, TypeSource, as_named
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.walk import find
from kinst.image.debug_info import CallConvention, DebugInfo
from kinst.image.dwarf.cfi import InspectedFrame
from kinst.image.dwarf.expressions import NotHereError
from kinst.image.dwarf.locals import DwarfLocals
from kinst.image.loaded_images import LoadedImage, LoadedImages, Move, running_index
from kinst.providers import load_all, of_instructions
from kinst.session.check import with_programs
from kinst.session.compiled import Compiled
from kinst.session.machine import frames_finder
from kinst.session.parse import parse_request
from kinst.session.process_probes import separated
from kinst.session.report import Report
from kinst.session.request import Request
from kinst.session.values import StartedMachine
from kinst.session.whose import not_in_process
from kinst.sugar.expand import Sources, has_sugar
from kinst.sugar.expand import expand as expand_inline
from kinst.sugar.lines import SourceFile, SourceLine, expand_lines, has_lines
from kinst.sugar.locals import MatchedInstruction, expand_locals, has_locals

NEAR = 3  # lines with code that a message names if the wanted line has none
MOST_NAMES = 8  # variables that a message lists
FAR = 400  # instructions that are searched for one at which a variable lives

# From an instruction to the canonical frame address: (register's D name, offset), or None.
FrameAddress = Callable[[int], tuple[str, int] | None]


def expand(
    request: Request,
    compiled: Compiled,
    machine: StartedMachine,
    report: Report,
    target_pid: int = 0,
) -> Compiled:
    """Replace the parts of a compiled program that need debug information or a process id.

    $target becomes a process id; inline functions, source lines and local variables become plain
    clauses. The changed program is checked again, and returned. Raises DError.

    Args:
        target_pid: process id of the command, 0 without a command.
    """
    system, images, programs = machine.system, machine.images, compiled.programs
    if target_pid:
        programs = parse_request(
            request, target_pid, compiled.types, before=programs, dialect=compiled.dialect
        )
    if compiled.only == "command" and not target_pid:
        raise KinstError("-x only=command needs a command", "-c COMMAND gives it one")
    helpers = machine.target.helpers
    if target_pid and helpers is not None and helpers.passer and not compiled.only:
        programs = tuple(not_in_process(program, helpers.passer) for program in programs)
    wants = compiled.wants_expansion
    goes = any(find(compiled.program, typed.GotoAction))
    if wants or goes or asks_caller(compiled.program):
        system.find_frames_with(frames_finder(images, report.say))
    if wants:
        zero = request.zero or compiled.options.zdefs
        programs = expanded(
            programs, compiled.types, machine.kernel, images, system.frame_address, report,
            zero=zero,
        )  # fmt: skip
    return with_programs(request, compiled, programs, machine.isa)


def expanded(
    programs: tuple[tree.ProgramNode, ...],
    types: TypeSource | None,
    kernel: Kernel,
    images: LoadedImages,
    frame_address: FrameAddress,
    report: Report,
    *,
    zero: bool = False,
) -> tuple[tree.ProgramNode, ...]:
    """Return the syntax trees with source lines, inline functions and local variables replaced.

    Args:
        types: the types of the kernel.
        images: debug information of the kernel and its modules; a function without debug
            information counts as never inlined.
        frame_address: returns how to find the canonical frame address at an instruction.
        zero: whether descriptions that match nothing are left out (-Z) rather than refused.

    Raises DError at a description that matches nothing, and at a variable that cannot be read.
    """
    if any(map(has_lines, programs)):
        lines = SourceLines(images, kernel)
        programs = tuple(expand_lines(p, lines.find, lines.find_file) for p in programs)
        report.stage("source lines")
    if any(map(has_sugar, programs)):
        progress = report.if_long("finding inlined copies")
        sources = Sources(kernel, running_index(images, report.say), progress)
        found = [expand_inline(program, sources, zero=zero) for program in programs]
        for note in dict.fromkeys(note for one in found for note in one.notes):
            report.detail(f"kinst: {note}")
        for loss in dict.fromkeys(loss for one in found for loss in one.losses):
            report.leave_out(f"kinst: {loss}")
        programs = tuple(one.program for one in found)
        progress(1.0)
        report.stage("inline functions")
    if any(map(has_locals, programs)):
        if types is None:
            raise KinstError("local variables can be read only in a kernel")
        known = ImageLocals(kernel, frame_address, images, types)
        progress = report.if_long("finding local variables")
        read = [
            expand_locals(program, known.places, known.find, known.nearest, known.names, progress)
            for program in programs
        ]
        progress(1.0)
        for note in (note for one in read for note in one.notes):
            report.leave_out(f"kinst: {note}")
        programs = tuple(one.program for one in read)
        report.stage("local variables")
    return programs


# Source lines


class SourceLines:
    """Lookup of source lines in the debug information of the kernel and, if there are debug files,
    of its modules.
    """

    def __init__(self, images: LoadedImages, kernel: Kernel) -> None:
        self._images = images
        self._kernel = kernel

    def at(self, function: Function, address: int) -> str:
        """Return FILE:LINE of the instruction at an address in a function, "" if it is not known.

        Raises KinstError if debug information is damaged or missing.
        """
        image = self._images.of(function.module)
        if image is None:
            return ""
        entry, linked = image.back(function.address), image.back(address)
        if entry is None or linked is None:
            return ""
        span = image.debug.line_at(function.name, linked, entry)
        return f"{span.file}:{span.line}" if span else ""

    def _die(self, image: LoadedImage | None, function: Function) -> FunctionDie:
        entry = image.back(function.address) if image is not None else None
        if image is not None and entry is not None:
            die = image.debug.function_at(function.name, entry)
            if die is not None:
                return die
        raise KinstError(f"no debug information tells the lines of {function.name}")

    def _ranges(
        self, image: LoadedImage, function: Function, line: SourceLine
    ) -> Sequence[tuple[int, int]]:
        """Return the linked addresses [low, high) of the instructions of a source line in a
        function.

        Raises KinstError if the line has no instruction there.
        """
        die, lines = self._die(image, function), image.debug.lines
        file = line.file or Path(die.decl_file).name
        ranges = _line_ranges(image, die.unit, file, line.number, die.ranges, every=line.every)
        ranges = ranges or _first_ranges(image, die.unit, file, line.number, die.ranges)
        if ranges:
            return ranges
        if called := _inlined_calls(image, file, line.number, die.ranges):
            raise KinstError(
                f"{function.name} has no instruction of {file}:{line.number}",
                f"line {line.number} calls {' and '.join(f'{name}()' for name in called)}, inlined:"
                f" {', '.join(f'{of_instructions()}::{name}:entry' for name in called)}",
            )
        has = {span.line for span in lines.of_file(die.unit, file, die.ranges)}
        near = sorted(sorted(has, key=lambda n: abs(n - line.number))[:NEAR])
        raise KinstError(
            f"{function.name} has no instruction of {file}:{line.number}",
            f"the nearest lines with instructions: {', '.join(map(str, near))}" if near else "",
        )

    def find_file(self, file: SourceFile) -> Sequence[ProbePattern]:
        """Return probe descriptions for the functions of a source file or, if `file` has a line
        number, for the instructions of that line.

        Raises KinstError if there are no such functions or instructions.
        """
        image = self._images.of(file.module or KERNEL)
        if image is None or not image.debug.has_dwarf:
            raise KinstError(f"no debug information tells the functions of {file.name}")
        index = image.debug.index
        declared = index.declared_in(file.name)
        if not declared:
            names = {name.rpartition("/")[2] for name in index.file_names()}
            near = get_close_matches(file.name, sorted(names), 1)
            hint = f"did you mean {near[0]}?" if near else "FILE is its name, without folders"
            raise KinstError(f"no function is declared in {file.name}", hint)
        found = self._of_functions(image, declared)
        if file.number:
            found = self._of_line(image, declared, file)
        if not found:
            raise KinstError(f"no function of {file.name} has code")
        return found

    def _of_functions(
        self, image: LoadedImage, declared: Sequence[FunctionDie]
    ) -> Sequence[ProbePattern]:
        lows = {low for die in declared for low, _ in die.ranges}
        found: dict[int, ProbePattern] = {}
        for address in filter(None, map(image.move, sorted(lows))):
            function = self._kernel.at(address)
            # Boot code is not in memory any more.
            if function is not None and self._kernel.beginning(function):
                pattern = ProbePattern(of_instructions(), function.module, function.name)
                found.setdefault(function.address, pattern)
        return list(found.values())

    def _of_line(
        self, image: LoadedImage, declared: Sequence[FunctionDie], file: SourceFile
    ) -> Sequence[ProbePattern]:
        """Return probe descriptions for the instructions of a line of a source file.

        The line belongs to the last function that is declared at or before it. The instructions may
        be in that function or in its inlined copies. If several files include a header, the kernel
        may have several copies of a function in it, and the result has the instructions of all.

        Args:
            declared: the functions that are declared in the file.
        """
        index, lines = image.debug.index, image.debug.lines
        starts = [die.decl_line for die in declared]
        before = [line for line in starts if line <= file.number]
        dies = [die for die in declared if die.decl_line == max(before or [min(starts)])]
        places = [(die.unit, die.ranges) for die in dies]
        places += [(c.unit, c.ranges) for die in dies for c in index.copies_of(die)]
        pieces: set[tuple[int, int]] = set()
        has: set[int] = set()
        for unit, ranges in dict.fromkeys(places):
            has |= {span.line for span in lines.of_file(unit, file.name, ranges)}
            pieces.update(
                _line_ranges(image, unit, file.name, file.number, ranges, every=file.every)
            )
        if not pieces:
            for unit, ranges in dict.fromkeys(places):
                pieces.update(_first_ranges(image, unit, file.name, file.number, ranges))
        patterns: dict[ProbePattern, None] = {}
        for low, high in sorted(pieces):
            address = image.move(low)
            function = self._kernel.at(address) if address is not None else None
            if function is None or address is None:
                continue
            for one in self._kernel.instructions(function):
                if 0 <= one.address - address < high - low:
                    patterns[_instruction(function, one)] = None
        if not patterns:
            near = sorted(sorted(has, key=lambda n: abs(n - file.number))[:NEAR])
            raise KinstError(
                f"no instruction of this kernel is of {file.name}:{file.number}",
                f"the nearest lines with instructions: {', '.join(map(str, near))}" if near else "",
            )
        return list(patterns)

    def find(self, line: SourceLine) -> Sequence[ProbePattern]:
        """Return probe descriptions for the instructions of a source line in the functions that it
        names.

        Raises KinstError if the line has no instruction in these functions.
        """
        functions = self._kernel.find(line.module, line.function)
        if not functions:
            raise no_function(self._kernel, line.module, line.function)
        found = []
        for function in functions:
            image = self._images.of(function.module)
            if image is None:
                raise KinstError(f"no debug information tells the lines of {function.name}")
            ranges = self._ranges(image, function, line)
            moved = [(image.move(low), high - low) for low, high in ranges]
            for instruction in self._kernel.instructions(function):
                at = instruction.address
                if any(low is not None and 0 <= at - low < size for low, size in moved):
                    found.append(_instruction(function, instruction))
        return found


def _line_ranges(
    image: LoadedImage,
    unit: int,
    file: str,
    line: int,
    within: Sequence[tuple[int, int]],
    *,
    every: bool,
) -> Sequence[tuple[int, int]]:
    """Return the linked addresses [low, high) of a source line's instructions.

    Args:
        unit: the compilation unit.
        within: linked ranges [low, high) outside of which instructions are left out.
        every: True for all instructions of the line; False for the first instruction of the line in
            the function, and the first in each inlined copy.
    """
    lines, index = image.debug.lines, image.debug.index
    if every:
        return [(one.low, one.high) for one in lines.of_line(unit, file, line, within)]
    firsts: dict[int, int] = {}
    for one in lines.statements_of_line(unit, file, line, within):
        copy = next(iter(index.copies_at(one.address)), None)
        firsts.setdefault(-1 if copy is None else copy.die, one.address)
    return [(address, address + 1) for address in firsts.values()]


def _first_ranges(
    image: LoadedImage, unit: int, file: str, line: int, within: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, int]]:
    """Return the lowest instruction of a source line, as a list of one linked range [low, high).

    Empty if the line has no code. This is for lines whose code the compiler has moved between the
    code of other lines: no statement begins at such a line, so _line_ranges() does not find it.

    Args:
        unit: the compilation unit.
        within: linked ranges [low, high) outside of which instructions are left out.
    """
    lows = [span.low for span in image.debug.lines.of_line(unit, file, line, within)]
    return [(min(lows), min(lows) + 1)] if lows else []


def _inlined_calls(
    image: LoadedImage, file: str, line: int, within: Sequence[tuple[int, int]]
) -> Sequence[str]:
    """Return the names of the functions that a source line calls and that the compiler inlined
    there.

    Args:
        within: linked ranges [low, high) of the function with the calls.
    """
    tail = "/" + file.lstrip("/")
    names = [
        copy.function
        for low, high in within
        for copy, _ in image.debug.index.copies_within(low, high)
        if copy.call_line == line and ("/" + copy.call_file).endswith(tail)
    ]
    return list(dict.fromkeys(names))


def _instruction(function: Function, instruction: Instruction) -> ProbePattern:
    offset = str(instruction.address - function.address)
    return ProbePattern(of_instructions(), function.module, function.name, offset)


def source_of(
    kernel: Kernel, images: LoadedImages, say: Callable[[str], None]
) -> Callable[[Function, int], str]:
    """Return a function that looks up FILE:LINE of an address in a function.

    The returned function gives "" if debug information is missing, and calls `say` once with the
    reason.
    """
    lines = SourceLines(images, kernel)
    told: list[KinstError] = []

    def source(function: Function, address: int) -> str:
        if told:
            return ""
        try:
            return lines.at(function, address)
        except KinstError as error:
            told.append(error)
            say(f"kinst: no source lines: {error}")
            return ""

    return source


# Local variables


def call_convention(isa: Isa) -> CallConvention:
    """Return the facts of an ISA's calling convention that are needed to compute values of a
    caller.
    """
    names = isa.dwarf_registers
    own = [r.d_name for r in isa.registers if r.slot == isa.sp_slot and r.d_name in names]
    kept = frozenset(names.index(name) for name in isa.kept_registers)
    return CallConvention(
        isa.returns_of, names.index(own[0]) if own else -1, kept, isa.signature_bits
    )


class ImageLocals:
    """Lookup of local variables in the debug information of a running kernel, or of a file.

    Args:
        frame_address: returns (register's D name, offset) of the canonical frame address at an
            instruction, None if it is not known.
        types: the types with which the D program is compiled. A structure in the type of a local
            variable is taken from `types`, by its tag, instead of from DWARF.
    """

    def __init__(
        self,
        kernel: Kernel,
        frame_address: FrameAddress,
        images: LoadedImages,
        types: TypeSource,
    ) -> None:
        self._kernel = kernel
        self._frame_address = frame_address
        self._images = images
        self._types = types
        self._registers = kernel.isa.dwarf_registers
        self._calls = call_convention(kernel.isa)
        self._providers = load_all()

    def places(self, pattern: ProbePattern) -> Sequence[MatchedInstruction]:
        """Return the instructions at which the probes of a description fire.

        Raises KinstError if there are none.
        """
        found = [
            f for p in self._providers.values() for f in p.match(pattern, self._kernel) if f.site
        ]
        if not found:
            raise KinstError(
                f"{pattern}: local variables can be read only at instructions of functions"
            )
        # In the provider kinst each instruction is a probe of its own; in fbt it is not.
        fixed = len({f.name for f in found}) < len(found)
        made = []
        for probe in found:
            assert probe.site is not None
            name = probe.name
            exact = separated(ProbePattern(*name.parts))
            text = f"{probe.site.function.name}+{probe.site.offset}"
            made.append(MatchedInstruction(exact, probe.site.address, text, fixed))
        return made

    def find(self, matched: MatchedInstruction, name: str, inlined: str) -> Local:
        """Return the type and location of a local variable at an instruction.

        Args:
            inlined: the inline function whose variable is meant; "" for the innermost variable of
                that name.

        Raises KinstError if no function at the instruction has such a variable.
        """
        locals_, frame, function = self._at(matched.address)
        found = locals_.find(function, frame, name, inlined)
        if found is not None:
            return _with_types(found, self._types)
        names = locals_.names(function, frame.address)
        shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        raise KinstError(
            f"no local variable {name} at {matched.text}", f"there are {shown}" if shown else ""
        )

    def names(self, matched: MatchedInstruction, inlined: str) -> Sequence[str]:
        """Return the names of the local variables at an instruction, innermost scope first.

        Args:
            inlined: the inline function whose variables are meant; "" for the variables of all
                functions at the instruction.

        Raises KinstError without debug information.
        """
        locals_, frame, function = self._at(matched.address)
        return locals_.names(function, frame.address, inlined)

    def _at(self, address: int) -> tuple[DwarfLocals, InspectedFrame, str]:
        function = self._kernel.at(address)
        if function is None:
            raise KinstError(f"{address:#x} is in no function")
        debug, linked, move = self._linked(function.module or KERNEL, address)
        found = debug.locals(self._registers, self._calls)
        if found is None:
            raise KinstError(f"{debug.module} has no debug information about local variables")
        rule = self._frame_address(address)
        cfa = None if rule is None else f"(regs[{rule[0]}] + {rule[1]})"
        first = self._kernel.parts(function)[0].address == address
        place = partial(_placed, debug, move)
        return found, InspectedFrame(linked, first, cfa, place), function.name

    def _linked(self, module: str, address: int) -> tuple[DebugInfo, int, Move]:
        """Return (debug information, linked address, move) for a running address in a module.

        `move` maps linked addresses of the module to running addresses.
        """
        image = self._images.of(module)
        if image is None:
            raise KinstError(
                f"module {module} has no debug file that fits: its local variables are not known",
                "--debug DIR says where it is",
            )
        linked = image.back(address)
        if linked is None:
            raise KinstError(f"{address:#x} is in no section of module {module}'s file")
        return image.debug, linked, image.move

    def nearest(self, matched: MatchedInstruction, name: str, inlined: str) -> str:
        """Return a hint that names the instruction nearest to `matched` at which a variable can be
        read.
        """
        function = self._kernel.at(matched.address)
        if function is None:
            return ""
        rows = self._kernel.instructions(function)
        order = sorted(rows, key=lambda i: abs(i.address - matched.address))[:FAR]
        for instruction in order:
            locals_, frame, symbol = self._at(instruction.address)
            found = locals_.find(symbol, frame, name, inlined)
            if found is not None and not found.reason:
                offset = instruction.address - function.address
                return f"the nearest instruction where it lives is +{offset}"
        return "it lives nowhere in this function"


def _with_types(local: Local, types: TypeSource) -> Local:
    """Return a local variable whose type has the structures of `types` in place of DWARF's."""
    return Local(
        local.name, as_named(local.type, types), local.function, local.pieces, local.reason
    )


def _placed(debug: DebugInfo, move: Move, address: int) -> int:
    """Return the running address of a static variable from its linked address.

    Raises NotHereError for a per-CPU variable, and for one in a part of a module that is not
    loaded.
    """
    if debug.is_per_cpu(address):
        raise NotHereError("it is per-CPU: each CPU has its own")
    found = move(address)
    if found is None:
        raise NotHereError("it is in a part of the module that is not loaded")
    return found
