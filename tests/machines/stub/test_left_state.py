"""State that another client has left in QEMU's stub.

kinst still finds the machine as it needs it, and leaves it running, with the stub as QEMU starts
it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.core.machine import Stopped
from kinst.isa import load
from kinst.machines.gdb.stub import GdbStub
from kinst.wire.rsp import Rsp, connect, greets
from tests.machines.stub.bare_machine import SECONDS, BareMachine, bare_machine
from tests.wire.stub_double import StubDouble

# A bare riscv64 machine, whose QEMU `make setup-all` installs.
pytestmark = pytest.mark.full
ISA = load("riscv64")
QEMUS = ("7.2", "10")


@pytest.fixture(params=QEMUS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareMachine]:
    if request.param == "10":
        request.getfixturevalue("newer_qemu")
    with bare_machine(tmp_path) as made:
        assert made.ask("query-version")["qemu"]["major"] == int(request.param.split(".")[0])
        yield made


def packet(body: str) -> bytes:
    return f"${body}#{sum(body.encode()) % 256:02x}".encode()


class Client:
    """A client of the stub, written from the protocol's description."""

    def __init__(self, machine: BareMachine) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(SECONDS)
        self._sock.connect(str(machine.stub))

    def ask(self, body: str) -> str:
        """Return the reply; skip stop replies that come by themselves."""
        self._sock.sendall(packet(body))
        data = b""
        while True:
            while data.count(b"#") == 0 or len(data) < data.index(b"#") + 3:
                data += self._sock.recv(4096)
            end = data.index(b"#")
            reply, data = data[data.index(b"$") + 1 : end].decode(), data[end + 3 :]
            self._sock.sendall(b"+")
            if reply[:1] != "T":
                return reply

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def hang_up(self) -> None:
        self._sock.close()


def traced_by_stops(machine: BareMachine) -> set[int]:
    """Trace as --gdb does, by stops at `round`; return the CPUs that came there."""
    at = machine.symbols["round"]
    target, found = GdbStub(ISA, str(machine.stub)), set()
    try:
        target.insert_breakpoint(at)
        for _ in range(200):
            target.resume()
            event = target.wait(SECONDS)
            assert isinstance(event, Stopped) and event.pc == at
            before = target.registers(event.cpu)["t0"]
            target.step_over(event.cpu, at)
            assert target.registers(event.cpu)["t0"] == before + 1
            found.add(event.cpu)
            if len(found) == 2:
                break
        target.remove_breakpoint(at)
        target.resume()
        assert target.wait(0.2) is None  # no breakpoint is left, kinst's or another's
        assert machine.counts_on() == [True, True]
        target.stop()
    finally:
        target.close()
    return found


def runs_on(machine: BareMachine) -> bool:
    """Check that it runs, by the monitor and by the CPUs' counts, and keeps running."""
    return machine.status == "running" and machine.counts_on() == [True, True]


def test_gdb_was_there_before(machine: BareMachine) -> None:
    """gdb sends multiprocess+, which QEMU remembers: a plain D is then refused."""
    commands = ["set architecture riscv:rv64", f"target remote {machine.stub}", "detach"]
    given = [word for one in commands for word in ("-ex", one)]
    subprocess.run(["gdb-multiarch", "-q", "-nx", "-batch", *given], check=True)
    assert runs_on(machine)
    for _ in range(2):
        assert traced_by_stops(machine) == {0, 1}
        assert runs_on(machine)


LEFT = {
    "multiprocess": ("qSupported:multiprocess+;swbreak+",),
    "a breakpoint": ("Z0,{round},4",),
    "a breakpoint of hardware": ("Z1,{round},4",),
    "a watchpoint": ("Z2,{counts},8",),
    "a watchpoint of the second CPU's": ("Z2,{second},8",),
    "breakpoints in multiprocess mode": ("qSupported:multiprocess+", "Z0,{round},4"),
    "another thread": ("Hg2", "Hc2"),
    "physical memory": ("Qqemu.PhyMemMode:1",),
    "steps with interrupts": ("Qqemu.sstep=1",),
    "no steps": ("Qqemu.sstep=0",),
}


@pytest.mark.parametrize("what", LEFT)
def test_a_client_hung_up(machine: BareMachine, what: str) -> None:
    """QEMU keeps the client's settings if it did not detach, and the machine is stopped."""
    client, second = Client(machine), machine.symbols["counts"] + 8
    places = {name: f"{at:x}" for name, at in machine.symbols.items() if name.isalpha()}
    for body in LEFT[what]:
        reply = client.ask(body.format(**places, second=f"{second:x}"))
        assert reply == "OK" or "PacketSize" in reply
    client.hang_up()
    assert machine.status == "paused"
    assert traced_by_stops(machine) == {0, 1}
    assert runs_on(machine)


@pytest.mark.parametrize("left", [b"$m80000000,", b"$m8*", b"$m}", b"$m0,1#", b"$m0,1#3", b"\x03"])
def test_a_client_hung_up_within_a_packet(machine: BareMachine, left: bytes) -> None:
    client = Client(machine)
    assert client.ask("qC")[:2] == "QC"
    client.send(left)
    client.hang_up()
    assert traced_by_stops(machine) == {0, 1}
    assert runs_on(machine)


def test_the_stub_is_left_as_qemu_starts_it(machine: BareMachine) -> None:
    """Otherwise the next gdb would read physical memory at virtual addresses."""
    client = Client(machine)
    usual = [client.ask(body) for body in ("qqemu.PhyMemMode", "qqemu.sstep")]
    client.ask("Qqemu.sstep=1")
    client.hang_up()
    target = GdbStub(ISA, str(machine.stub))
    assert target._rsp.physical_memory()
    assert target._rsp.read_memory(machine.symbols["round"], 4)
    assert target._rsp.ask(b"qqemu.PhyMemMode").decode() == usual[0]  # in case kinst is killed
    assert target._rsp.ask(b"qqemu.sstep").decode() == usual[1]
    target.close()
    client = Client(machine)
    assert [client.ask(body) for body in ("qqemu.PhyMemMode", "qqemu.sstep")] == usual
    assert client.ask("D") == "OK"
    client.hang_up()


def test_a_stub_answers_each_client_in_turn(machine: BareMachine) -> None:
    """Since QEMU 8.1 the stub sends nothing by itself to a new client, and must be asked."""
    for _ in range(2):
        first = connect(str(machine.stub))
        assert greets(first, SECONDS)
        client = Rsp(first)
        client.let_go(client.threads())
        client.close()
        assert machine.counts_on() == [True, True]


def test_a_machine_that_the_stub_does_not_let_go_is_told(tmp_path: Path) -> None:
    """The message has the remedy; close() raises, so kinst's exit status is 1."""
    answers = {b"?": b"T05thread:01;", b"qfThreadInfo": b"m01", b"qsThreadInfo": b"l"}
    answers |= {b"vCont?": b"vCont;c;s", b"vCont;c": b"E22", b"D": b"E22", b"g": b"00" * 264}
    double, path = StubDouble(answers), str(tmp_path / "gdb")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            for source, sink in ((client, double.ours), (double.ours, client)):
                threading.Thread(target=relay, args=(source, sink), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        target = GdbStub(ISA, path)
        with pytest.raises(TargetError, match=r"is left stopped: .* it answers 'E22'") as told:
            target.close()
    assert "cont" in told.value.hint


def relay(source: socket.socket, sink: socket.socket) -> None:
    while data := os.read(source.fileno(), 4096):
        sink.sendall(data)
