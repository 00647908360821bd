"""The GDB remote protocol client against a stub double."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.core.errors import TargetError
from kinst.wire.packets import StopReply, frame, parse_stop, unframe
from kinst.wire.registers import RegisterFile, RegisterInfo, describe
from kinst.wire.rsp import Rsp, connect
from tests.wire.stub_double import Answer, StubDouble

MODERN: dict[bytes, Answer] = {
    b"qSupported": b"PacketSize=100;QStartNoAckMode+;qXfer:features:read+;vContSupported+",
    b"QStartNoAckMode": b"OK",
    b"vCont?": b"vCont;c;C;s;S",
    b"Hg": b"OK",
}


def test_frame_has_the_checksum_of_the_manual() -> None:
    # "Debugging with GDB", Overview: checksum is the modulo 256 sum of all characters.
    assert frame(b"OK") == b"$OK#9a"
    assert frame(b"m0,4") == b"$m0,4#fd"


def test_reserved_bytes_are_escaped() -> None:
    assert frame(b"a#b$c}d*") == b"$a}\x03b}\x04c}]d}\x0a#" + b"%02x" % (
        sum(b"a}\x03b}\x04c}]d}\x0a") % 256
    )


@given(st.binary(max_size=200))
def test_unframe_undoes_frame(payload: bytes) -> None:
    packet = frame(payload)
    assert unframe(packet[1:-3]) == payload
    assert packet[1:-3].count(b"$") == packet[1:-3].count(b"#") == 0


def test_runs_are_expanded() -> None:
    # "0* " is the manual's example: 0000 (space is 32: three more zeros).
    assert unframe(b"0* ") == b"0000"
    assert unframe(b"ab*\x22c") == b"a" + b"b" * 6 + b"c"


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (b"T05thread:01;", StopReply("stopped", 5, "01")),
        (b"T02thread:p01.02;06:0*;", StopReply("stopped", 2, "p01.02")),
        (b"T05swbreak:;thread:3;core:1;", StopReply("stopped", 5, "3")),
        (b"S05", StopReply("stopped", 5)),
        (b"W00", StopReply("exited", 0)),
        (b"X09;process:1", StopReply("exited", 9)),
    ],
)
def test_stop_replies(packet: bytes, expected: StopReply) -> None:
    assert parse_stop(packet) == expected


def test_a_senseless_stop_reply_is_an_error() -> None:
    with pytest.raises(TargetError, match="invalid stop reply"):
        parse_stop(b"Tzz")


def test_no_ack_mode_is_agreed_and_stop_replies_do_not_disturb() -> None:
    stub = StubDouble(MODERN | {b"?": b"T05thread:02;"}, greeting=b"T02thread:01;")
    client = Rsp(stub.ours)
    assert client.packet_size == 0x100
    assert client.ask_stopped().signal in (2, 5)
    acked = stub.acked
    stub.answers[b"m"] = b"c3"
    assert client.read_memory(0x1000, 1) == b"\xc3"
    assert stub.acked == acked
    client.close()


def test_a_stub_that_wants_acknowledgements_gets_them() -> None:
    stub = StubDouble({b"m": b"90", b"Hc": b"OK", b"c": b"S05", b"?": b"S05"})
    client = Rsp(stub.ours)
    assert client.packet_size == 400
    assert client.pipeline([b"m0,1", b"m1,1"]) == [b"90", b"90"]
    client.resume()
    assert client.wait_stop(2.0) == StopReply("stopped", 5)
    assert stub.requests[-2:] == [b"Hc-1", b"c"]
    client.close()
    stub.thread.join(2.0)
    assert stub.acked == len(stub.requests)


def test_qemu_takes_the_next_request_as_an_acknowledgement() -> None:
    """It answers a request that only QEMU knows, has no QStartNoAckMode, and gets requests in
    batches."""
    old = {b"qSupported": b"PacketSize=100;vContSupported+", b"vCont?": b"vCont;c", b"m": b"c3"}
    stub = StubDouble(old | {b"qqemu.sstepbits": b"ENABLE=1,NOIRQ=2,NOTIMER=4"})
    client = Rsp(stub.ours)
    acked = stub.acked
    assert client.pipeline([b"m1,1", b"m2,1"]) == [b"c3", b"c3"]
    assert stub.acked == acked and not client.agreed.acks
    client.close()


def test_a_large_batch_does_not_deadlock_and_keeps_its_order() -> None:
    # Replies fill the socket long before all requests are sent.
    stub = StubDouble(MODERN | {b"q": lambda body: body[1:] + b"." * 3000})
    client = Rsp(stub.ours)
    asked = [b"q%d" % i for i in range(3000)]
    replies = client.pipeline(asked)
    assert [reply.rstrip(b".") for reply in replies] == [b"%d" % i for i in range(3000)]
    client.close()


def test_memory_is_read_and_written_in_pieces_that_fit() -> None:
    memory = bytearray(i * 7 % 256 for i in range(2000))

    def read(body: bytes) -> bytes:
        at, size = (int(x, 16) for x in body[1:].split(b","))
        return bytes(memory[at : at + size]).hex().encode()

    def write(body: bytes) -> bytes:
        assert len(body) <= 0x100
        place, data = body[1:].split(b":")
        at, size = (int(x, 16) for x in place.split(b","))
        assert len(data) == 2 * size
        memory[at : at + size] = bytes.fromhex(data.decode())
        return b"OK"

    stub = StubDouble(MODERN | {b"m": read, b"M": write})
    client = Rsp(stub.ours)
    assert client.read_memory(3, 1500) == bytes(memory[3:1503])
    client.write_memory([(10, b"\x23\x24\x2a\x7d" * 100), (1000, b"xyz")])
    assert memory[10:410] == b"\x23\x24\x2a\x7d" * 100
    assert memory[1000:1003] == b"xyz"
    with pytest.raises(TargetError, match="0x7d0 cannot be read"):
        client.read_memory(1990, 100)
    client.close()


def test_what_a_stub_lacks_is_said() -> None:
    stub = StubDouble({b"M": b"E14"})
    client = Rsp(stub.ours)
    with pytest.raises(TargetError, match="no software breakpoints"):
        client.set_breakpoint(0x1000, 1, True)
    with pytest.raises(TargetError, match="E14"):
        client.write_memory([(0, b"x")])
    with pytest.raises(TargetError, match="does not describe its registers"):
        describe(client)
    assert not client.physical_memory()
    client.close()


def test_a_failed_access_of_physical_memory_says_which_it_was() -> None:
    stub = StubDouble(MODERN | {b"Qqemu.PhyMemMode": b"OK", b"m": b"c3", b"M": b"OK"})
    client = Rsp(stub.ours)
    assert client.physical_memory() and client.read_memory(0x1000, 1) == b"\xc3"
    client.write_memory([(0x1000, b"x")])
    stub.answers[b"Qqemu.PhyMemMode"] = b"E22"
    with pytest.raises(TargetError, match="cannot read physical memory: it answers 'E22'"):
        client.read_memory(0x1000, 1)
    with pytest.raises(TargetError, match="cannot write physical memory: it answers 'E22'"):
        client.write_memory([(0x1000, b"x")])
    client.close()


def test_a_silent_stub_is_reported() -> None:
    stub = StubDouble(MODERN | {b"g": b"<silence>"})
    client = Rsp(stub.ours)
    with pytest.raises(TargetError, match=r"not answered for 0\.2 s"):
        client.pipeline([b"g"], 0.2)
    stub.theirs.shutdown(socket.SHUT_RDWR)
    with pytest.raises(TargetError, match="closed the connection"):
        client.ask(b"m0,1")
    client.close()


def test_a_damaged_packet_is_not_believed() -> None:
    stub = StubDouble(MODERN | {b"m": b"<silence>"})
    client = Rsp(stub.ours)
    stub.theirs.sendall(b"$aa#00")
    with pytest.raises(TargetError, match="damaged"):
        client.ask(b"m0,1")
    client.close()


def test_a_running_machine_is_stopped_first() -> None:
    stub = StubDouble(MODERN | {b"\x03": b"T02thread:01;"})
    client = Rsp(stub.ours, running=True)
    assert stub.interrupts == 1
    assert not client._stops
    client.close()


def test_threads_in_several_packets() -> None:
    more = iter([b"m3", b"l"])
    stub = StubDouble(MODERN | {b"qfThreadInfo": b"m1,2", b"qsThreadInfo": lambda _: next(more)})
    client = Rsp(stub.ours)
    assert client.threads() == ["1", "2", "3"]
    client.close()


@pytest.mark.parametrize(
    "named", [b"m", b"m,1", b"m01\n02", b"m1,\x1b[2J", b"mp1.", b"mp1.-1,0x2", b"m1 ", b"m\xff"]
)
def test_names_of_threads_are_numbers(named: bytes) -> None:
    """GDB's manual, "Packets", defines a thread-id: names are printed, and sent back."""
    client = Rsp(StubDouble(MODERN | {b"qfThreadInfo": named}).ours)
    with pytest.raises(TargetError, match="gives a CPU thread the invalid id '") as caught:
        client.threads()
    assert str(caught.value).isprintable()
    client.close()


