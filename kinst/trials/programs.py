"""D programs of the tries. One program serves all tries of a sweep: the guest tells it the number
of the try that begins.

Every record begins with a number that says what it is about (LISTED, KEPT, FAILED, RETURNED,
DELAYED).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinst.core.dialect import TrialFacts
from kinst.trials.failures import ErrorValue

# Number of the try in which nothing fails, and all calls that could fail are recorded.
LISTING = 9_999_999
LISTED, FAILED, RETURNED, DELAYED, KEPT = 1, 2, 3, 4, 5
MOST_WAITS = 100  # times that a CPU waits in a try, so that a command ends
_WIDTH = 96

Targets = Mapping[ErrorValue, Sequence[tuple[str, str]]]


def injection_program(
    facts: TrialFacts,
    targets: Targets,
    within: Sequence[tuple[str, str]],
    pointer: str,
    kept: Mapping[tuple[str, str], str],
) -> str:
    """Return a D program in which, in try n, the n-th call of a target function fails.

    A call counts only while its thread is inside a function of `within`. The program's variable
    self->top tells this: it is the thread's stack pointer at the entry of the outermost such
    function. The thread is inside while its stack pointer is less than self->top.

    Args:
        facts: how the guest tells the number of the running try.
        targets: the functions that fail, as (module, name), by the value that they return.
        within: globs (module, name) of the functions inside which calls fail.
        pointer: the stack pointer's name in regs[], such as R_RSP.
        kept: D expressions by target function: a call for which the expression is true must not
            fail, and is not counted. The other functions may fail at each call.
    """
    entry, leave = (_probes(within, name) for name in ("entry", "return"))
    below = f"self->top && regs[{pointer}] < self->top"
    groups: dict[tuple[ErrorValue, str], list[tuple[str, str]]] = {}
    for value, names in targets.items():
        for name in names:
            groups.setdefault((value, kept.get(name, "")), []).append(name)
    parts = [
        "/* The guest's shell tells the number of a try by a system call; 0: no call fails;"
        f" {LISTING}: all\n * calls are recorded. */",
        "uint64_t number, calls, kept;\nself uint64_t top, failed, which;",
        _telling(facts, "number = {}; calls = 0; kept = 0;"),
        f"{entry}\n/!self->top || regs[{pointer}] >= self->top/\n"
        f"{{ self->top = regs[{pointer}]; }}",
    ]
    for (value, never), functions in groups.items():
        every = _probes(functions, "entry")
        may = f"{below} && !({never})" if never else below
        if never:
            parts.append(
                f"{every}\n/number == {LISTING} && {below} && {never}/\n"
                f"{{ kept++; trace({KEPT}); trace(kept); stack(); }}"
            )
        parts += [
            f"{every}\n/number && {may}/\n{{ calls++; }}",
            f"{every}\n/number == {LISTING} && {may}/\n"
            f"{{ trace({LISTED}); trace(calls); stack(); }}",
            f"{every}\n/number && calls == number && {may}/\n"
            f"{{\n    trace({FAILED}); trace(number); stack();\n"
            f"    self->failed = self->top; self->which = number;\n"
            f"    return({value.number}); /* {value.text} */\n}}",
        ]
    parts += [
        f"{leave}\n/self->failed && regs[{pointer}] == self->failed/\n"
        f"{{ trace({RETURNED}); trace(self->which); trace(arg1); stack(1); self->failed = 0; }}",
        f"{leave}\n/self->top == regs[{pointer}]/\n{{ self->top = 0; }}",
    ]
    return "\n\n".join(parts) + "\n"


def delay_program(
    facts: TrialFacts, function: str, offsets: Sequence[int], delays: Sequence[int], cpu: int
) -> str:
    """Return a D program in which, in each try, one CPU waits at an instruction of a function.

    The tries go through all offsets with the first delay, then through all offsets with the second
    delay, and so on. In one try, the CPU waits at most MOST_WAITS times.

    Args:
        facts: how the guest tells the number of the running try.
        function: MODULE:FUNCTION.
        offsets: offsets of the instructions.
        delays: how long the CPU waits, in nanoseconds.
        cpu: number of the CPU.
    """
    count = len(offsets)
    delay = str(delays[-1])
    for index, wait in reversed(list(enumerate(delays[:-1]))):
        delay = f"(number - 1) / {count} == {index} ? {wait} : {delay}"
    parts = [
        "/* The guest's shell tells the number of a try by a system call; 0: nothing waits. */",
        "uint64_t number, place, delay, waits;",
        _telling(facts, f"number = {{}}; place = (number - 1) % {count}; delay = {delay};\n"
                 "  waits = 0;"),
    ]  # fmt: skip
    for index, offset in enumerate(offsets):
        probe = f"kinst:{function}:{offset}"
        here = f"number && place == {index} && cpu == {cpu}"
        parts += [
            f"{probe}\n/{here} && waits == 0/\n{{ trace({DELAYED}); trace(number); stack(); }}",
            f"{probe}\n/{here} && waits < {MOST_WAITS}/\n{{ waits++; chill(delay); }}",
        ]
    return "\n\n".join(parts) + "\n"


def _telling(facts: TrialFacts, actions: str) -> str:
    """Return the clause that fires when the guest tells the number of the try that begins.

    Args:
        facts: how the guest tells the number.
        actions: D text of the clause's actions, with {} for the number.
    """
    low, value = facts.base, facts.number
    number = f"{value} - {low}"
    return (
        f"{facts.told}\n/{value} >= {low} && {value} <= {low + LISTING}/\n"
        f"{{ {actions.format(number)} }}"
    )


def _probes(functions: Sequence[tuple[str, str]], name: str) -> str:
    """Return probe descriptions of functions, several on a line.

    Args:
        functions: (module, function) of each; globs are allowed.
        name: "entry" or "return".
    """
    lines = [""]
    for number, (module, function) in enumerate(functions):
        text = f"fbt:{module}:{function}:{name}" + "," * (number + 1 < len(functions))
        if lines[-1] and len(lines[-1]) + len(text) >= _WIDTH:
            lines.append("")
        lines[-1] += f" {text}" if lines[-1] else text
    return "\n".join(lines)
