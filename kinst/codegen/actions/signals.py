"""LLVM IR of the actions panic(), raise() and stop(), which call functions of the traced kernel.

Tested by tests/fake/test_perturbing.py and tests/vm/perturb.
"""

from __future__ import annotations

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.firing import Firing, Text, current_thread
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.values.lowering import lower, scalar
from kinst.core.errors import KinstError
from kinst.core.layout import (
    HEADER_RAISE,
    STATE_RAISE,
    STATE_RAISE_SIGNAL,
    STATE_RAISE_THREAD,
)
from kinst.dlang import typed

RAISE_HOOK = "raise_hook"  # name of write_raise_hook()'s function


def panic(firing: Firing, action: typed.PanicAction) -> None:
    """Emit a call of the kernel's function that ends the kernel.

    Raises KinstError if kinst knows no such function, or if the clause runs in kinst's own process
    (BEGIN, END, timers, probes that stop the machine).
    """
    machine = firing.unit.machine
    if machine.host or not machine.panic:
        raise _unavailable(action, "panic()", machine)
    text = lower(firing, action.text)
    assert isinstance(text, Text)
    firing.code.call_c(machine.panic, (text.address,))


def raise_signal(firing: Firing, action: typed.RaiseAction) -> None:
    """Emit LLVM IR of raise() or stop(), which has the kernel send a signal to the current thread
    soon after the clause (Signals of core/system.py).  Raises KinstError if kinst does not know how
    to do that in this kernel, and in code for the host.
    """
    code, machine = firing.code, firing.unit.machine
    if machine.host or machine.signals is None:
        name = "stop()" if action.signal is None else "raise()"
        raise _unavailable(action, name, machine)
    signal = const(machine.signals.stop)
    if action.signal is not None:
        signal = scalar(firing, action.signal)
    work = firing.field(STATE_RAISE)
    hook = code.load(64, const(machine.address(HEADER_RAISE)))
    code.store(hook, code.add(work, machine.signals.function))
    code.store(current_thread(firing), firing.field(STATE_RAISE_THREAD))
    code.store(signal, firing.field(STATE_RAISE_SIGNAL))
    code.call_c(machine.signals.queue, (work,))


def _unavailable(action: typed.Action, name: str, machine: CodeMachine) -> KinstError:
    if machine.host:
        message = f"{name} needs a probe that is planted in the guest"
        return KinstError(f"{action.span}: {message}", "BEGIN, END, timers and stop cannot")
    return KinstError(f"{action.span}: kinst knows no function of this kernel for {name}")


def write_raise_hook(machine: CodeMachine) -> IrFunction:
    """Return the LLVM function raise_hook(work), which sends the signal of a raise() or stop(). The
    clause only queues work for the kernel, which calls this function later, in an interrupt (Linux:
    irq_work).

    `work` is the address of the kernel's structure for the queued work. The structure is in the
    state page at STATE_RAISE.
    """
    work = IrValue(64, "%work")
    code = IrFunction(RAISE_HOOK, (work,), 64, "ccc", internal=False)
    assert machine.signals is not None
    thread = code.load(64, code.add(work, STATE_RAISE_THREAD - STATE_RAISE))
    signal = code.load(64, code.add(work, STATE_RAISE_SIGNAL - STATE_RAISE))
    code.ret(code.call_c(machine.signals.send, (signal, thread, const(0))))
    return code
