"""Code that writes a record in line, without a call and with interrupts as they are (RecordBody of
core/bodies.py).

    raise    increment the kernel's preemption count, so that no other thread runs on this CPU and
             this thread stays on it. On a kernel that does not preempt threads, raise nothing; if
             preemption can be enabled while the kernel runs, test that this has not happened
    reserve  read STATE_RESERVED; test that tracing is active, that this CPU is in no clause, and
             that the ring has space
    time     read the cycle counter, then cmpxchg STATE_RESERVED. The cmpxchg fails if an interrupt
             has written a record since, so the times in a ring are in the records' order
    fill     write the record with plain moves: the reserved space belongs to this record alone
    show     set STATE_HEAD to STATE_RESERVED, so that the consumer sees the record. Repeat if an
             interrupt has reserved more space meanwhile. If this record has itself interrupted the
             writing of another one, leave STATE_HEAD alone: the other record's code sets it later
    lower    decrement the preemption count

If any of this cannot be done, a call writes the record. Lowering the count does not reschedule: if
a timer tick asks for that within these nanoseconds, the kernel reschedules at its next occasion.
cmpxchg has no lock prefix, since other CPUs do not write this CPU's state page.

Tested by tests/isa/test_batches.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kinst.core.bodies import RecordAddresses, RecordBody, RecordField
from kinst.core.displaced import OutOfReach
from kinst.core.layout import (
    RECORD_PROBE,
    RECORD_SIZE,
    RECORD_TIME,
    STATE_CLOSED,
    STATE_HEAD,
    STATE_RESERVED,
    STATE_TAIL,
)
from kinst.core.system import Clock
from kinst.core.words import PAGE
from kinst.isa.amd64 import encode as e
from kinst.isa.amd64 import registers as r

# rcx: bytes from CPU 0's state page to this CPU's.  rax: STATE_RESERVED before.  rdx: the record's
# offset from CPU 0's ring.  r11: the time, then each value to store.
CHANGED = frozenset((e.RAX, e.RCX, e.RDX, e.R11))
_PAGE_SHIFT = PAGE.bit_length() - 1
_EQUAL, _NOT_EQUAL, _SIGN = 0x4, 0x5, 0x8  # conditions of branches
_REGISTERS = {**r.GENERAL, **{r.SLOT[n]: k for n, k in (("rsi", 6), ("rdi", 7), ("r11", 11))}}


def lower(addresses: RecordAddresses) -> bytes:
    """Return code that lowers the kernel's preemption count after a record; b"" if the code of
    write() does not raise the count."""
    if addresses.settled is not None:
        return b""
    return b"\x65\xff\x0c\x25" + e.disp32(addresses.busy)  # dec dword gs:[busy]


def _near(address: int) -> bytes:
    """Return an address as a sign-extended 32-bit displacement. Raises OutOfReach if it is not in
    the last 2 GB of addresses."""
    signed = e.signed64(address)
    if not e.fits32(signed):
        raise OutOfReach("a ring is not in the last 2 GB of addresses")
    return e.disp32(signed)


def write(body: RecordBody, on_stack: Mapping[int, int], call: bytes) -> bytes:
    """Return code that tries to write a record, followed by the code `call`. Control runs `call`
    only if the record could not be written; otherwise it jumps over `call`.

    The code may raise the preemption count, and does not lower it. So `call` must begin with the
    code of lower(), and so must the code that the caller puts after the returned code.

    Args:
        body: the record.
        on_stack: offset from rsp of the value of each saved register, by register number.
        call: code that lowers the preemption count and then writes the record by a call.

    Raises:
        OutOfReach: a ring is not in the last 2 GB of addresses.
    """
    written = _filled(body, on_stack) + _end(body, len(call))
    return _reserved(body) + _branch(_NOT_EQUAL, len(written)) + written + call


def _reserved(body: RecordBody) -> bytes:
    """Return code that reserves space in the ring and sets the zero flag if it succeeded.

    All conditions are computed into one word, so that one branch tests them: each branch ends a
    translation block of QEMU.
    """
    addresses, clock = body.addresses, body.addresses.clock
    state = e.signed64(addresses.state)
    code = b""
    if addresses.settled is None:
        code += b"\x65\xff\x04\x25" + e.disp32(addresses.busy)  # inc dword gs:[busy]
    code += b"\x65\x8b\x0c\x25" + e.disp32(addresses.cpu)  # mov ecx, gs:[cpu]
    code += b"\xc1\xe1" + bytes((_PAGE_SHIFT,))  # shl ecx, 12
    # The signs of the following words are conditions: no word may be negative.
    code += b"\x48\x8b\x91" + _near(state + STATE_CLOSED)  # mov rdx, [rcx + CLOSED]
    code += e.load_value(e.RAX, 1 << 32 | 1)  # closed, or the sequence odd
    code += b"\x48\x21\xc2\x48\xf7\xda"  # and rdx, rax; neg rdx
    code += b"\x4c\x8b\x99" + _near(state + STATE_RESERVED)  # mov r11, [rcx + RESERVED]
    code += e.load_value(e.RAX, addresses.ring_size - body.size)
    code += b"\x4c\x29\xd8"  # sub rax, r11
    code += b"\x48\x03\x81" + _near(state + STATE_TAIL)  # add rax, [rcx + TAIL]: too full
    code += b"\x48\x09\xc2"  # or rdx, rax
    code += b"\x44\x89\xd8\xf7\xd0\x25" + e.disp32(addresses.ring_size - 1)  # mov, not, and eax
    code += b"\x48\x2d" + e.disp32(body.size - 1)  # sub rax, size - 1: over the ring's end
    code += b"\x48\x09\xc2"  # or rdx, rax
    if addresses.settled:
        code += b"\x8b\x04\x25" + _near(addresses.settled)  # mov eax, [settled]
        code += b"\x48\xc1\xe0\x3e\x48\x09\xc2"  # shl rax, 62: was 2 or 3; or rdx, rax
    # sar rdx, 63; xor r11, rdx: if one is set, the start differs from STATE_RESERVED
    code += b"\x48\xc1\xfa\x3f\x49\x31\xd3"
    code += b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0"  # rdtsc; shl rdx, 32; or rax, rdx
    code += e.load_value(e.RDX, -clock.base_cycles) + b"\x48\x01\xd0"  # add rax, rdx
    code += _nanoseconds(clock)
    code += b"\x48\x8d\x90" + e.disp32(body.size)  # lea rdx, [rax + size]
    code += b"\x48\x0f\xb1\x91" + _near(state + STATE_RESERVED)  # cmpxchg [rcx + RESERVED], rdx
    return code


def _nanoseconds(clock: Clock) -> bytes:
    """Return code that converts the cycles in rax to a time in nanoseconds in r11, and moves r11's
    old value to rax."""
    whole = clock.mult << 64 - clock.shift if clock.shift <= 64 else 1 << 64
    if clock.base_ns == 0 and whole < 1 << 64:  # the product's upper half is the time
        code = e.load_value(e.RDX, whole) + b"\x48\xf7\xe2"  # mul rdx: rdx and rax
        return code + e.move(e.RAX, e.R11) + e.move(e.R11, e.RDX)
    code = e.load_value(e.RDX, clock.mult) + b"\x48\xf7\xea"  # imul rdx: rdx and rax
    code += b"\x48\x0f\xac\xd0" + bytes((clock.shift,))  # shrd rax, rdx, shift
    code += e.load_value(e.RDX, clock.base_ns) + b"\x48\x01\xd0"  # add rax, rdx
    return code + b"\x49\x93"  # xchg rax, r11


def _branch(condition: int, distance: int) -> bytes:
    return bytes((0x0F, 0x80 | condition)) + e.disp32(distance)


def _end(body: RecordBody, beyond: int) -> bytes:
    """Return code that makes a written record visible to the consumer. It moves STATE_HEAD from the
    start of the record to the record's end. If more space was reserved meanwhile, it moves
    STATE_HEAD to the end of that space.

    If STATE_HEAD is not at the record's start, the code leaves it alone: this record has
    interrupted another one, which is not complete yet.

    Args:
        body: the record.
        beyond: size in bytes of the code that follows this code; control jumps over it.
    """
    state = e.signed64(body.addresses.state)
    head, reserved = _near(state + STATE_HEAD), _near(state + STATE_RESERVED)
    code = b"\x48\x8d\x90" + e.disp32(body.size)  # lea rdx, [rax + size]
    code += b"\x48\x0f\xb1\x91" + head  # cmpxchg [rcx + HEAD], rdx
    code += b"\x48\x39\x91" + reserved  # cmp [rcx + RESERVED], rdx
    exchange = b"\x4c\x0f\xb1\x99" + head  # cmpxchg [rcx + HEAD], r11
    # mov r11, [rcx + RESERVED]; cmp r11, rax; je the end; cmpxchg; jmp to the start of all this
    onward = b"\x4c\x8b\x99" + reserved + b"\x49\x39\xc3"
    onward += bytes((0x70 | _EQUAL, len(exchange) + 2)) + exchange
    # mov rax, [rcx + HEAD]; mov r11, rax; sub r11, rdx; js the end
    asked = b"\x48\x8b\x81" + head + b"\x49\x89\xc3\x49\x29\xd3"
    asked += bytes((0x70 | _SIGN, len(onward) + 2))
    again = asked + onward
    again += b"\xeb" + struct.pack("<b", -len(again) - 2) + e.hop(beyond)
    return code + _branch(_EQUAL, len(again) + beyond) + again


def _filled(body: RecordBody, on_stack: Mapping[int, int]) -> bytes:
    addresses = body.addresses
    shift = bytes((addresses.ring_size.bit_length() - 1 - _PAGE_SHIFT,))
    code = b"\x89\xc2\x81\xe2" + e.disp32(addresses.ring_size - 1)  # mov edx, eax; and edx, mask
    # shl rcx; add rdx, rcx; shr rcx: from CPU 0's ring
    code += b"\x48\xc1\xe1" + shift + b"\x48\x01\xca\x48\xc1\xe9" + shift
    code += _store(addresses, RECORD_TIME, 8, e.R11)
    for field in body.fields:
        if field.kind == "time" and field.offset != RECORD_TIME:
            code += _store(addresses, field.offset, field.size, e.R11)
    code += e.load_value(e.R11, body.clause << 32 | body.size)
    code += _store(addresses, RECORD_SIZE, 8, e.R11)
    # mov r11, rcx; shl r11, 20; add r11, probe: the CPU's number above that
    code += e.move(e.R11, e.RCX) + b"\x49\xc1\xe3" + bytes((32 - _PAGE_SHIFT,))
    code += b"\x49\x81\xc3" + e.disp32(body.probe)
    code += _store(addresses, RECORD_PROBE, 8, e.R11)
    return code + b"".join(_value(addresses, field, on_stack) for field in body.fields)


def _value(addresses: RecordAddresses, field: RecordField, on_stack: Mapping[int, int]) -> bytes:
    """Return code that stores a field of a record; b"" for the time, which _filled() stores.

    Args:
        addresses: addresses of the rings.
        field: the field.
        on_stack: offset from rsp of the value of each saved register, by register number.
    """
    register, code = e.R11, b""
    match field.kind:
        case "time":
            return b""
        case "cpu":  # mov r11, rcx; shr r11, 12
            code = e.move(e.R11, e.RCX) + b"\x49\xc1\xeb" + bytes((_PAGE_SHIFT,))
        case "register" if _REGISTERS[field.value] in on_stack:
            code = e.load(e.R11, on_stack[_REGISTERS[field.value]])
        case "register":
            register = _REGISTERS[field.value]
        case _:
            code = e.load_value(e.R11, field.value)
    return code + _store(addresses, field.offset, field.size, register)


def _store(addresses: RecordAddresses, offset: int, size: int, register: int) -> bytes:
    """Encode mov [rdx + rings + offset], register: store the lowest `size` bytes of a register in a
    record."""
    rex = 0x40 | (size == 8) << 3 | (register > 7) << 2
    prefix = b"\x66" if size == 2 else b""
    opcode = 0x88 if size == 1 else 0x89
    operands = bytes((0x80 | (register & 7) << 3 | e.RDX,)) + _near(addresses.rings + offset)
    return prefix + bytes((rex, opcode)) + operands
