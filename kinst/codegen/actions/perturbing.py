"""LLVM IR of the actions that change the traced function: regs[] =, return(), skip() and goto().

A clause changes only the frame of saved registers. When all clauses of the probe have run, the
trampoline loads the changed registers from the frame. Then it leads control to the exit whose
number is in the frame's exit slot: back to the caller, past the instruction, or to another
instruction of the function. At a stopped machine, kinst does this instead of a trampoline.

Tested by tests/fake/test_perturbing.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kinst.codegen.firing import Firing
from kinst.codegen.ssa import IrValue, const
from kinst.codegen.values.lowering import scalar
from kinst.core.bodies import GOTO, RETURN, SKIP
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.dlang import typed

if TYPE_CHECKING:
    from kinst.codegen.code_machine import CodeMachine
    from kinst.core.isa import Isa


@dataclass(frozen=True, slots=True)
class Perturbation:
    """What clauses may change in the function that they trace.

    Attributes:
        slots: frame slots of the registers that they may write.
        exits: numbers of the exits to which their return(), skip() and goto() may lead control
            (core/bodies.py, Exit.number).
    """

    slots: frozenset[int] = frozenset()
    exits: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.slots or self.exits)


NO_CHANGES = Perturbation()


def changes_of(clauses: Iterable[typed.Clause], machine: Isa | CodeMachine) -> Perturbation:
    """Return what these clauses may change.

    Args:
        machine: tells the frame slots of registers.
    """
    slots, exits = set[int](), set[int]()
    for clause in clauses:
        for action in clause.actions:
            match action:
                case typed.SetRegisterAction():
                    slots.add(_slot(action, machine))
                case typed.ReturnAction():
                    slots.add(machine.result_slot)
                    exits.add(RETURN)
                case typed.SkipAction():
                    exits.add(SKIP)
                case typed.GotoAction():
                    exits.add(GOTO + action.offset)
    return Perturbation(frozenset(slots), frozenset(exits)) if slots or exits else NO_CHANGES


def perturb(firing: Firing, action: typed.PerturbAction) -> None:
    """Emit LLVM IR of an action that changes registers or control. The code stores to the frame of
    saved registers.
    """
    machine = firing.unit.machine
    match action:
        case typed.SetRegisterAction():
            _store(firing, _slot(action, machine), scalar(firing, action.value))
        case typed.ReturnAction():
            value = scalar(firing, action.value)
            signed = typed.is_signed(action.value.type)
            _store(firing, machine.result_slot, firing.code.convert(value, 64, signed))
            _store(firing, machine.exit_slot, const(RETURN))
        case typed.SkipAction():
            _store(firing, machine.exit_slot, const(SKIP))
        case typed.GotoAction():
            _store(firing, machine.exit_slot, const(GOTO + action.offset))


def _slot(action: typed.SetRegisterAction, machine: Isa | CodeMachine) -> int:
    for register in machine.registers:
        if register.index == action.index:
            return register.slot
    raise KinstError(f"{action.span}: there is no regs[{action.index}]")


def _store(firing: Firing, slot: int, value: IrValue) -> None:
    firing.code.store(value, firing.code.add(firing.frame, 8 * slot))