def test_a_thread_with_its_process() -> None:
    client = Rsp(StubDouble(MODERN | {b"qfThreadInfo": b"mp1.1,p1.-1", b"qsThreadInfo": b"l"}).ours)
    assert client.threads() == ["p1.1", "p1.-1"]
    client.close()


def test_a_stub_without_names_of_threads() -> None:
    client = Rsp(StubDouble(MODERN | {b"qfThreadInfo": b"", b"qC": b"QC"}).ours)
    assert client.threads() == ["1"]
    client.close()


def test_included_names_are_text() -> None:
    included = b'l<target><include href="a&}\x0310;b"/></target>'  # # is escaped in packets
    client = Rsp(StubDouble(MODERN | {b"qXfer:features:read": included}).ours)
    with pytest.raises(
        TargetError, match=r"the GDB stub's target.xml includes a file of the invalid name 'a\\nb'"
    ):
        describe(client)
    client.close()


XML = {
    "target.xml": """<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd">
      <target><architecture>x</architecture>
      <xi:include href="a.xml"/><xi:include href="b.xml"/></target>""",
    "a.xml": """<feature name="a"><reg name="r0" bitsize="64"/><reg name="r1" bitsize="32"/>
      <reg name="v" bitsize="128" regnum="5"/></feature>""",
    "b.xml": """<feature name="b"><reg name="late" bitsize="64"/>
      <reg name="mid" bitsize="16" regnum="3"/></feature>""",
}


