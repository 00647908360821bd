"""A function's live instructions, its flow graph and its source lines as values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from kinst.core.code import CodeBlock, CodeEdge, CodeInstruction, FunctionCode
from kinst.core.errors import KinstError
from kinst.core.inline import SourcePlace
from kinst.core.instruction import Flow
from kinst.core.kernel import Kernel, no_function
from kinst.core.probe import Function, gaps_told
from kinst.image.loaded import LoadedImages
from kinst.sugar.graph import Edge, Graph
from kinst.sugar.inline import dead_ends_of

Places = Callable[[Function, int], SourcePlace | None]


def named_functions(kernel: Kernel, names: Iterable[str]) -> list[Function]:
    """The functions that names, globs and MODULE:NAME mean.  Raises KinstError where no function
    has the name."""
    found: list[Function] = []
    for one in names:
        module, _, name = one.rpartition(":")
        functions = kernel.find(module, name)
        if not functions:
            raise no_function(kernel, module, name)
        found += functions
    return found


def codes_of(kernel: Kernel, functions: Iterable[Function], places: Places) -> list[FunctionCode]:
    """Each of the functions once; parts that were moved away come with theirs.  Raises KinstError
    for a function without instructions."""
    whole = {parts[0].address: parts for parts in map(kernel.parts, functions)}
    dead_ends = dead_ends_of(kernel)
    return [_code_of(kernel, parts, places, dead_ends) for parts in whole.values()]


def no_place(function: Function, address: int) -> SourcePlace | None:
    """For whom source lines do not matter."""
    return None


def _code_of(
    kernel: Kernel, parts: Sequence[Function], places: Places, dead_ends: Collection[int]
) -> FunctionCode:
    """parts: of one function, the main one first.  dead_ends: addresses of functions that never
    return."""
    graph = Graph(kernel, parts, (), (), dead_ends)
    gaps = tuple(kernel.gaps(parts))
    if not graph.starts:
        hint = gaps_told(gaps) if gaps else ""
        raise KinstError(f"{parts[0].name} has no instructions that decode", hint)
    found: dict[int, CodeInstruction] = {}
    for part in parts:
        instructions = kernel.instructions(part)
        refused = kernel.refused([(one.address, one.size) for one in instructions])
        rows = zip(instructions, kernel.flows(part), refused, strict=True)
        for one, flow, stays in rows:
            # Of a jump to a thunk the name of that is worth seeing.
            target = kernel.isa.flow(one.code, one.address).target
            outside = target is not None and not graph.is_instruction(target)
            found[one.address] = CodeInstruction(
                one.address, one.code, one.text, flow, part, places(part, one.address), stays,
                target, _name(kernel, target) if outside and target is not None else "",
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
    """What places() of the images say, from indexes that are made where they are missing."""
    if images is None:
        return no_place
    known: dict[str, bool] = {}

    def indexed(module: str) -> bool:
        image = images.of(module)
        try:
            return image is not None and image.debug.index is not None
        except KinstError:  # it has no debug information
            return False

    def place(function: Function, address: int) -> SourcePlace | None:
        if function.module not in known:
            known[function.module] = indexed(function.module)
        return images.place(function.module, address) if known[function.module] else None

    return place
