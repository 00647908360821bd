"""Expansion of kinst::F:entry and kinst::F:return in the syntax tree to plain probe descriptions.

The description of an inline function becomes kinst::CALLER:OFFSET for each of its inlined copies,
and fbt::F:entry or fbt::F:return for its out-of-line code if there is any. The description of a
function that is never inlined becomes the fbt probe alone. A conditional jump out of a copy is a
return only if the jump is taken. For such a site kinst adds a clause directly after the original
one. The predicate of the added clause has the condition on which the jump is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from kinst.core.dataclass import dataclass
from kinst.core.errors import DError, KinstError
from kinst.core.inline import DebugIndex, FunctionDie
from kinst.core.kernel import Kernel
from kinst.core.probe import Crossing, Function, Gap, ProbePattern, gaps_told
from kinst.core.types import KERNEL
from kinst.core.units import counted
from kinst.dlang.api import parse_text
from kinst.dlang.syntax import tree
from kinst.providers import of_functions, of_instructions
from kinst.sugar.graph import Graph
from kinst.sugar.inline import (
    CopyExit,
    CopyRegion,
    Stay,
    entry_address,
    exits,
    graphs_of,
    regions_of,
    stay,
)

NAMES = ("entry", "return")
MOST_NAMES = 64  # largest number of functions that one glob may match
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Sources:
    """What the expansion reads.

    Attributes:
        kernel: the running kernel.
        index: debug information whose linked addresses are already converted to running addresses.
        progress: called with the part of a function's copies that are examined, 0 to 1.
    """

    kernel: Kernel
    index: DebugIndex
    progress: Callable[[float], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Expansion:
    """The result of an expansion: the expanded program and messages for the user.

    Attributes:
        program: the program after the expansion of its descriptions (expand()), or of its local
            variables (expand_locals()).
        notes: lines for the user, shown with -v.
        losses: lines for the user about copies that cannot be traced, always shown.
    """

    program: tree.ProgramNode
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()


def is_sugar(pattern: ProbePattern) -> bool:
    """Return whether a description is kinst::F:entry or kinst::F:return."""
    return (
        pattern.provider == of_instructions() and bool(pattern.function) and pattern.name in NAMES
    )


def has_sugar(program: tree.ProgramNode) -> bool:
    """Return whether a program has a description kinst::F:entry or kinst::F:return."""
    return any(is_sugar(d.pattern) for c in program.clauses for d in c.descriptions)


def expand(program: tree.ProgramNode, sources: Sources, *, zero: bool = False) -> Expansion:
    """Return a program in which plain probe descriptions replace every description kinst::F:entry
    and kinst::F:return, with messages for the user.

    Args:
        zero: whether to leave out descriptions that cannot be replaced, and clauses that then have
            no description (-Z).

    Raises:
        DError: a description cannot be replaced: its function is unknown or has no inlined copy, or
            its glob matches too many functions.
    """
    expander = _Expander(sources, zero)
    items: list[tree.ItemNode] = []
    for item in program.items:
        items += expander.clause(item) if isinstance(item, tree.ClauseNode) else [item]
    return Expansion(tree.ProgramNode(tuple(items)), tuple(expander.notes), tuple(expander.losses))


# A plain description; the inline function whose copy it is in ("" if it is in no copy); the number
# of inline functions that this copy is nested in.
_Named = tuple[ProbePattern, str, int]


# A rank, the inline function, and the program's description that stands for the site. If several
# nested copies have a site at one instruction, the clause for the lowest rank is first.
_Meant = tuple[int, str, tree.DescriptionNode]


def _by_depth(one: _Meant) -> int:
    return one[0]


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The sites that a description kinst::F:entry or kinst::F:return stands for.

    Attributes:
        always: sites that fire whenever their instruction runs.
        sometimes: (condition, site): the site fires only if the condition, a D expression, is true.
    """

    always: tuple[_Named, ...]
    sometimes: tuple[tuple[str, _Named], ...] = ()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Inlined copies to trace, all with the same entry address (a CopyRegion).

    Attributes:
        region: the copies.
        graph: flow graph of the function that contains the copies.
        inside: for return probes, the nodes of the graph in which control is inside the copies;
            None for entry probes.
        plain: the sites to plant if kinst may plant every instruction.
    """

    region: CopyRegion
    graph: Graph
    inside: Stay | None
    plain: list[CopyExit]

    def sites_to_plant(self, refused: Callable[[int], bool]) -> list[CopyExit] | None:
        """Return the sites to plant: the entry or the returns of the copies. None if the
        instruction at the entry cannot be planted, and no other instruction can replace it.

        Args:
            refused: tells whether the instruction at an address cannot be planted.
        """
        entry = entry_address(self.region.entry, self.graph, refused)
        if entry is None:
            return None
        if self.inside is None:
            return [CopyExit(entry)]
        if any(refused(one.address) for one in self.plain):
            return exits(self.inside, self.graph, refused)
        return self.plain


class _Expander:
    def __init__(self, sources: Sources, zero: bool) -> None:
        self._zero = zero
        self._kernel = sources.kernel
        self._index = sources.index
        self._progress = sources.progress
        self._known: dict[ProbePattern, _Meaning] = {}
        self.notes: list[str] = []
        self.losses: list[str] = []

    def clause(self, clause: tree.ClauseNode) -> list[tree.ClauseNode]:
        """Return the clauses that replace a clause of the program.

        The first clause has the sites that always fire, and the descriptions that need no
        expansion. Some sites fire only on a condition, such as a conditional jump out of a copy.
        For each different condition there is a further clause, with the condition in its predicate.

        At one site, control may enter or leave several inlined copies that are nested in each
        other. Then each of these copies has a clause with the site, so that the site fires once for
        each copy. At an entry, the clause of the outermost copy is first; at a return, that of the
        innermost.
        """
        layers: dict[str, list[list[tree.DescriptionNode]]] = {"": []}
        for condition, places in self._replacements(clause).items():
            rows = layers.setdefault(condition, [])
            for pattern, meant in places.items():
                for layer, (_, name, description) in enumerate(sorted(meant, key=_by_depth)):
                    if len(rows) == layer:
                        rows.append([])
                    crossing = Crossing(description.pattern.name, name, layer) if name else None
                    named = replace(pattern, library=description.pattern.library)
                    plain = tree.DescriptionNode(named, description.span, name, crossing)
                    rows[layer].append(plain)
        return [
            replace(
                clause, descriptions=tuple(row), predicate=_with_condition(condition, clause)
            )
            for condition, rows in layers.items()
            for row in rows
            if row
        ]  # fmt: skip

    def _replacements(self, clause: tree.ClauseNode) -> dict[str, dict[ProbePattern, list[_Meant]]]:
        """Return the new descriptions that replace a clause's descriptions. A description that is
        neither kinst::F:entry nor kinst::F:return is replaced by itself.

        Returns:
            condition on which sites fire (a D expression; "" if they always fire) -> new
            description -> the descriptions of the clause that the new description replaces.
        """
        sites: dict[str, dict[ProbePattern, list[_Meant]]] = {}
        for description in clause.descriptions:
            meaning = _Meaning(((description.pattern, "", 0),))
            if is_sugar(description.pattern):
                meaning = self._meaning(description)
            named = [*(("", p) for p in meaning.always), *meaning.sometimes]
            for condition, (pattern, name, depth) in named:
                places = sites.setdefault(condition, {})
                order = depth if description.pattern.name == "entry" else -1 - depth
                places.setdefault(pattern, []).append((order, name, description))
        return sites

    def _meaning(self, description: tree.DescriptionNode) -> _Meaning:
        pattern = description.pattern
        if pattern not in self._known:
            try:
                self._known[pattern] = self._find(pattern)
            except KinstError as error:
                if not self._zero:
                    span = description.span
                    raise DError(error.message, span, "D_PDESC_INVAL", error.hint) from error
                self.notes.append(f"{pattern} is left out: {error}")
                self._known[pattern] = _Meaning(())
        return self._known[pattern]

    def _find(self, pattern: ProbePattern) -> _Meaning:
        if not _GLOB & set(pattern.function):
            return self._function(pattern, pattern.function, alone=True)
        names = {n for n in self._index.inline_names() if fnmatchcase(n, pattern.function)}
        names |= {f.name for f in self._kernel.find(pattern.module, pattern.function)}
        if len(names) > MOST_NAMES:
            raise KinstError(
                f"{pattern} means {len(names)} functions, more than {MOST_NAMES}",
                "use a narrower glob",
            )
        always: list[_Named] = []
        sometimes: list[tuple[str, _Named]] = []
        for name in sorted(names):
            meaning = self._function(pattern, name, alone=False)
            always += meaning.always
            sometimes += meaning.sometimes
        return _Meaning(tuple(always), tuple(sometimes))

    def _function(self, pattern: ProbePattern, name: str, *, alone: bool) -> _Meaning:
        """Return the sites that a description kinst::F:entry or kinst::F:return has for one
        function: in the inlined copies of the function, and in its out-of-line code.

        Args:
            pattern: the description; F may be a glob.
            name: the function.
            alone: whether F is the function's name; then an unknown function is an error.
        """
        functions = self._index.functions(name)
        copies = self._index.copies(name)
        out_of_line = self._out_of_line(pattern, name, functions, alone=alone and not copies)
        regions = regions_of(copies)
        always: list[_Named] = []
        sometimes: list[tuple[str, _Named]] = []
        note = f"{regions.empty} without code"
        if regions.regions:
            count = _Count(len(copies), regions.empty)
            sites = self._sites(pattern, name, regions.regions, count)
            note = count.in_refused_code() or count.text()
            always = [p for condition, p in sites if not condition]
            sometimes = [(condition, p) for condition, p in sites if condition]
        always += [
            (ProbePattern(of_functions(), pattern.module, f.name, pattern.name), "", 0)
            for f in out_of_line
        ]
        if alone and not always and not sometimes:
            raise self._nothing(pattern, functions, len(copies), note)
        return _Meaning(tuple(always), tuple(sometimes))

    def _out_of_line(
        self, pattern: ProbePattern, name: str, functions: Sequence[FunctionDie], *, alone: bool
    ) -> list[Function]:
        """Return a function's out-of-line code. Debug information tells where this code is, even if
        the code's symbol has another name, such as F.isra.0. If debug information has no such code,
        search for the symbol F.

        Args:
            alone: whether to raise KinstError if there is no such code.
        """
        mains: dict[int, Function] = {}
        for die in functions:
            for low, _ in die.ranges:
                function = self._kernel.at(low)
                if function is not None and _in(function, pattern):
                    main = self._kernel.parts(function)[0]
                    mains.setdefault(main.address, main)
        if not mains:
            try:
                return list(self._kernel.find(pattern.module, name))
            except KinstError:
                if alone:
                    raise
        return list(mains.values())

    def _sites(
        self,
        pattern: ProbePattern,
        name: str,
        regions: Sequence[CopyRegion],
        count: _Count,
    ) -> list[tuple[str, _Named]]:
        """Return (condition, new description) of every site of a function's copies, in the order of
        the copies. The new description is kinst::CALLER:OFFSET. If control leaves several copies at
        one site, the site is returned once for each of them.

        Args:
            pattern: the program's description, kinst::F:entry or kinst::F:return.
            name: the function.
            regions: the copies that have code, grouped by entry address.
            count: gets the numbers of copies that are left out or have a property.
        """
        graphs = graphs_of(regions, self._kernel, self._progress)
        gaps = {
            parts: self._kernel.gaps(parts) for parts in {g.parts for g in graphs.values()}
        }  # fmt: skip
        chosen: list[_Chosen] = []
        sites: list[tuple[str, _Named]] = []
        for region in regions:
            graph = graphs.get(region.entry)
            if graph is not None and _lost(region, gaps[graph.parts], pattern.name):
                count.undecoded += region.copies
                continue
            if graph is None or not graph.is_instruction(region.entry):
                if refusal := self._refusal(region.entry):
                    count.refuse(region.copies, refusal)
                else:
                    count.lost += region.copies
                continue
            function = self._kernel.at(region.entry)
            if function is None or not _in(function, pattern):
                count.elsewhere += region.copies
                continue
            count.shared += region.copies - 1
            count.nested += bool(region.within)
            count.split += len({_part(low, graph.parts) for low, _ in region.ranges}) > 1
            inside = stay(region, graph) if pattern.name == "return" else None
            if inside is not None:
                count.mixed += inside.mixed
                count.around += inside.around
            plain = [CopyExit(region.entry)] if inside is None else exits(inside, graph)
            chosen.append(_Chosen(region, graph, inside, plain))
        refused = self._refused(chosen)
        for copy in chosen:
            to_plant = copy.sites_to_plant(refused)
            if to_plant is None:
                count.refuse(copy.region.copies, self._refusal(copy.region.entry))
                continue
            count.endless += not to_plant
            count.moved += to_plant != copy.plain
            for site in to_plant:
                where = self._description(pattern, site.address)
                if where is not None:
                    sites.append((site.condition, (where, name, len(copy.region.within))))
        description = f"{of_instructions()}::{name}:{pattern.name}"
        self.notes.append(f"{description}: {count.text()}")
        if left_out := count.left_out():
            self.losses.append(f"{description}: {left_out}")
        if count.undecoded:
            all_gaps = [gap for of_parts in gaps.values() for gap in of_parts]
            self.losses.append(
                f"{description}: {count.undecoded} of {count.copies} inlined copies are left out:"
                f" {gaps_told(all_gaps)}"
            )
        return sites

    def _refusal(self, address: int) -> str:
        """Return why no instruction of the function that contains an address may be planted; "" if
        some may, or no function contains the address."""
        function = self._kernel.at(address)
        return self._kernel.function_refusal(function) if function is not None else ""

    def _refused(self, chosen: Sequence[_Chosen]) -> Callable[[int], bool]:
        """Return a function that tells whether the instruction at an address cannot be planted.

        A single call of Kernel.refused() finds the answers for all sites that will probably be
        planted. This is faster than a call for each site. For any other site, the returned function
        calls Kernel.refused() itself.
        """
        sizes: dict[int, int] = {}
        for copy in chosen:
            likely = [copy.region.entry, *(one.address for one in copy.plain)]
            sizes.update((address, copy.graph.size(address)) for address in likely)
        answers = self._kernel.refused(list(sizes.items()))
        refusals = dict(zip(sizes, answers, strict=True))
        graphs = {id(copy.graph): copy.graph for copy in chosen}.values()

        def refused(address: int) -> bool:
            if address not in refusals:
                size = next(g.size(address) for g in graphs if g.is_instruction(address))
                refusals[address] = self._kernel.refused([(address, size)])[0]
            return refusals[address]

        return refused

    def _description(self, pattern: ProbePattern, address: int) -> ProbePattern | None:
        function = self._kernel.at(address)
        if function is None:
            return None
        module = pattern.module or ("" if function.module == KERNEL else function.module)
        offset = str(address - function.address)
        return ProbePattern(of_instructions(), module, function.name, offset)

    def _nothing(
        self, pattern: ProbePattern, functions: Sequence[FunctionDie], copies: int, note: str
    ) -> KinstError:
        """Return the error for a description that has no site.

        Args:
            functions: debug information of the functions that the description names.
            copies: number of inlined copies of these functions.
            note: why the copies are left out.
        """
        name = pattern.function
        for die in functions:
            if copies:
                return KinstError(
                    f"no copy of {name} can be traced: {note}",
                    f"it is declared at {die.decl_file}:{die.decl_line}",
                )
            if die.inlined:
                return KinstError(
                    f"{name} is an inline function of which this kernel has no copy",
                    f"it is declared at {die.decl_file}:{die.decl_line}",
                )
        hint = self._kernel.suggest(name)
        if not hint:
            close = get_close_matches(name, self._index.inline_names(), 3, 0.7)
            hint = f"did you mean {' or '.join(close)}?" if close else ""
        where = f' in module "{pattern.module}"' if pattern.module else ""
        return KinstError(f'no function named "{name}"{where}', hint)


def _in(function: Function, pattern: ProbePattern) -> bool:
    return not pattern.module or fnmatchcase(function.module, pattern.module)


def _lost(region: CopyRegion, gaps: Sequence[Gap], name: str) -> bool:
    """Return whether an inlined copy must be left out because of gaps, which are bytes that kinst
    cannot decode: part of the copy is in a gap. For returns, any gap is enough, since control may
    leave the copy by an instruction in the gap.

    Args:
        gaps: the gaps of the function that contains the copy.
        name: "entry" or "return".
    """
    spans = [(g.function.address + g.offset, g.function.address + g.end) for g in gaps]
    places = ((region.entry, region.entry + 1), *region.ranges)
    hidden = any(low < end and start < high for low, high in spans for start, end in places)
    return hidden or (name == "return" and bool(spans))


def _part(address: int, parts: Sequence[Function]) -> int:
    return next((p.address for p in parts if p.address <= address < p.address + p.size), -1)


def _with_condition(condition: str, clause: tree.ClauseNode) -> tree.ExprNode | None:
    """Return the expression `condition && predicate` for the predicate of a clause.

    Args:
        condition: a D expression; "" leaves the predicate unchanged. If the clause has no
            predicate, the condition alone is returned.
    """
    if not condition:
        return clause.predicate
    program = parse_text(f"BEGIN/{condition}/{{}}", clause.span.file)
    predicate = program.clauses[0].predicate
    assert predicate is not None
    return predicate if clause.predicate is None else tree.InfixNode(
        clause.span, "&&", predicate, clause.predicate
    )  # fmt: skip


@dataclass(slots=True)
class _Count:
    """Counts of a function's inlined copies for messages: how many are left out for each reason,
    and how many have each property that the user should know.

    Attributes:
        refusals: number of refused copies by the reason why no instruction of the function around
            them may be planted; copies in other functions are not counted.
    """

    copies: int
    empty: int
    shared: int = 0
    nested: int = 0
    split: int = 0
    mixed: int = 0
    around: int = 0
    endless: int = 0
    lost: int = 0
    undecoded: int = 0
    refused: int = 0
    moved: int = 0
    elsewhere: int = 0
    refusals: dict[str, int] = field(default_factory=dict)

    def refuse(self, copies: int, reason: str) -> None:
        """Count copies whose entry cannot be planted.

        Args:
            reason: why no instruction of the function around them may be planted; "" if some may.
        """
        self.refused += copies
        if reason:
            self.refusals[reason] = self.refusals.get(reason, 0) + copies

    def in_refused_code(self) -> str:
        """Return a sentence if all copies are in functions that may not be planted, for the same
        reason; otherwise "".
        """
        for reason, number in self.refusals.items():
            if number + self.empty == self.copies:
                copies = counted(number, "inlined copy is", "inlined copies are")
                return f"{copies} in code that cannot be planted: {reason}"
        return ""

    @property
    def _unplantable(self) -> str:
        """Copies whose entry cannot be planted, in words, with the reasons that are known."""
        reasons = [
            reason if number == self.refused else f"{number}: {reason}"
            for reason, number in self.refusals.items()
        ]
        return "whose entry cannot be planted" + (f" ({'; '.join(reasons)})" if reasons else "")

    def left_out(self) -> str:
        """Return a sentence that says how many copies are not traced, and why; "" if every copy is
        traced.
        """
        parts = (
            (self.empty, "without code"),
            (self.lost, "outside of every function, or rewritten"),
            (self.refused, self._unplantable),
        )
        count = sum(n for n, _ in parts)
        why = ", ".join(f"{n} {reason}" for n, reason in parts if n)
        are = "is" if count == 1 else "are"
        return f"{count} of {self.copies} inlined copies {are} left out: {why}" if count else ""

    def text(self) -> str:
        """Return the counts as text."""
        parts: list[tuple[int, Callable[[int], str]]] = [
            (self.empty, lambda n: f"{n} without code left out"),
            (self.shared, lambda n: f"{n} sharing another's entry"),
            (self.nested, lambda n: f"{n} inside other inlined functions"),
            (self.split, lambda n: f"{n} split into .cold parts"),
            (self.mixed, lambda n: f"{n} mixed with the caller's code"),
            (self.around, lambda n: f"{n} with code that is also reached around the entry"),
            (self.endless, lambda n: f"{n} never left"),
            (self.lost, lambda n: f"{n} outside of every function or rewritten, left out"),
            (self.undecoded, lambda n: f"{n} in code that does not decode, left out"),
            (self.refused, lambda n: f"{n} {self._unplantable}, left out"),
            (self.moved, lambda n: f"{n} traced beside what cannot be planted"),
            (self.elsewhere, lambda n: f"{n} in other modules"),
        ]
        counts = [form(n) for n, form in parts if n]
        copies = counted(self.copies, "inlined copy", "inlined copies")
        return f"{copies}: {', '.join(counts)}" if counts else copies
