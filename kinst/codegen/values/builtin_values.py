"""LLVM IR that reads built-in variables: from the site's descriptor, the register frame, per-CPU
data and the clock. On the host, the CONTEXT_* words (core/layout.py) take the place of per-CPU data
and the clock: kinst stores the values there before it runs a clause.

Tested by tests/codegen/test_records_and_faults.py and tests/codegen/test_process_state.py.
"""

from __future__ import annotations

from kinst.codegen.firing import (
    TEMP_WORD,
    Firing,
    Lowered,
    Text,
    Unit,
    context_word,
    current_thread,
    read_access,
)
from kinst.codegen.helpers.branching import both, byte_in, least, leave, loop, most, step
from kinst.codegen.helpers.memory_access import load_word, user_helper, user_of
from kinst.codegen.helpers.paths import current_directory, root_directory
from kinst.codegen.layout.variable_places import bits_of
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.dtypes import DType
from kinst.core.errors import KinstError
from kinst.core.layout import (
    ARGUMENT_CONSTANT,
    ARGUMENT_HOST,
    ARGUMENT_POINTED,
    ARGUMENT_SLOT,
    ARGUMENT_STACK,
    ARGUMENTS,
    CONTEXT_ARGS,
    CONTEXT_CALLER,
    CONTEXT_CPU,
    CONTEXT_CURTHREAD,
    CONTEXT_CWD,
    CONTEXT_EXECARGS,
    CONTEXT_EXECNAME,
    CONTEXT_GID,
    CONTEXT_PID,
    CONTEXT_PPID,
    CONTEXT_ROOT,
    CONTEXT_TID,
    CONTEXT_TIMESTAMP,
    CONTEXT_UID,
    CONTEXT_VTIMESTAMP,
    CONTEXT_WALLTIMESTAMP,
    FAULT_BADADDR,
    FAULT_ILLOP,
    HEADER_CLOCK,
    POINTED_SHIFT,
    POINTED_SLOT,
    RA_IN_SLOT,
    SITE_ARGUMENTS,
    SITE_CFA_OFFSET,
    SITE_CFA_SLOT,
    SITE_EPID,
    SITE_FUNCTION,
    SITE_MODULE,
    SITE_NAME,
    SITE_PROBE,
    SITE_PROVIDER,
    SITE_RA_OFFSET,
    STATE_FAULT,
)
from kinst.dlang.typed import is_signed

_SPACE = ord(" ")


