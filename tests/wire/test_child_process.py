"""Children that die with kinst, shared memory, and the pump."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.wire.child_process import Child, Pump, _drain, find_program
from kinst.wire.memory import SharedMemory
from kinst.wire.sockets import stream_pair
from tests.host_processes import SECONDS, has_ended, wait_until_ended

PARENT = """
import sys, time
from kinst.wire.child_process import Child
child = Child(["sleep", "600"], [], 2)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert not has_ended(pid)
    parent.send_signal(how)
    parent.wait(SECONDS)
    assert wait_until_ended(pid)


def test_a_child_is_out_of_reach_of_the_terminal() -> None:
    child = Child(["sleep", "60"], [], 2)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    assert child.status() is None
    assert child.end() == -signal.SIGKILL
    assert child.end() == -signal.SIGKILL
    assert has_ended(child.pid)


def test_a_child_outlives_the_thread_that_started_it() -> None:
    seen: list[Child] = []
    thread = threading.Thread(target=lambda: seen.append(Child(["sleep", "60"], [], 2)))
    thread.start()
    thread.join()
    time.sleep(0.2)  # PR_SET_PDEATHSIG would kill the child when its thread ends
    assert seen[0].status() is None
    assert seen[0].end() == -signal.SIGKILL


def test_what_goes_wrong_in_the_lasting_thread_is_raised_where_it_was_asked_for() -> None:
    seen: list[BaseException] = []

    def run() -> None:
        try:
            Child(["/no/such/program"], [], 2)
        except TargetError as error:
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "cannot be started" in str(seen[0])


def test_a_missing_program_is_named_with_its_package() -> None:
    with pytest.raises(TargetError, match=r"no-such-qemu not found \(apt-get install that\)"):
        find_program("no-such-qemu", "that")
    with pytest.raises(TargetError, match="cannot be started"):
        Child(["/no/such/program"], [], 2)


def test_shared_memory_is_seen_by_a_child_and_has_no_name() -> None:
    memory = SharedMemory("test", 1 << 20)
    memory.view[5:10] = b"hello"
    script = f"f=open('{memory.path}','r+b'); f.seek(5); d=f.read(5); f.seek(100); f.write(d[::-1])"
    subprocess.run([sys.executable, "-c", script], pass_fds=[memory.fd], check=True)
    assert bytes(memory.view[100:105]) == b"olleh"
    files = {path.stat().st_ino for path in Path("/dev/shm").iterdir() if path.is_file()}
    assert os.fstat(memory.fd).st_ino not in files and os.fstat(memory.fd).st_nlink == 0
    memory.close()
    memory.close()


def test_too_much_memory_is_refused_in_words() -> None:
    with pytest.raises(TargetError, match="not enough memory: guest memory needs 1073741824 MB"):
        SharedMemory("guest memory", 1 << 50)


def test_what_was_sent_before_the_last_stream_is_seen_before_it() -> None:
    ours, theirs = {}, {}
    for name in ("a", "b", "last"):
        ours[name], theirs[name] = stream_pair()
    pump = Pump(ours, last="last")
    sent = 0

    def write() -> None:
        for i in range(2000):
            theirs["a"].sendall(b"x")
            theirs["b"].sendall(b"yy")
            theirs["last"].sendall(b"%d\n" % i)
        for sock in theirs.values():
            sock.close()

    writer = threading.Thread(target=write)
    writer.start()
    counts = {"a": 0, "b": 0, "last": 0}
    ended: set[str] = set()
    deadline = time.monotonic() + SECONDS
    while len(ended) < 3 and time.monotonic() < deadline:
        for name, data in pump.take():
            if not data:
                ended.add(name)
            elif name == "last":
                sent += data.count(b"\n")
                assert counts["a"] >= sent
                assert counts["b"] >= 2 * sent
            counts[name] += len(data)
    writer.join(SECONDS)
    assert ended == {"a", "b", "last"}
    assert sent == counts["a"] == 2000
    pump.close()


def test_pump_sends() -> None:
    ours, theirs = stream_pair()
    pump = Pump({"control": ours}, last="control")
    pump.send("control", b"prepare\n")
    assert theirs.recv(100) == b"prepare\n"
    theirs.close()
    with pytest.raises(TargetError, match="closed"):
        pump.send("control", b"x")
    pump.close()


def test_a_stream_that_never_ends_does_not_hold_up_the_others() -> None:
    """A sender writes faster than the pump reads: the command's output must not delay its end."""

    class Endless:
        given = 0

        def recv(self, most: int) -> bytes:
            self.given += most
            assert self.given < 1 << 30, "the pump never looks at another stream"
            return bytes(most)

    sock = Endless()
    assert _drain(sock) is not None  # type: ignore[arg-type]
    # Bytes that the sockets hold already are read, or a command's end would overtake its output.
    with socket.socket(socket.AF_UNIX) as one:
        sizes = (socket.SO_SNDBUF, socket.SO_RCVBUF)
        assert sock.given > 2 * sum(one.getsockopt(socket.SOL_SOCKET, size) for size in sizes)
