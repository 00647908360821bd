"""Stubs that send what no stub should: kinst's side of the conversation ends, or raises
TargetError.

The stub is played in this thread, in place of the socket; its time is simulated, so that waiting
for half a minute is over immediately.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from kinst.core.errors import TargetError
from kinst.isa import load
from kinst.machines.stub import cpus
from kinst.machines.stub.cpus import Debugger, hardware_breakpoints_of
from kinst.wire import rsp
from kinst.wire.packets import frame
from kinst.wire.rsp import Rsp
from tests.fuzz.damage import BAD, chance

FEW, MANY = 3000, 1_000_000
MOST_REQUESTS = 20_000  # of a conversation that comes to an end
MOST_BYTES = 256 << 20
ISA = load("amd64")
TARGET = b"""<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd">
<target><architecture>i386:x86-64</architecture><xi:include href="core.xml"/></target>"""
CORE = b"""<?xml version="1.0"?><!DOCTYPE feature SYSTEM "gdb-target.dtd"><feature name="core">%b
<reg name="st0" bitsize="80" regnum="24"/></feature>""" % b"".join(
    b'<reg name="%b" bitsize="64" type="int64"/>' % name
    for name in (*(b"rax rbx rcx rdx rsi rdi rbp rsp".split()), *(b"r%d" % k for k in range(8, 16)),
                 b"rip", b"eflags", b"cs")
)  # fmt: skip
# Pieces of replies, sent where others are expected.
PIECES = (
    b"", b"OK", b"E01", b"E.error", b"T05thread:01;", b"S05", b"W00", b"X09", b"Tzz", b"T", b"m1",
    b"m", b"l", b"mp01.01,p01.02", b"QC1", b"xxxxxxxx", b"zz", b"0", b"\xff\xff", b"*", b"0*\x7f",
    b"}", b"m<reg", b"l<target>", b"l" + TARGET, b"vCont;", b"PacketSize=", b"PacketSize=0",
    b"PacketSize=ffffffffffffffffffff", b"PacketSize=-1;QStartNoAckMode+", b"ENABLE=1",
    b"l<target><reg/></target>", b'l<t><reg name="rip" bitsize="x"/></t>',
    b'l<t><reg name="rip" bitsize="-64"/></t>', b'l<t><reg name="rip" bitsize="8"/></t>',
    b'l<t><reg name="rip" bitsize="9999999999"/></t>', b'l<t><reg regnum="0x"/></t>',
    b'l<t><reg name="rip" regnum="-5"/></t>', b"l<!DOCTYPE",
    b'l<t><include href="target.xml"/></t>',
    b'l<!DOCTYPE t [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><t>&b;</t>',
)  # fmt: skip


class PlayedStub:
    """The client's socket.

    Args:
        change: returns the bytes to send in place of a reply to a request.
    """

    def __init__(self, change: Callable[[bytes, bytes], bytes]) -> None:
        self._change = change
        self._asked = b""
        self.told = b""
        self.requests = 0
        self.received = 0
        self.closed = False

    def setblocking(self, flag: bool) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def send(self, data: bytes) -> int:
        self._asked += bytes(data)
        while self._asked:
            if self._asked[:1] == b"$":
                end = self._asked.find(b"#")
                if end < 0 or len(self._asked) < end + 3:
                    break
                body, self._asked = self._asked[1:end], self._asked[end + 3 :]
            else:
                body, self._asked = self._asked[:1], self._asked[1:]
                if body != b"\x03":
                    continue  # an acknowledgement, or noise
            self.requests += 1
            if self.requests > MOST_REQUESTS:
                raise AssertionError("the conversation has no end")
            self.told += self._change(body, self._right(body))
        return len(data)

    def recv(self, most: int) -> bytes:
        data, self.told = self.told[:most], self.told[most:]
        self.received += len(data)
        if self.received > MOST_BYTES:
            raise AssertionError("the stub never stops talking")
        return data

    def _right(self, body: bytes) -> bytes:
        """Return the reply of a stub that works."""
        known = {
            b"qSupported": b"PacketSize=1000;qXfer:features:read+;vContSupported+",
            b"qqemu": b"ENABLE=1", b"vCont?": b"vCont;c;C;s;S", b"vCont": b"T05thread:01;",
            b"?": b"T05thread:01;", b"\x03": b"T02thread:02;", b"qfT": b"m01,02", b"qsT": b"l",
            b"qC": b"QC01", b"g": b"00" * 160, b"qXfer:features:read:target": b"l" + TARGET,
            b"qXfer:features:read:core": b"l" + CORE, b"m": b"cc" * 16, b"p": b"00" * 8,
        }  # fmt: skip
        found = [key for key in known if body.startswith(key)]
        return known[max(found, key=len)] if found else b"OK"


class Clock:
    """A clock that each look advances."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 0.05
        return self._now