def _arguments(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function arguments(dst, size, task, working memory of 8 bytes), which stores
    the command line arguments of the task's process as a string.  The function returns 0, or the
    address that it could not read.
    """
    user = user_of(unit)
    assert user.mm is not None
    code = unit.function(name, 4)
    dst, size, task, room = code.params
    code.store(const(0, 8), dst)

    def word(address: IrValue) -> IrValue:
        failed = code.call_c(unit.machine.nofault_read, (room, address, const(8)))
        leave(code, code.icmp("ne", failed, 0), address)
        return code.load(64, room)

    # BEGIN and kernel threads have no arguments.
    leave(code, code.icmp("eq", task, 0), const(0))
    mm = word(code.add(task, user.mm.offsets[-1]))
    leave(code, code.icmp("eq", mm, 0), const(0))
    start, end = word(code.add(mm, user.arg_start)), word(code.add(mm, user.arg_end))
    room_for = code.op("sub", size, const(1))
    count = most(code, least(code, code.op("sub", end, start), room_for), 0)
    failed = code.call(user_helper(unit), (dst, start, count))
    leave(code, code.icmp("ne", failed, 0), start)
    last = code.local(64)
    code.set(last, count)

    def is_padding() -> IrValue:
        before = code.op("sub", code.get(last), const(1))
        empty = code.icmp("eq", byte_in(code, dst, before, count), 0)
        return both(code, empty, code.icmp("ne", code.get(last), 0))

    loop(code, is_padding, lambda: step(code, last, -1))
    at = code.local(64)

    def separate() -> None:
        here = code.op("add", dst, code.get(at))
        byte = code.load(8, here)
        code.store(code.select(code.icmp("eq", byte, 0), const(_SPACE, 8), byte), here)
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), code.get(last)), separate)
    code.store(const(0, 8), code.op("add", dst, code.get(last)))
    code.ret(const(0))
    return code


def execargs(firing: Firing) -> Lowered:
    """Emit LLVM IR that builds the string of the current process's command line arguments; return
    the string. It is what the process's memory has now: the process may have changed its arguments.

    Spaces separate the arguments, and the string is cut to strsize bytes. The string is "" if there
    are no arguments.
    """
    code, machine = firing.code, firing.unit.machine
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    if machine.host and machine.user is None:
        code.store(const(0, 8), room)
        return Text(room, size)
    if not user_of(firing.unit).arg_start:
        raise KinstError(
            "execargs is not available: kinst does not know where this kernel keeps the arguments"
            " of a process"
        )
    words = (room, const(size), current_thread(firing), code.add(firing.temp(), TEMP_WORD))
    bad = code.call(firing.unit.helper("arguments", _arguments), words)
    firing.faults.add(code, code.icmp("ne", bad, 0), FAULT_BADADDR, bad)
    return Text(room, size)


_SITE_TEXT = {
    "probeprov": SITE_PROVIDER,
    "probemod": SITE_MODULE,
    "probefunc": SITE_FUNCTION,
    "probename": SITE_NAME,
}

_CONTEXT = {
    "cpu": CONTEXT_CPU,
    "pid": CONTEXT_PID,
    "tid": CONTEXT_TID,
    "ppid": CONTEXT_PPID,
    "uid": CONTEXT_UID,
    "gid": CONTEXT_GID,
    "curthread": CONTEXT_CURTHREAD,
    "timestamp": CONTEXT_TIMESTAMP,
    "vtimestamp": CONTEXT_VTIMESTAMP,
    "walltimestamp": CONTEXT_WALLTIMESTAMP,
    "caller": CONTEXT_CALLER,
}

_TEXTS = {
    "cwd": (current_directory, CONTEXT_CWD),
    "execargs": (execargs, CONTEXT_EXECARGS),
    "root": (root_directory, CONTEXT_ROOT),
}

_CONTEXT_NAME_SIZE = 32

_NO_SLOT = 0xFFFFFFFF


def timestamp(firing: Firing) -> IrValue:
    """Emit LLVM IR that computes the time in ns; return the time.  A firing reads the clock once,
    when it first needs the time.
    """
    code = firing.code
    machine = firing.unit.machine
    if machine.host:
        return code.load(64, context_word(firing, CONTEXT_TIMESTAMP))
    if not machine.keeps_time:
        raise KinstError("the clock of this kernel is not known: records cannot be timed")
    clock = machine.clock
    assert clock is not None
    earlier = code.get(firing.time)
    before = code.at
    read, after = code.fresh("clock"), code.fresh("timed")
    code.branch(code.icmp("eq", earlier, 0), read, after)
    code.block(read)
    cycles = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    base_cycles, mult, base_ns = (
        code.load(bits, const(machine.address(HEADER_CLOCK + 8 * word)))
        for word, bits in enumerate((64, 32, 64))
    )
    elapsed = code.op("sub", cycles, base_cycles)
    # Signed: this CPU's counter may be a little lower than the counter of the CPU on which
    # base_cycles was read.
    wide = code.convert(elapsed, 128, signed=True)
    product = code.op("mul", wide, code.convert(mult, 128, signed=False))
    now = code.convert(code.op("ashr", product, clock.shift), 64, signed=False)
    if clock.base_ns:
        now = code.add(now, base_ns)
    code.assume(code.icmp("ne", now, 0))
    code.set(firing.time, now)
    code.jump(after)
    code.block(after)
    return code.phi(64, [(earlier, before), (now, read)])


def _walltimestamp(firing: Firing) -> IrValue:
    now = timestamp(firing)
    clock = firing.unit.machine.clock
    assert clock is not None  # timestamp() has raised
    return firing.code.add(now, clock.wall_offset)


def _vtimestamp(firing: Firing) -> IrValue:
    """Emit LLVM IR that computes how long the current thread has run; return the time in ns."""
    code, machine = firing.code, firing.unit.machine
    terms = machine.thread_time
    if terms is None:
        raise KinstError(
            "vtimestamp is not available: the scheduler of this kernel does not keep time by the"
            " cycle counter",
            "use timestamp",
        )
    total = code.add(timestamp(firing), terms.offset_ns)
    for op, accesses in (("add", terms.plus), ("sub", terms.minus)):
        for access in accesses:
            value = read_access(code, machine, access)
            assert not isinstance(value, Text)
            total = code.op(op, total, value)
    return total


def _caller(firing: Firing) -> IrValue:
    """Emit LLVM IR that finds the return address of the traced function by the site's CFA rule;
    return the address, or 0 if the site has no rule.

    The rule gives a register and offsets from its value. If the register is the stack pointer, the
    code loads the return address directly. Any other register may hold any value, so the code then
    uses a no-fault read.
    """
    code = firing.code
    slot = code.load(32, code.add(firing.site, SITE_CFA_SLOT))
    begin = code.at
    names = ("cfa", "saved", "stack", "other", "caller")
    has_rule, saved, stack, other, end = (code.fresh(n) for n in names)
    code.branch(code.icmp("eq", slot, _NO_SLOT), end, has_rule)
    code.block(has_rule)
    index = code.op("shl", code.convert(slot, 64, signed=False), 3)
    base = code.load(64, code.op("add", firing.frame, index))
    offsets = [
        code.convert(code.load(32, code.add(firing.site, at)), 64, signed=True)
        for at in (SITE_CFA_OFFSET, SITE_RA_OFFSET)
    ]
    code.branch(code.icmp("eq", offsets[1], RA_IN_SLOT), end, saved)
    code.block(saved)
    address = code.op("add", code.op("add", base, offsets[0]), offsets[1])
    code.branch(code.icmp("eq", slot, firing.unit.machine.sp_slot), stack, other)
    code.block(stack)
    near = code.load(64, address)
    code.jump(end)
    code.block(other)
    far = load_word(firing, address, 64)
    far_at = code.at
    code.jump(end)
    code.block(end)
    caller = code.phi(64, [(const(0), begin), (base, has_rule), (near, stack), (far, far_at)])
    signature = firing.unit.machine.signature_bits
    if not signature:
        return caller
    # In the kernel's addresses bit 55 is 1, and so are the bits that a signature replaces.
    kernel = code.op("ashr", code.op("shl", caller, 8), 63)
    return code.op("or", caller, code.op("and", kernel, signature))


def _argument(firing: Firing, number: int) -> IrValue:
    """Emit LLVM IR that reads argN as the site's descriptor says: from a register, the stack or
    other memory, or as a constant. Return the argument's value. If the site has no such argument,
    the code faults as an illegal operation.

    Args:
        number: the N of argN.
    """
    code, machine = firing.code, firing.unit.machine
    at = code.add(firing.site, SITE_ARGUMENTS + 8 * number)
    kind = code.load(32, at)
    value = code.convert(code.load(32, code.add(at, 4)), 64, signed=True)
    sources: list[tuple[IrValue, str]] = []
    end = code.fresh("argument")

    def when(wanted: int) -> str:
        """Emit a test whether the argument's kind in the site's descriptor is `wanted`, and begin
        the block for arguments of this kind; return the label for arguments of other kinds.

        Args:
            wanted: one of ARGUMENT_*.
        """
        this, others = code.fresh("kind"), code.fresh("kind")
        code.branch(code.icmp("eq", kind, wanted), this, others)
        code.block(this)
        return others

    def done(result: IrValue, others: str) -> None:
        sources.append((result, code.at))
        code.jump(end)
        code.block(others)

    others = when(ARGUMENT_SLOT)
    done(code.load(64, code.op("add", firing.frame, code.op("shl", value, 3))), others)
    others = when(ARGUMENT_CONSTANT)
    done(value, others)
    others = when(ARGUMENT_STACK)
    stack = code.load(64, code.add(firing.frame, 8 * machine.sp_slot))
    done(load_word(firing, code.op("add", stack, value), 64), others)
    others = when(ARGUMENT_POINTED)
    slot = code.op("and", value, POINTED_SLOT)
    pointer = code.load(64, code.op("add", firing.frame, code.op("shl", slot, 3)))
    place = code.op("add", pointer, code.op("ashr", value, POINTED_SHIFT))
    done(load_word(firing, place, 64), others)
    if machine.host:
        others = when(ARGUMENT_HOST)
        done(code.load(64, context_word(firing, CONTEXT_ARGS + number)), others)
    # Any other kind means that the site has no such argument.
    firing.faults.add(code, code.icmp("ult", kind, 1 << 31), FAULT_ILLOP, const(0))
    done(const(0), end)
    return code.phi(64, sources)


def _error_argument(firing: Firing, number: int) -> IrValue:
    """Emit LLVM IR that reads argN of dtrace:::ERROR: arg1 is the epid, arg2 the action, arg4 the
    fault's kind and arg5 its value.  Any other argument is 0.  Return the value.
    """
    place = {1: 0, 2: 1, 4: 2, 5: 3}.get(number)
    if place is None:
        return const(0)
    return firing.code.load(64, firing.field(STATE_FAULT + 8 * place))


def _usermode(firing: Firing) -> IrValue:
    """Emit LLVM IR that tests whether the probe fired in user mode; return 0 or 1.

    Only a sample of profile-N can fire in user mode. In such a sample, arg0 is 0 and arg1, the
    program counter in user mode, is not.
    """
    if not firing.unit.machine.host:
        return const(0, 32)
    code = firing.code
    kernel, user = (code.load(64, context_word(firing, CONTEXT_ARGS + n)) for n in (0, 1))
    outside = code.op("and", code.icmp("eq", kernel, 0), code.icmp("ne", user, 0))
    return code.convert(outside, 32, signed=False)


def _process_text(firing: Firing, name: str) -> Lowered:
    """Emit LLVM IR that makes the value of cwd, execargs or root; return it.

    In the target, the value is that of the current thread's process. On the host, the variable's
    CONTEXT_* word is the address of the value, if the clause runs for kinst's own process. If the
    word is 0, the value is that of the current thread's process in the traced kernel.

    Args:
        name: name of the built-in variable.
    """
    code = firing.code
    of_thread, word = _TEXTS[name]
    if not firing.unit.machine.host:
        return of_thread(firing)
    own = code.load(64, context_word(firing, word))
    before = code.at
    traced, end = code.fresh("traced"), code.fresh("text")
    code.branch(code.icmp("eq", own, 0), traced, end)
    code.block(traced)
    text = of_thread(firing)
    assert isinstance(text, Text)
    address, after = text.address, code.at
    code.jump(end)
    code.block(end)
    address = code.phi(64, [(own, before), (address, after)])
    return Text(address, firing.unit.layout.strsize)


def _scalar(firing: Firing, name: str) -> Lowered:
    code = firing.code
    machine = firing.unit.machine
    if name == "id":
        return code.load(32, code.add(firing.site, SITE_PROBE))
    if name == "epid":
        return epid(firing)
    number = int(name[3:]) if name[:3] == "arg" and name[3:].isdigit() else -1
    if number >= 0 and firing.in_error:
        return _error_argument(firing, number)
    if 0 <= number < ARGUMENTS:
        return _argument(firing, number)
    if name in _TEXTS:
        return _process_text(firing, name)
    if name == "usermode":
        return _usermode(firing)
    if machine.host:
        if name == "execname":
            return Text(context_word(firing, CONTEXT_EXECNAME), _CONTEXT_NAME_SIZE)
        if name in _CONTEXT:
            return code.load(64, context_word(firing, _CONTEXT[name]))
    elif name == "cpu":
        return firing.cpu
    elif name == "timestamp":
        return timestamp(firing)
    elif name == "walltimestamp":
        return _walltimestamp(firing)
    elif name == "vtimestamp":
        return _vtimestamp(firing)
    elif name == "caller":
        return _caller(firing)
    elif name in machine.builtins:
        return read_access(code, machine, machine.builtins[name])
    raise KinstError(f"{name} is not available in this kernel ({machine.name})")


def epid(firing: Firing) -> IrValue:
    """Emit LLVM IR that computes the built-in variable epid, the number of the enabled clause that
    runs; return it, an i32.
    """
    return firing.code.add(
        firing.code.load(32, firing.code.add(firing.site, SITE_EPID)), firing.ordinal
    )


def builtin(firing: Firing, name: str, type_: DType) -> Lowered:
    """Emit LLVM IR that reads a built-in variable; return its value, converted to its D type.

    Raises KinstError if this machine does not have the variable.
    """
    if name in _SITE_TEXT:
        code = firing.code
        address = code.load(64, code.add(firing.site, _SITE_TEXT[name]))
        return Text(address, firing.unit.layout.strsize)
    value = _scalar(firing, name)
    if isinstance(value, Text):
        return value
    machine = firing.unit.machine
    access = None if machine.host else machine.builtins.get(name)
    signed = access.signed if access else is_signed(type_)
    return firing.code.convert(value, bits_of(type_), signed)
