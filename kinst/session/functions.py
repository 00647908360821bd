"""Functions of a kernel as plain values: instructions, flow graphs, source lines, inlined
copies.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import translate
from pathlib import PurePosixPath

from kinst.core.code import CodeBlock, CodeEdge, CodeInstruction, FunctionCode
from kinst.core.errors import AmbiguousError, KinstError
from kinst.core.inline import SourcePlace
from kinst.core.instruction import Flow, Instruction
from kinst.core.isa import StoppingIsa
from kinst.core.kernel import Kernel, all_named, no_function
from kinst.core.probe import Function, gaps_told
from kinst.core.source import CodeImage, CodeLine, InlinedCode, SourceFunction
from kinst.core.system import System
from kinst.core.units import counted
from kinst.core.words import MASK, stem_of
from kinst.image.elf_file import SHF_EXECINSTR, ElfSection
from kinst.image.loaded_images import LoadedImage, LoadedImages
from kinst.sugar.graph import Edge, Graph
from kinst.sugar.inline import dead_ends_of

_SOURCE_FILE = re.compile(r"\.(c|h|S|inc|rs)\Z")
_GLOB = re.compile(r"[*?\[]")
_SHOWN_CALLERS = 3  # functions with copies of an inline function that a hint names
_MOST_CALLERS = 20  # functions with copies that are looked up for this hint
Places = Callable[[Function, int], SourcePlace | None]


def named_functions(
    kernel: Kernel, images: LoadedImages | None, names: Iterable[str]
) -> list[Function]:
    """Return the functions that match names, globs and MODULE:NAME, in the order of the names.

    Raises KinstError if a name matches no function.

    Args:
        images: debug information that says which functions are inline; None without any.
    """
    found: list[Function] = []
    for pattern in names:
        module, _, name = pattern.rpartition(":")
        functions = _find(kernel, module, name)
        if not functions:
            raise _absent(kernel, images, module, name)
        found += functions
    return found


def _absent(kernel: Kernel, images: LoadedImages | None, module: str, name: str) -> KinstError:
    """Return the error for a function that does not exist. If the function is inline, the hint
    names functions that contain copies of it, those with most copies first."""
    image = images.of(module) if images is not None else None
    if image is None or not image.debug.has_dwarf or image.debug.lacks_function(name):
        return no_function(kernel, module, name)
    copies = Counter(copy.caller for copy in image.debug.copies(name))
    callers = [
        function
        for caller, _ in copies.most_common(_MOST_CALLERS)
        for function in all_named(kernel, caller)
        if not kernel.function_refusal(function)
    ]
    if not callers:
        return no_function(kernel, module, name)
    told = counted(copies.total(), "inlined copy", "inlined copies")
    names = dict.fromkeys(one.name for one in callers[:_SHOWN_CALLERS])
    return KinstError(
        f"{name} has no code of its own, but {told}",
        f"name a function with a copy: {' or '.join(names)}",
    )


def instructions_outside(
    isa: StoppingIsa, system: System, sections: Iterable[ElfSection]
) -> list[Instruction]:
    """Return the instructions that belong to no function that is known, without padding.

    Args:
        sections: the sections of the file whose functions the system has.
    """
    found: list[Instruction] = []
    functions = sorted((one.address, one.address + one.size) for one in system.functions())
    for section in sections:
        if not section.flags & SHF_EXECINSTR or not section.address:
            continue
        at = section.address + system.facts.slide & MASK
        end = at + section.size
        inside = [one for one in functions if at <= one[0] < end]
        for low, high in (*inside, (end, end)):
            if at < low:
                code = system.code(at, low - at)
                skipped = isa.padding(code)
                decoded = isa.decode(code[skipped:], at + skipped)
                found += [one for one in decoded if isa.padding(one.code) < len(one.code)]
            at = max(at, high)
    return found


def _find(kernel: Kernel, module: str, name: str) -> Sequence[Function]:
    """Return what kernel.find() returns. The hint of an error is a pattern, not a probe."""
    try:
        return kernel.find(module, name)
    except AmbiguousError as error:
        raise KinstError(error.message, f"choose one: {' or '.join(error.names)}") from error


def codes_of(kernel: Kernel, functions: Iterable[Function], places: Places) -> list[FunctionCode]:
    """Return the instructions and the flow graph of each function, with its cold parts.

    A function that is given several times is returned once.

    Args:
        places: returns the source place (file, line, inlined functions) of an instruction.

    Raises KinstError for a function without instructions.
    """
    whole = {parts[0].address: parts for parts in map(kernel.parts, functions)}
    dead_ends = dead_ends_of(kernel)
    return [_code_of(kernel, parts, places, dead_ends) for parts in whole.values()]


def no_place(function: Function, address: int) -> SourcePlace | None:
    """Return None as the source place of every instruction.

    Callers of codes_of() that need no source lines pass this function as `places`.
    """
    return None


def _code_of(
    kernel: Kernel, parts: Sequence[Function], places: Places, dead_ends: Collection[int]
) -> FunctionCode:
    """Return the instructions and the flow graph of one function.

    Args:
        parts: the function's parts, the main one first, then the cold ones.
        places: returns the source place (file, line, inlined functions) of an instruction.
        dead_ends: addresses of the functions that never return.
    """
    graph = Graph(kernel, parts, (), (), dead_ends)
    gaps = tuple(kernel.gaps(parts))
    if not graph.starts:
        hint = gaps_told(gaps) if gaps else ""
        raise KinstError(f"{parts[0].name} has no instructions that decode", hint)
    found: dict[int, CodeInstruction] = {}
    for part in parts:
        instructions = kernel.instructions(part)
        refused = kernel.refused(
            [(instruction.address, instruction.size) for instruction in instructions]
        )
        rows = zip(instructions, kernel.flows(part), refused, strict=True)
        for instruction, flow, stays in rows:
            # Name the target of a jump to a thunk too: it tells what the jump does.
            target = kernel.isa.flow(instruction.code, instruction.address).target
            outside = target is not None and not graph.is_instruction(target)
            found[instruction.address] = CodeInstruction(
                instruction.address, instruction.code, instruction.text, flow, part,
                places(part, instruction.address), stays, target,
                _name(kernel, target) if outside and target is not None else "",
            )  # fmt: skip
    blocks = []
    for node, edges in enumerate(graph.edges):
        inside = tuple(found[address] for address in graph.instructions(node))
        flow = inside[-1].flow
        computed = flow.destination if flow.kind == "indirect" and flow.fault is None else ""
        blocks.append(CodeBlock(inside, tuple(_edges(edges, flow)), computed))
    return FunctionCode(tuple(parts), tuple(blocks), graph.root, gaps)


def _name(kernel: Kernel, address: int) -> str:
    there = kernel.at(address)
    if there is None:
        return f"{address:#x}"
    offset = address - there.address
    return f"{there.name}+{offset}" if offset else there.name


def _edges(edges: Sequence[Edge], flow: Flow) -> list[CodeEdge]:
    straight = len(edges) == 1
    return [
        CodeEdge(
            edge.to,
            _kind(edge, flow, first=k == 0),
            edge.condition if edge.known and not straight else "",
        )
        for k, edge in enumerate(edges)
    ]


def _kind(edge: Edge, flow: Flow, *, first: bool) -> str:
    if edge.fault:
        return "fault"
    if flow.kind == "branch":
        return "taken" if first else "next"
    return {"jump": "jump", "return": "return", "indirect": "computed"}.get(flow.kind, "next")


def places_of(images: LoadedImages | None) -> Places:
    """Return a function that looks up the source place (file, line, inlined functions) of an
    instruction in the images.

    The returned function gives None without debug information. It builds a debug index that is not
    in the cache, which takes seconds.
    """
    if images is None:
        return no_place
    known: dict[str, bool] = {}

    def indexed(module: str) -> bool:
        image = images.of(module)
        try:
            return image is not None and image.debug.index is not None
        except KinstError:  # no debug information
            return False

    def place(function: Function, address: int) -> SourcePlace | None:
        if function.module not in known:
            known[function.module] = indexed(function.module)
        return images.place(function.module, address) if known[function.module] else None

    return place


# Source lines and inlined copies.


def find_functions(patterns: Iterable[str], kernel: Kernel, images: LoadedImages) -> list[Function]:
    """Return the functions that any of the patterns match, each once, with their cold parts.

    A pattern is one of these:

        FUNCTION or a glob of functions;
        MODULE: or MODULE:FUNCTION;
        a source file or a glob of files, in which * does not match /: fs/*.c, read_write.c;
        a folder: fs/ext4/ or fs/ext4.

    A file or a folder matches the functions that are declared in it. Raises KinstError for a
    pattern that matches no function.
    """
    found: dict[int, Function] = {}
    for pattern in patterns:
        for function in _meant(pattern, kernel, images):
            found.setdefault(function.address, function)
    return list(found.values())


def _meant(pattern: str, kernel: Kernel, images: LoadedImages) -> Sequence[Function]:
    if "/" in pattern or _SOURCE_FILE.search(pattern):
        declared = _of_files(pattern, kernel, images)
        if declared:
            return declared
        raise KinstError(
            f"{pattern}: no function of the running kernel is declared in such a file",
            "as in the kernel's source: 'fs/*.c', fs/ext4; modules must be loaded (--module)",
        )
    module, colon, name = pattern.rpartition(":")
    if colon and not name:
        name = "*"
    functions = _find(kernel, module, name)
    if not functions and not colon:
        functions = kernel.find(pattern, "*") or _of_files(f"{pattern}/", kernel, images)
    if not functions:
        raise _absent(kernel, images, module, name)
    return [part for function in functions for part in kernel.parts(function)]


def _of_files(pattern: str, kernel: Kernel, images: LoadedImages) -> Sequence[Function]:
    wanted = matcher(pattern)
    found: list[Function] = []
    for image in (images.kernel, *images.modules()):
        if not image.debug.has_dwarf:
            continue
        for die in image.debug.index.functions_of(wanted):
            starts = (image.move(low) for low, _ in die.ranges)
            found += [at for start in starts if start is not None and (at := kernel.at(start))]
    return found


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate that tells whether the path of a source file matches a pattern.

    The pattern may be a file or a glob of files: the last parts of the path must match it. It may
    also be a folder: then the last parts of any folder in the path must match it.
    """
    parts = PurePosixPath(pattern).parts
    size = len(parts)
    match = [re.compile(translate(part)).match for part in parts]
    of_files = bool(_SOURCE_FILE.search(pattern) or _GLOB.search(parts[-1])) and pattern[-1] != "/"

    def meant(path: str) -> bool:
        names = PurePosixPath(path).parts
        ends = (len(names),) if of_files else range(size, len(names))
        tails = (names[end - size : end] for end in ends if end >= size)
        return any(all(one(name) for one, name in zip(match, tail, strict=True)) for tail in tails)

    return meant


def source_functions(functions: Sequence[Function], images: LoadedImages) -> list[SourceFunction]:
    """Return the source lines and inlined copies of each function, in the same order.

    Raises KinstError if debug information is damaged.
    """
    return [_described(function, images.of(function.module)) for function in functions]


def _described(function: Function, image: LoadedImage | None) -> SourceFunction:
    name = stem_of(function.name)
    entry = image.back(function.address) if image is not None else None
    die = None
    if image is not None and entry is not None and image.debug.has_dwarf:
        die = image.debug.function_at(function.name, entry)
    if image is None or entry is None or die is None:
        return SourceFunction(function, name, "", 0, (), ())
    end = entry + function.size
    spans = image.debug.lines.spans(die.unit)
    first = bisect_left(spans, entry, key=lambda span: span.low)
    last = bisect_left(spans, end, key=lambda span: span.low)
    lines = tuple(
        CodeLine(low, low + span.high - span.low, span.file, span.line)
        for span in spans[first:last]
        if (low := image.move(span.low)) is not None
    )
    inlined = tuple(
        InlinedCode(
            copy.function, of.decl_file, of.decl_line,
            None if copy.entry is None else image.move(copy.entry),
            tuple(
                (start, start + high - low)
                for low, high in copy.ranges
                if entry <= low < end and (start := image.move(low)) is not None
            ),
        )
        for copy, of in image.debug.index.copies_within(entry, end)
    )  # fmt: skip
    return SourceFunction(function, die.name, die.decl_file, die.decl_line, lines, inlined)


def code_image(image: LoadedImage) -> CodeImage:
    """Return where an image's code lies in memory and where it was linked."""
    found = sorted(
        (low, low + section.size, section.address)
        for section in image.debug.placed.sections
        if section.flags & SHF_EXECINSTR and section.size
        and (low := image.move(section.address)) is not None
    )  # fmt: skip
    low, _, linked = found[0] if found else (0, 0, 0)
    high = max((high for _, high, _ in found), default=0)
    return CodeImage(image.debug.module, low, high, linked, str(image.debug.path))
