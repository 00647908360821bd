"""Sweep of `kinst inject`: in try n, the n-th call of some functions fails. A call counts only if
one of certain functions (`within`) has made it, directly or through other functions.

Tested by tests/trials/test_sweep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.api import Machine
from kinst.core.dataclass import dataclass
from kinst.core.dialect import Dialect, TrialFacts
from kinst.core.dtypes import IntType, PointerType
from kinst.core.errors import DError, KinstError
from kinst.trials.failures import ErrorValue, Failure, UsualValues, parse_failure, usual_values
from kinst.trials.guest_run import GuestRun, TryRecord, stack_text
from kinst.trials.outcomes import Returned, error_of
from kinst.trials.programs import FAILED, KEPT, LISTED, LISTING, RETURNED, injection_program

_POINTER = 8
_FEW = 4  # functions that a message names


@dataclass(frozen=True, slots=True)
class TargetFunctions:
    """Functions of a kernel that are to fail.

    Attributes:
        by_value: the functions, as (module, name), by the value that they return.
        left_out: functions that the user named but that cannot fail in this way, as (name, reason).
    """

    by_value: Mapping[ErrorValue, Sequence[tuple[str, str]]]
    left_out: Sequence[tuple[str, str]]

    @property
    def told(self) -> str:
        """A sentence about what fails, for the user."""
        parts = [
            f"{_listed([name for _, name in names])} return {value.text}"
            for value, names in self.by_value.items()
        ]
        return "; ".join(parts)


def facts_of(dialect: Dialect) -> TrialFacts:
    """Return how tries run in guests of a system. Raises KinstError if kinst does not know that."""
    if dialect.trials is None:
        raise KinstError(
            f"kinst does not know how to run tries in guests of {dialect.system or 'this system'}",
            "it does for Linux",
        )
    return dialect.trials


def values_of(dialect: Dialect) -> UsualValues:
    """Return the values by which functions of a system usually say that they have failed."""
    name = facts_of(dialect).no_memory
    return usual_values(name, dialect.constants[name])


def failures_of(texts: Sequence[str], dialect: Dialect) -> list[Failure]:
    """Return the failures that texts such as "kmalloc* return NULL" describe. Raises KinstError."""
    usual = values_of(dialect)
    errors = {name: n for name, n in dialect.constants.items() if name.startswith("E")}
    return [parse_failure(text, errors, usual) for text in texts]


def find_targets(machine: Machine, failures: Sequence[Failure]) -> TargetFunctions:
    """Return the functions of a machine's kernel that failures name.

    Args:
        machine: the machine, which has started.
        failures: what is to fail. If several match a function, the first of them counts.

    Raises:
        KinstError: a failure names no function that can fail.
    """
    usual = values_of(machine.dialect)
    by_value: dict[ErrorValue, list[tuple[str, str]]] = {}
    left_out: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    for failure in failures:
        count = len(seen)
        try:
            probes = machine.probes(f"fbt:{failure.module}:{failure.function}:entry")
        except DError as error:
            raise KinstError(error.message, error.hint) from error
        for probe in probes:
            key = probe.module, probe.function
            if key in seen:
                continue
            reason = probe.reason if probe.way == "refused" else ""
            value = None if reason else _value(machine, failure, *key, usual)
            if isinstance(value, ErrorValue):
                seen.add(key)
                by_value.setdefault(value, []).append(key)
            else:
                left_out.append((probe.function, reason or value or ""))
        if len(seen) == count:
            why = f": {left_out[-1][1]}" if left_out else ""
            name = f"{failure.module}:{failure.function}".lstrip(":")
            raise KinstError(f"no function that {name} names can fail{why}", "kinst -l lists them")
    return TargetFunctions(by_value, left_out)


def _value(
    machine: Machine, failure: Failure, module: str, function: str, usual: UsualValues
) -> ErrorValue | str:
    """Return what a function returns if it fails, or a reason why it cannot fail."""
    prototype = machine.prototype(module, function)
    if prototype is None:
        return "the kernel's types do not tell what it returns"
    return failure.value_of(prototype.result, usual)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} others" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class FailableCall:
    """A call that can fail, or that must not fail.

    Attributes:
        number: which of the calls of its kind it is, from 1.
        stack: stack at the call: innermost function first, FUNCTION+OFFSET each.
    """

    number: int
    stack: tuple[str, ...]


class Injection:
    """Sweep in which the n-th call fails in try n; implements sweep.Sweep.

    Attributes:
        program: D text of all tries.
        baseline: number of the try in which nothing fails.
        facts: how tries run in guests of the system.
        names: names of errors by number.
        flag: name of the flag that says that a call must not fail, if kinst can tell such calls of
            the target functions; "" if it cannot.
    """

    baseline = LISTING
    blames_status = False
    unit = "call"

    def __init__(self, machine: Machine, targets: TargetFunctions, within: Sequence[str]) -> None:
        """Make the sweep.

        Args:
            machine: a machine that has started.
            targets: the functions that fail.
            within: globs, FUNCTION or MODULE:FUNCTION. The functions fail only while a function
                that matches one of these globs is on the stack.
        """
        self._machine = machine
        self._values = {
            name: value for value, names in targets.by_value.items() for _, name in names
        }
        self.facts = facts_of(machine.dialect)
        self.names: dict[int, str] = {}
        for name, number in machine.dialect.constants.items():
            if name.startswith("E"):
                self.names.setdefault(number, name)
        self._most = machine.dialect.most_error
        self._sizes: dict[tuple[str, str], int] = {}
        kept = _kept(machine, self.facts, targets)
        must = self.facts.must_succeed
        self.flag = must.flag if kept and must is not None else ""
        self.program = injection_program(
            self.facts, targets.by_value, [split_name(one) for one in within],
            machine.stack_register, kept,
        )  # fmt: skip

    def calls(self, run: GuestRun) -> list[FailableCall]:
        """Return the calls that could fail, as a run of the baseline has recorded them. If the run
        has done the baseline several times, return the calls of the last time."""
        return _listed_calls(run, LISTED)

    def kept(self, run: GuestRun) -> list[FailableCall]:
        """Return the calls that must not fail, in the same way."""
        return _listed_calls(run, KEPT)

    def stack(self, records: Sequence[TryRecord]) -> tuple[str, ...]:
        """Return the stack of the call that failed; () if none did."""
        return next((stack_text(one.frames) for one in records if one.kind == FAILED), ())

    def wanted(self, stack: tuple[str, ...]) -> int:
        """Return the number of the error that callers of the failed function should return; 0 if
        that is not known.

        Args:
            stack: stack of the call that failed; () if none did.
        """
        value = self._values.get(stack[0].partition("+")[0]) if stack else None
        return value.error if value is not None else 0

    def returned(self, records: Sequence[TryRecord]) -> Returned | None:
        """Return what the outermost function of `within` returned, the one that was called first;
        None if that is not known."""
        for one in records:
            if one.kind == RETURNED and one.frames:
                frame = one.frames[-1]
                size = self._size(frame.module, frame.function)
                return Returned(
                    frame.function, error_of(one.value, size, self._most) if size else 0
                )
        return None

    def _size(self, module: str, function: str) -> int:
        """Return the bytes of a function's result; 0 if results of its type are never errors, or
        the type is not known.
        """
        key = module, function
        if key not in self._sizes:
            prototype = self._machine.prototype(module, function)
            result = prototype.result if prototype is not None else None
            self._sizes[key] = 0
            if isinstance(result, PointerType):
                self._sizes[key] = _POINTER
            elif isinstance(result, IntType) and result.signed:
                self._sizes[key] = result.size
        return self._sizes[key]


def _kept(
    machine: Machine, facts: TrialFacts, targets: TargetFunctions
) -> dict[tuple[str, str], str]:
    """Return, by target function, a D expression that is true at calls that must not fail.

    A call must not fail if its allocation flags have the flag of facts.must_succeed. A function
    without a parameter for allocation flags has no expression. No function has one if the kernel
    does not tell the flag's bits.
    """
    must = facts.must_succeed
    bits = machine.allocation_flag(must.flag) if must is not None else 0
    if must is None or not bits:
        return {}
    found: dict[tuple[str, str], str] = {}
    for key in (name for names in targets.by_value.values() for name in names):
        prototype = machine.prototype(*key)
        types = prototype.parameters if prototype is not None else ()
        for number, type_ in enumerate(types):
            if isinstance(type_, IntType) and type_.name == must.type:
                found[key] = f"arg{number} & {bits:#x}"
    return found


def _listed_calls(run: GuestRun, kind: int) -> list[FailableCall]:
    found: list[FailableCall] = []
    for one in run.records.get(0, ()):
        if one.kind != kind:
            continue
        if one.value <= len(found):
            found = found[: one.value - 1]
        found.append(FailableCall(one.value, stack_text(one.frames)))
    return found


def split_name(text: str) -> tuple[str, str]:
    """Return (module, function) of FUNCTION or MODULE:FUNCTION; the module is "" if it is left out,
    the function "*"."""
    module, colon, function = text.rpartition(":")
    return (module, function or "*") if colon else ("", text)


def in_order(calls: Sequence[FailableCall], *, first: bool) -> list[int]:
    """Return the numbers of calls in the order in which they are to fail: first the calls whose
    stack no earlier call has, then all others.

    Args:
        calls: the calls, in the order in which the command made them.
        first: whether only the calls of the first kind are returned.
    """
    seen: set[tuple[str, ...]] = set()
    new: list[int] = []
    old: list[int] = []
    for one in calls:
        (old if one.stack in seen else new).append(one.number)
        seen.add(one.stack)
    return new if first else new + old
