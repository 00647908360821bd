"""D program that counts the instructions and flow-graph edges of functions, and evaluation of its
results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from kinst.core.code import OUTSIDE, CodeInstruction, FunctionCode
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.words import COLD, MASK
from kinst.events import Aggregation
from kinst.views.flow import EdgeKey, FlowCounts, Question, questions, solve

# Names of the aggregations, and their keys; @went has the jump's target as an additional key.
COUNT, TAKEN, WENT = "count", "taken", "went"
SITE = "probemod, probefunc, probename"


@dataclass(frozen=True)
class CountingPlan:
    """What a counting program counts: each instruction of some functions, and those edges of the
    flow graphs whose counts cannot be computed from the counts of instructions.

    Attributes:
        codes: the functions.
        asked: for each function in `codes`, the edges to count (result of questions()).
        condition: a D predicate that selects the hits to count; "" selects all hits.
    """

    codes: tuple[FunctionCode, ...]
    asked: tuple[tuple[Question, ...], ...]
    condition: str = ""

    @property
    def program(self) -> str:
        """Text of the D program."""
        return "\n".join(chain(self._counts(), self._answers())) + "\n"

    def _counts(self) -> Iterator[str]:
        parts = [p for code in self.codes for p in code.parts]
        where = ",\n".join(f"kinst:{p.module}:{p.name}:" for p in parts)
        yield clause(where, self.condition, f"@{COUNT}[{SITE}] = count();")

    def _answers(self) -> Iterator[str]:
        for code, asked in zip(self.codes, self.asked, strict=True):
            for question in asked:
                where = described(code.blocks[question.block].last)
                if question.edge == OUTSIDE:
                    went = f"(uint64_t)({question.expression})"
                    yield clause(where, self.condition, f"@{WENT}[{SITE}, {went}] = count();")
                    continue
                both = [text for text in (self.condition, question.expression) if text]
                wanted = " && ".join(f"({text})" for text in both) if len(both) > 1 else both[0]
                yield clause(where, wanted, f"@{TAKEN}[{SITE}] = count();")


def described(instruction: CodeInstruction) -> str:
    """Return the D probe description that matches an instruction."""
    return f"kinst:{instruction.function.module}:{instruction.function.name}:{instruction.offset}"


def clause(where: str, predicate: str, action: str) -> str:
    """Return the D text of a clause.

    Args:
        where: probe descriptions.
        predicate: a D expression; "" for a clause without predicate.
        action: D statements.
    """
    return f"{where}\n" + (f"/{predicate}/\n" if predicate else "") + f"{{ {action} }}"


def plan_counting(
    codes: Iterable[FunctionCode], condition: str = "", *, asks: bool = True
) -> CountingPlan:
    """Return a plan to count functions so that the counts of all their edges can be computed, as
    far as possible.

    The condition must not change during a call of a function: otherwise the counts do not add up. A
    condition that tests the process id does not change.

    Args:
        codes: functions.
        condition: a D predicate; only hits for which it is true are counted.
        asks: whether to count edges whose counts cannot be computed from those of instructions,
            which needs probes with predicates. If False, the counts of these edges stay unknown.
    """
    all_codes = tuple(codes)
    asked = (tuple(questions(code, _refused(code))) if asks else () for code in all_codes)
    return CountingPlan(all_codes, tuple(asked), condition)


def _refused(code: FunctionCode) -> Collection[int]:
    return {one.address for one in code.instructions if one.refused}


def site_rows(aggregation: Aggregation) -> Mapping[tuple[str, str, int], object]:
    """Return the values of an aggregation by module, function and offset. Raises KinstError if the
    aggregation has other keys."""
    rows: dict[tuple[str, str, int], object] = {}
    for key, value in aggregation.rows.items():
        if len(key) != 3 or not (isinstance(key[2], str) and key[2].isdigit()):
            raise KinstError(
                f"the keys of @{aggregation.name} are not {SITE}",
                "kinst annotate -d shows a program with such keys",
            )
        rows[str(key[0]), str(key[1]), int(key[2])] = value
    return rows


def counted_functions(aggregations: Sequence[Aggregation]) -> list[str]:
    """Return the functions whose instructions a counting program has counted, as MODULE:NAME. A
    part that the compiler has split off (F.cold) is returned as its function (F).

    Args:
        aggregations: aggregations that the program gave.

    Raises:
        KinstError: no instruction was counted, or another program gave the aggregations.
    """
    counts = next((one for one in aggregations if one.name == COUNT), None)
    rows = site_rows(counts) if counts is not None else {}
    names = [f"{module}:{name.partition(COLD)[0]}" for module, name, _ in rows]
    if not names:
        raise _no_counts()
    return list(dict.fromkeys(names))


def check_counts(aggregations: Sequence[Aggregation]) -> None:
    """Raise KinstError if these aggregations are not from the program of a CountingPlan. No
    aggregations at all are accepted: then no instruction ran.
    """
    if aggregations and all(one.name != COUNT for one in aggregations):
        raise _no_counts()


def _no_counts() -> KinstError:
    return KinstError(
        "the result has no counts of functions",
        "kinst annotate -d FUNCTION... shows a program that makes them",
    )


def counted(
    plan: CountingPlan, aggregations: Sequence[Aggregation], left_out: Collection[int] = ()
) -> list[FlowCounts]:
    """Return the counts of each function of a plan, in the plan's order.

    Args:
        plan: the plan whose program was traced.
        aggregations: aggregations that the program gave.
        left_out: addresses of instructions that were not planted.

    Raises:
        KinstError: the results are from another program or another kernel.
    """
    named = {one.name: one for one in aggregations}
    counts = _numbers(named.get(COUNT))
    taken, went = _numbers(named.get(TAKEN)), named.get(WENT)
    places = {
        (i.function.module, i.function.name, i.offset) for c in plan.codes for i in c.instructions
    }
    strange = next((site for site in (*counts, *taken) if site not in places), None)
    if strange is not None:
        raise KinstError(
            f"{strange[1]}+{strange[2]} was counted, but no instruction of this kernel is there",
            "annotate it with the kernel that was traced",
        )
    jumps = _jumps(went)
    return [
        _one(code, asked, counts, taken, jumps, left_out)
        for code, asked in zip(plan.codes, plan.asked, strict=True)
    ]


Sited = Mapping[tuple[str, str, int], int]
Jumps = Mapping[tuple[str, str, int], Mapping[int, int]]


def _one(
    code: FunctionCode,
    asked: Sequence[Question],
    counts: Sited,
    taken: Sited,
    jumps: Jumps,
    left_out: Collection[int],
) -> FlowCounts:
    instructions = {
        i.address: counts.get(_site(i), 0)
        for i in code.instructions
        if i.address not in left_out and not i.refused
    }
    answers: dict[EdgeKey, int] = {}
    for question in asked:
        block = code.blocks[question.block]
        if block.last.address not in instructions:
            continue
        if question.edge == OUTSIDE:
            went = jumps.get(_site(block.last), {})
            answers.update(_went(code, question.block, went))
        else:
            answers[question.block, question.edge] = taken.get(_site(block.last), 0)
    return solve(code, instructions, answers)


def _went(code: FunctionCode, number: int, went: Mapping[int, int]) -> dict[EdgeKey, int]:
    counts = {}
    for k, edge in enumerate(code.blocks[number].edges):
        if edge.to == OUTSIDE:
            outside = [n for at, n in went.items() if not _inside(code, at)]
            counts[number, k] = sum(outside)
        else:
            counts[number, k] = went.get(code.blocks[edge.to].address, 0)
    return counts


def _inside(code: FunctionCode, address: int) -> bool:
    return any(p.address <= address < p.address + p.size for p in code.parts)


def _site(one: CodeInstruction) -> tuple[str, str, int]:
    return one.function.module, one.function.name, one.offset


def _numbers(found: Aggregation | None) -> Sited:
    rows = site_rows(found) if found is not None else {}
    return {site: value for site, value in rows.items() if isinstance(value, int)}


def _jumps(found: Aggregation | None) -> Jumps:
    jumps: dict[tuple[str, str, int], dict[int, int]] = {}
    for key, value in found.rows.items() if found is not None else ():
        module, function, name, address = key
        if isinstance(value, int) and isinstance(address, int):
            site = str(module), str(function), int(str(name))
            jumps.setdefault(site, {})[address & MASK] = value
    return jumps