def features(body: bytes) -> bytes:
    _, _, _, annex, place = body.decode().split(":")
    offset, size = (int(x, 16) for x in place.split(","))
    text = XML[annex].encode()
    part = text[offset : offset + size]
    return (b"m" if offset + size < len(text) else b"l") + part


def test_registers_are_placed_by_number() -> None:
    stub = StubDouble(MODERN | {b"qXfer:features:read": features})
    client = Rsp(stub.ours)
    assert describe(client) == (
        RegisterInfo("r0", 0, 8, 0),
        RegisterInfo("r1", 1, 4, 8),
        RegisterInfo("mid", 3, 2, 12),
        RegisterInfo("v", 5, 16, 14),
        RegisterInfo("late", 6, 8, 30),
    )
    g = (0x1122334455667788).to_bytes(8, "little") + b"\x01\0\0\0" + b"\x05\x80" + b"v" * 16
    stub.answers |= {b"g": g.hex().encode(), b"p6": b"0200000000000000"}
    values = RegisterFile(client, describe(client)).read("2")
    assert values["r1"] == 1 and "none" not in values
    assert b"p6" not in stub.requests  # it is requested when it is looked up
    assert values == {"r0": 0x1122334455667788, "r1": 1, "mid": 0x8005, "late": 2}
    assert b"Hg2" in stub.requests
    later = RegisterFile(client, describe(client)).read("2")
    later.expire()
    assert later["mid"] == 0x8005
    with pytest.raises(TargetError, match="the register late cannot be read any more"):
        _ = later["late"]
    client.close()


