"""Rules for clauses that change the traced function: at which sites return(), skip(), goto() and
regs[] = may be planted, and where control goes from there.

Tested by tests/session/test_perturbing.py and tests/fake/test_perturbing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kinst.codegen.actions.perturbing import Perturbation, changes_of
from kinst.core.bodies import GOTO, RETURN, SKIP, Exit
from kinst.core.dtypes import DType, IntType, PointerType
from kinst.core.errors import DError, KinstError
from kinst.core.kernel import PlantableKernel
from kinst.core.probe import Function, Site
from kinst.core.system import System
from kinst.core.types import TypeSource
from kinst.dlang import typed
from kinst.session.values import EnabledProgram, EnabledSite, StartedMachine

HERE = "kinst never changes registers or control of the machine that it runs on"
IN_PROGRAM = "in a user program, kinst changes neither registers nor control"
_COPY = "kinst does not know where the copy's result goes"
_WORD = 8  # bytes of a register


def exits_of(changes: Perturbation, site: Site) -> tuple[Exit, ...]:
    """Return the exits to which return(), skip() and goto() may lead control from a site, with
    their addresses.

    Args:
        changes: what the clauses at the site may change.
    """
    return tuple(Exit(number, target_of(number, site)) for number in sorted(changes.exits))


def target_of(number: int, site: Site) -> int:
    """Return the address to which return(), skip() or goto() leads from a site; 0 for return(),
    which leads to the function's caller.

    Args:
        number: RETURN, SKIP, or GOTO plus an offset in the function (core/bodies.py, Exit.number).
    """
    if number == RETURN:
        return 0
    return (
        site.address + len(site.code) if number == SKIP else site.function.address + number - GOTO
    )


def check_sites(program: typed.TypedProgram, enabled: Sequence[EnabledSite]) -> None:
    """Check that clauses that change registers or control are at probes of instructions, and that
    return() is not at an inlined copy of a function. Raises DError.
    """
    changing = {c.index: action for c in program.clauses for action in _perturbing([c])}
    for e in enabled if changing else ():
        action = next((changing[c] for c in e.clauses if c in changing), None)
        if action is not None and e.probe.site is None:
            message = f"{e.probe.name} is at no function that could be changed"
            hint = "put the action at an instruction, or at a function's entry"
            raise DError(message, action.span, "D_UNKNOWN", hint)
    for clause in program.clauses if changing else ():
        copied = next(filter(None, clause.crossings), None)
        returning = next((a for a in clause.actions if isinstance(a, typed.ReturnAction)), None)
        if copied is not None and returning is not None:
            message = f"return() at an inlined copy of {copied.function}: {_COPY}"
            raise DError(message, returning.span, "D_UNKNOWN", "goto(OFFSET) leads past a copy")


def refusals_of(
    program: EnabledProgram, machine: StartedMachine
) -> Callable[[EnabledSite, Site, bytes], str] | None:
    """Return a function that says why a probe's clauses may not change registers or control at a
    site.

    The returned function takes the probe, the site, and the code before the site that the
    trampoline runs again, such as a load-exclusive instruction (Isa.rerun_starts). It returns the
    reason, or "" if the clauses may change them.

    Returns None instead of a function if no clause of the program changes registers or control.

    Raises KinstError if no clause may change registers or control in this machine.
    """
    clauses = program.compiled.program.clauses
    changes: dict[tuple[int, ...], Perturbation] = {}
    for e in program.enabled:
        if e.clauses not in changes:
            changes[e.clauses] = changes_of((clauses[c] for c in e.clauses), machine.isa)
    if machine.never_stops or machine.facts.only_counts:
        for action in (action for clause in clauses for action in clause.actions):
            if _disturbs(action):
                why = IN_PROGRAM if machine.facts.only_counts else HERE
                raise KinstError(f"{action.span}: {why}", "trace a guest (--vm)")
    if not any(changes.values()):
        return None
    rules = _SiteRules(machine.kernel, machine.system, program.compiled.types)

    def refusal(enabled: EnabledSite, site: Site, rerun_prefix: bytes) -> str:
        if not changes[enabled.clauses]:
            return ""
        return rules.refusal([clauses[c] for c in enabled.clauses], site, rerun_prefix)

    return refusal


def _disturbs(action: typed.Action) -> bool:
    """Return whether an action changes registers or control, ends the kernel, or sends a signal.

    An action that only writes memory does none of these.
    """
    return isinstance(action, typed.PerturbAction | typed.PanicAction | typed.RaiseAction)


def _perturbing(clauses: Iterable[typed.Clause]) -> Iterator[typed.PerturbAction]:
    """Yield the actions that change registers or control."""
    return (a for clause in clauses for a in clause.actions if isinstance(a, typed.PerturbAction))


class _SiteRules:
    """Rules that decide whether clauses may change registers and control at a site."""

    def __init__(self, kernel: PlantableKernel, system: System, types: TypeSource | None) -> None:
        self._kernel, self._system, self._types = kernel, system, types

    def refusal(self, clauses: list[typed.Clause], site: Site, rerun_prefix: bytes) -> str:
        """Return why these clauses may not change registers or control at a site; "" if they may.

        Args:
            rerun_prefix: code before the site that the site's trampoline runs again after the
                clauses; b"" if there is none.
        """
        isa = self._kernel.isa
        if isa.exit_slot < 0:
            return f"kinst changes neither registers nor control on {isa.name}"
        if rerun_prefix:
            return "the load-exclusive before it runs again after the clauses"
        for clause in clauses:
            for action in clause.actions:
                match action:
                    case typed.ReturnAction():
                        reason = self._of_return(action.value, site)
                    case typed.SkipAction():
                        reason = self._of_skip(site)
                    case typed.GotoAction():
                        reason = self._of_goto(action.offset, site)
                    case _:
                        reason = ""
                if reason:
                    return reason
        return ""

    def _of_return(self, value: typed.Expr, site: Site) -> str:
        function = site.function
        if not self._is_entry(site):
            return "return() is only for the entry of a function, before its stack frame is made"
        if self._types is None:
            return "return() needs the kernel's types, to know what the function returns"
        name = function.name.partition("@")[0]
        try:
            signature = self._types.function(name, function.module)
        except KinstError as error:
            return f"return() needs the type of {name}: {error.message}"
        if signature is None:
            return f"the kernel's types do not tell what {name} returns"
        return _unfit(name, signature.result, value)

    def _is_entry(self, site: Site) -> bool:
        """Return whether nothing but landing pads and no-operations precedes a site in its
        function.
        """
        if not site.offset:
            return True
        kernel = self._kernel
        before = [one for one in kernel.beginning(site.function) if one.address < site.address]
        return bool(before) and before[-1].end == site.address and all(
            kernel.isa.is_nop(one.code)
            or kernel.isa.flow(one.code, one.address).kind == "landing"
            for one in before
        )  # fmt: skip

    def _of_skip(self, site: Site) -> str:
        isa, function = self._kernel.isa, site.function
        flow = isa.flow(site.code, site.address)
        if flow.kind != "next" or not flow.falls_through:
            return "skip() is not for instructions that branch, call, return or trap"
        if reason := isa.unskippable(site.code, site.address):
            return f"skip() cannot leave it out: {reason}"
        if self._instruction_at(function, site.offset + len(site.code)):
            return ""
        return "skip() needs an instruction of the same function after it"

    def _of_goto(self, offset: int, site: Site) -> str:
        function, system = site.function, self._system
        if not self._instruction_at(function, offset):
            return f"goto({offset}): no instruction of {function.name} begins there"
        here = system.frame_address(site.address)
        there = system.frame_address(function.address + offset)
        if here is None or there is None:
            place = site.offset if here is None else offset
            return f"goto({offset}): the unwind tables have no rule for {function.name}+{place}"
        if here != there:
            return (
                f"goto({offset}): the stack frame is another one there: {_told(there)} instead of"
                f" {_told(here)}"
            )
        return ""

    def _instruction_at(self, function: Function, offset: int) -> bool:
        address = function.address + offset
        return any(one.address == address for one in self._kernel.instructions(function))


def _told(rule: tuple[str, int]) -> str:
    register, offset = rule
    return f"{register} + {offset}"


def _unfit(name: str, result: DType, value: typed.Expr) -> str:
    """Return why a value cannot be the result of a function; "" if it can.

    Args:
        name: the function's name.
        result: type of its result.
    """
    if not isinstance(result, IntType | PointerType):
        return f"return(): {name} returns {result}, which is no integer or pointer"
    if result.size > _WORD:
        return f"return(): {name} returns {result}, which is not in one register"
    if not isinstance(value, typed.IntConst) or not isinstance(result, IntType):
        return ""
    bits = 8 * result.size
    fits = -(1 << (bits - 1)) <= value.value < 1 << bits
    if result.name in ("_Bool", "bool"):
        fits = value.value in (0, 1)
    return "" if fits else f"return(): {name} returns {result}, which cannot be {value.value}"
