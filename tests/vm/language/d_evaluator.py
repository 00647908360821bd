"""D programs made at random, each with the output that an evaluator in Python computes.

The evaluator is written from the language's definition, not from kinst (d_model.py, d_strings.py
and d_structs.py say from which parts).  If a clause faults, dtrace:::ERROR tells the kind, the
clause's records are lost, and its changes to variables stay; the next clause runs.  A clause with
if and else is several, as libdtrace makes it (docs/d.md, "if and else"): records of one of them
stay when a later one faults, and the fault ends them all.  A condition belongs to the one before
its branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.vm.language.d_integers import Scope
from tests.vm.language.d_model import LONG, TYPES, FaultError, Number, Value, World
from tests.vm.language.d_statements import Statement, Statements
from tests.vm.language.d_structs import structs

ERROR = 'ERROR { printf("error %d %d\\n", at, arg4); }'


@dataclass(frozen=True)
class If:
    condition: Number
    yes: tuple[Statement | If, ...]
    no: tuple[Statement | If, ...]

    @property
    def text(self) -> str:
        after = f" else {_block(self.no)}" if self.no else ""
        return f"if ({self.condition.text}) {_block(self.yes)}{after}"


def _block(items: Sequence[Statement | If]) -> str:
    return "{ " + " ".join(item.text for item in items) + " }"


@dataclass(frozen=True)
class Clause:
    predicate: Number | None
    items: tuple[Statement | If, ...]


@dataclass(frozen=True)
class Program:
    """Clauses, and the format and value that printa() needs for each aggregation, by name."""

    number: int
    clauses: tuple[Clause, ...]
    aggregations: tuple[tuple[str, str, Callable[[list[int]], int]], ...]

    def text(self, probe: str, guard: str = "") -> str:
        """Return the program.

        Args:
            guard: a condition for every clause.
        """
        parts = []
        for clause in (Clause(None, (_names(self.number),)), *self.clauses):
            wanted = [guard] if guard else []
            if clause.predicate:
                wanted.append(clause.predicate.text)
            predicate = f" /{' && '.join(wanted)}/" if wanted else ""
            parts.append(f"{probe}{predicate} {_block(clause.items)}")
        parts += [f'END {{ printa("{form}", {name}); }}' for name, form, _ in self.aggregations]
        return "\n".join(parts)

    def run(self, world: World) -> None:
        for clause in self.clauses:
            world.memory.clear()
            try:
                if clause.predicate is None or clause.predicate.value(world):
                    _run(clause.items, world)
            except FaultError as fault:
                world.pending.clear()
                world.lines.append(f"error {self.number} {fault.kind}")
            world.commit()

    def totals(self, world: World) -> list[str]:
        """Return the lines that printa() prints, in any order."""
        lines = []
        for name, _, shown in self.aggregations:
            for key, data in world.aggregations.get(name, {}).items():
                words = [k.decode() if isinstance(k, bytes) else str(k) for k in key]
                lines.append(" ".join([f"agg {self.number}", *words, str(shown(data))]))
        return sorted(lines)


def _names(number: int) -> Statement:
    return Statement(f"at = {number};", lambda _: None)


def _run(items: Sequence[Statement | If], world: World) -> None:
    for item in items:
        if isinstance(item, Statement):
            item.do(world)
            continue
        chosen = item.yes if item.condition.value(world) else item.no
        world.commit()
        _run(chosen, world)
        world.commit()


def _deviation(data: list[int]) -> int:
    """Compute dtrace(1)'s stddev() in integers: the root of (average of squares - square of
    average)."""
    mean = sum(data) // len(data)
    return math.isqrt(sum(x * x for x in data) // len(data) - mean * mean)


_AGGREGATING: dict[str, Callable[[list[int]], int]] = {
    "count": len, "sum": lambda data: LONG.fit(sum(data)), "min": min, "max": max,
    "avg": lambda data: sum(data) // len(data), "stddev": _deviation,
}  # fmt: skip


@dataclass
class Maker(Statements):
    """Makes programs; `seed` determines everything random in them."""

    seed: int
    totals: list[tuple[str, str, Callable[[list[int]], int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        Statements.__init__(self, self.seed)
        self.structs = structs(self.random, 16)
        self.declarations = []

    def aggregate(self) -> list[Statement]:
        """Aggregate one to three values with keys."""
        name = self.name("@g")
        strings = [self.chance(0.4) for _ in range(self.random.randrange(0, 4))]
        kinds = [self.random.choice(TYPES) for _ in strings]
        function = self.random.choice(list(_AGGREGATING))
        made = []
        for _ in range(self.random.randrange(1, 4)):
            text, keys = self.keys(strings, kinds)
            value = self.number(1)
            if function in ("avg", "stddev"):  # of a value that is not negative
                value = Number(f"({value.text} & 65535)", LONG,
                               lambda w, v=value: v.value(w) & 65535)  # fmt: skip
            argument = "" if function == "count" else f"(int64_t){value.text}"
            place = f"{name}[{text}]" if text else name
            made.append(Statement(f"{place} = {function}({argument});",
                                  self._added(name, keys, value, function == "count")))  # fmt: skip
        forms = "".join("%s " if is_text else "%d " for is_text in strings)
        self.totals.append((name, f"agg {self.at} {forms}%@d\\n", _AGGREGATING[function]))
        return made

    def _added(
        self, name: str, keys: Callable[[World], tuple[Value, ...]], value: Number, counts: bool
    ) -> Callable[[World], None]:
        def do(w: World) -> None:
            key = keys(w)
            new = 0 if counts else LONG.fit(value.value(w))
            w.aggregations.setdefault(name, {}).setdefault(key, []).append(new)

        return do

    def several(self, depth: int) -> list[Statement | If]:
        """Make a few statements; `depth` limits nesting."""
        made: list[Statement | If] = []
        for _ in range(self.random.randrange(1, 4)):
            kind = self.random.random()
            if kind < 0.2 and depth:
                made.append(self.branch(depth - 1))
            elif kind < 0.3:
                made += self.array()
            elif kind < 0.37:
                made += self.declared_array()
            elif kind < 0.45:
                made.append(self.assign_text())
            elif kind < 0.5:
                made += self.token()
            elif kind < 0.55:
                made += self.aggregate()
            elif kind < 0.7:
                made.append(self.compound())
            else:
                made.append(self.assign())
        return made

    def branch(self, depth: int) -> If:
        condition = self.number(2)
        yes = [*self.several(depth), *([self.show()] if self.chance(0.5) else [])]
        no = self.several(depth) if self.chance(0.6) else []
        return If(condition, tuple(yes), tuple(no))

    def clause(self) -> Clause:
        predicate = self.number(2) if self.chance(0.25) else None
        self.faults = self.chance(0.3)
        items: list[Statement | If] = []
        if self.chance(0.3):
            items += [*self.memory(), *self.several(0)]
            items += self.address() if self.chance(0.3) else []
        else:
            items += self.several(2)
        if self.chance(0.7):
            items.append(self.show())
        self.faults = False
        # The clause's memory ends with it.
        self.scope.cells = [
            c for c in self.scope.cells if "this->p_" not in c.text and "this->q_" not in c.text
        ]
        return Clause(predicate, tuple(items))

    def program(self, number: int) -> Program:
        self.at, self.serial, self.scope, self.totals = number, 0, Scope(), []
        clauses = [self.clause() for _ in range(self.random.choice((1, 1, 2)))]
        clauses.append(Clause(None, (self.show(),)))
        return Program(number, tuple(clauses), tuple(self.totals))


@dataclass(frozen=True)
class Script:
    """Programs, their declarations, and their output: first in order, then by printa() in any
    order."""

    declared: str
    programs: tuple[Program, ...]
    lines: tuple[list[str], ...]

    def text(self, probe: str, guard: str = "") -> str:
        parts = [program.text(probe, guard) for program in self.programs]
        return "\n".join([self.declared, "int at;", *parts, ERROR])


def script(seed: int, count: int, firings: int) -> Script:
    """Make `count` programs; `firings` is how often the probe fires."""
    maker, world = Maker(seed), World()
    made = tuple(maker.program(number) for number in range(count))
    lines: list[list[str]] = [[] for _ in made]
    for _ in range(firings):
        world.fire()
        for program in made:
            program.run(world)
            lines[program.number] += world.lines
            world.lines.clear()
    for program in made:
        lines[program.number] += program.totals(world)
    declared = [*(s.text for s in maker.structs), *maker.declarations]
    return Script("\n".join(declared), made, tuple(lines))


def of_programs(out: Sequence[str], count: int) -> tuple[list[str], ...]:
    """Return printed lines by the program that printed them, as in Script.lines."""
    found: list[list[str]] = [[] for _ in range(count)]
    totals: list[list[str]] = [[] for _ in range(count)]
    for line in out:
        words = line.split(" ")
        if words[0] == "agg":
            totals[int(words[1])].append(line)
        elif line:
            found[int(words[words[0] == "error"])].append(line)
    return tuple(lines + sorted(own) for lines, own in zip(found, totals, strict=True))