def test_registers_that_are_not_available_are_left_out() -> None:
    stub = StubDouble(MODERN | {b"g": b"xx" * 8 + b"01000000"})
    client = Rsp(stub.ours)
    stub_registers = (RegisterInfo("a", 0, 8, 0), RegisterInfo("b", 1, 4, 8))
    assert RegisterFile(client, stub_registers).read("1") == {"b": 1}
    client.close()


def test_a_register_without_a_name_is_written_with_what_it_has() -> None:
    """It comes some numbers after one that has a name; the selected CPU gets it."""
    stub = StubDouble(MODERN | {b"p2f": b"8877665544332211", b"P2f=": b"OK", b"p30": b"E14"})
    client = Rsp(stub.ours)
    file = RegisterFile(client, (RegisterInfo("a", 0x20, 8, 0),))
    file.rewrite("2", "a", 15)
    assert stub.requests[-3:] == [b"Hg2", b"p2f", b"P2f=8877665544332211"]
    for name, behind in (("a", 16), ("b", 15)):
        with pytest.raises(TargetError, match="has no register"):
            file.rewrite("2", name, behind)
    assert stub.requests[-1] == b"p30"
    client.close()


def test_connect_says_what_is_wrong(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TargetError, match=f"no GDB stub at :{port}"):
        connect(f":{port}")
    with pytest.raises(TargetError, match="no GDB stub at"):
        connect(str(tmp_path / "nothing"))
    with pytest.raises(TargetError, match="not an address"):
        connect("localhost:gdb")


def test_connect_to_tcp_and_unix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect(f"tcp::{server.getsockname()[1]}").close()
        connect(f"localhost:{server.getsockname()[1]}").close()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "stub"))
        server.listen()
        connect(f"unix:{tmp_path / 'stub'}").close()


def test_noise_without_end_is_no_stop_reply() -> None:
    """It comes faster than it is read, and does not make kinst wait forever."""
    stub = StubDouble(MODERN)
    client = Rsp(stub.ours)

    def chatter() -> None:
        with contextlib.suppress(OSError):
            while True:
                stub.theirs.sendall(b"%Stop:T05#00" * 100)

    threading.Thread(target=chatter, daemon=True).start()
    began = time.monotonic()
    assert client.wait_stop(0.5) is None
    assert time.monotonic() - began < 20
    client.close()


@pytest.mark.parametrize(
    ("threads", "asked"),
    [(["01", "02"], [b"D"]), (["p01.01", "p01.02"], [b"D;01"]),
     (["p1.1", "p2.2"], [b"D;1", b"D;2"])],
)  # fmt: skip
def test_each_process_is_let_go_by_its_name(threads: list[str], asked: list[bytes]) -> None:
    stub = StubDouble(MODERN | {b"D": b"OK"})
    client = Rsp(stub.ours)
    before = len(stub.requests)
    client.let_go(threads)
    assert stub.requests[before:] == asked
    client.close()


def test_a_machine_that_is_not_let_go_is_resumed_or_told() -> None:
    refusing = MODERN | {b"D": b"E22", b"vCont?": b"vCont;c;s"}
    stub = StubDouble(refusing | {b"vCont;c": b"<silence>"})
    client = Rsp(stub.ours)
    client.let_go(["01"])
    assert stub.requests[-1] == b"vCont;c"
    client.close()
    client = Rsp(StubDouble(refusing | {b"vCont;c": b"E01"}).ours)
    with pytest.raises(TargetError, match="does not let the machine go on: it answers 'E22'"):
        client.let_go(["01"])
    client.close()