@contextmanager
def played() -> Iterator[None]:
    def wait_until_ready(
        readable: list[Any], writable: Sequence[Any] = (), seconds: float | None = None
    ) -> tuple[list[Any], list[Any]]:
        ready = [one for one in readable if (one if hasattr(one, "told") else one._sock).told]
        return ready, list(writable)

    clock = Clock()
    with (
        mock.patch.object(rsp, "wait_until_ready", wait_until_ready),
        mock.patch.object(rsp, "time", clock),
        mock.patch.object(cpus, "time", clock),
    ):
        yield


def converse(stub: PlayedStub) -> None:
    """Make all requests that kinst makes of a stub."""
    client = Rsp(stub)  # type: ignore[arg-type]
    client.ask_stopped()
    registers = hardware_breakpoints_of(client, ISA)
    debugger = Debugger(client, ISA, hardware_breakpoints=registers)
    client.physical_memory()
    for cpu in range(min(debugger.cpus, 3)):
        dict(debugger.registers(cpu))
    client.read_memory(0xFFFF_8000_0000_0000, 16)
    client.write_memory([(0x1000, b"\xcc"), (0x2000, bytes(600))])
    debugger.insert_breakpoint(0x1000)
    debugger.want_breakpoints([0x2000, 0x3000])
    debugger.resume(0, {"rip": 0x1000, "rsp": (1 << 64) - 8})
    debugger.poll(1.0)
    debugger.stop()
    debugger.step_over(0, 0x1000)
    debugger.remove_breakpoints([0x2000])
    debugger.detach()


def changes(draw: random.Random) -> Callable[[bytes, bytes], bytes]:
    """Return changes of some requests' replies: other text, or more text."""
    rare = draw.choice((2, 5, 20))
    only = draw.choice((b"", b"", b"qX", b"g", b"qf", b"qs", b"m", b"v", b"p", b"Z", b"?", b"qS"))

    def change(body: bytes, right: bytes) -> bytes:
        if not body.startswith(only) or draw.randrange(rare):
            return frame(right)
        kind = draw.randrange(9)
        if kind < 3:
            return frame(draw.choice(PIECES))
        if kind == 3:
            return frame(right[: draw.randrange(len(right) + 1)])
        if kind == 4:
            return frame(right) * draw.randrange(4)
        if kind == 5:
            return draw.randbytes(draw.randrange(40)) + frame(right)
        if kind == 6:
            return frame(right + draw.choice((*PIECES, *BAD)))
        out = bytearray(right or b"?")
        for _ in range(draw.choice((1, 1, 2, 8))):
            out[draw.randrange(len(out))] = draw.randrange(256)
        sent = frame(bytes(out))
        return sent if kind == 7 else b"$" + bytes(out) + b"#" + draw.choice((b"00", b"zz", b""))

    return change


def one(seed: int) -> bool:
    """Return whether this conversation ends without an error."""
    stub = PlayedStub(changes(random.Random(seed)))
    try:
        with played():
            converse(stub)
    except TargetError as error:
        assert "\n" not in error.message, seed
        return False
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return True


def run(count: int) -> None:
    draw = chance()
    good = sum(one(draw.randrange(1 << 62)) for _ in range(count))
    assert 0 < good < count


def test_a_stub_that_works() -> None:
    with played():
        converse(PlayedStub(lambda body, right: frame(right)))


def test_strange_stubs() -> None:
    run(FEW)


@pytest.mark.parametrize("seed", [1628690127715818760])
def test_what_went_wrong_once(seed: int) -> None:
    one(seed)


@pytest.mark.slow
def test_many_strange_stubs() -> None:
    run(MANY)


@pytest.mark.parametrize("request_", [b"qf", b"qs", b"qX", b"?", b"m", b"g", b"vCont", b"\x03"])
@pytest.mark.parametrize(
    "reply", [b"m1", b"mAAAA", b"T05thread:01;", b"S05", b"+", b"%Stop:T05;"], ids=repr
)
def test_one_that_always_says_the_same(request_: bytes, reply: bytes) -> None:
    """More of a list, of a file, of stops: kinst stops reading, or refuses."""
    with played():
        stub = PlayedStub(
            lambda body, right: frame(reply) if body.startswith(request_) else frame(right)
        )
        try:
            converse(stub)
        except TargetError as error:
            assert "\n" not in error.message


@pytest.mark.parametrize("junk", [b"+", b"$", b"%", b"a" * 100_000, b"$m1", b"%x#00", b"\0"])
def test_one_that_never_stops_talking(junk: bytes) -> None:
    class Chatter(PlayedStub):
        def recv(self, most: int) -> bytes:
            self.told = (junk * (1 + 2_000 // len(junk)))[:most]
            data = super().recv(most)
            self.told = junk
            return data

    with played(), pytest.raises(TargetError):
        stub = Chatter(lambda body, right: frame(right))
        stub.told = junk
        converse(stub)
