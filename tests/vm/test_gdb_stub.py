"""kinst on a QEMU that it did not start, through its GDB stub: stop-planted, and left running."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Running, counts, kinst

from kinst.targets.fetch import Prepared
from kinst.targets.initramfs import build

pytestmark = pytest.mark.vm

# A guest of its own: after each sleep it makes 10 reads and says so on the console.
INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
mount -t proc proc /proc
n=0
while true; do
    reads 10 >/dev/null
    n=$((n + 1))
    echo "round $n" >/dev/ttyS0
    sleep 0.2
done
"""


@dataclass
class Stub:
    """address: as kinst's --gdb takes it."""

    address: str
    console: Path

    def rounds(self) -> int:
        found = re.findall(r"^round (\d+)", self.console.read_text(errors="replace"), re.M)
        return int(found[-1]) if found else 0

    def goes_on(self, seconds: float = 60.0) -> bool:
        """Whether the guest does some more rounds from now on."""
        until, end = self.rounds() + 3, time.monotonic() + seconds
        while self.rounds() < until and time.monotonic() < end:
            time.sleep(0.1)
        return self.rounds() >= until


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def guest(prepared: Prepared, reads: Path, folder: Path, listen: str) -> Iterator[Stub]:
    init = folder / "init"
    init.write_text(INIT)
    init.chmod(0o755)
    # kinst's own /init is there too, but rdinit= names ours.
    initrd = folder / "initrd"
    initrd.write_bytes(build(prepared.busybox, {"/e2e-init": init, "/bin/reads": reads}))
    console = folder / "console"
    port = free_port()
    unix = f"{folder}/gdb"
    chosen, address = {
        "unix": (f"unix:{unix},server,nowait", unix),
        "tcp": (f"tcp:127.0.0.1:{port}", f"127.0.0.1:{port}"),
    }[listen]
    argv = f"""qemu-system-x86_64 -nodefaults -display none -no-reboot -machine q35 -m 512 -smp 2
        -serial file:{console} -gdb {chosen} -kernel {prepared.kernel} -initrd {initrd}""".split()
    append = "console=ttyS0 nokaslr panic=-1 rdinit=/e2e-init"
    child = subprocess.Popen([*argv, "-append", append])
    try:
        stub = Stub(address, console)
        end = time.monotonic() + 90
        while not (console.exists() and stub.rounds() > 0):
            assert child.poll() is None and time.monotonic() < end, "the guest does not come up"
            time.sleep(0.1)
        yield stub
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.fixture(scope="module", params=["unix", "tcp"])
def stub(
    request: pytest.FixtureRequest,
    prepared: Prepared,
    reads: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stub]:
    with guest(prepared, reads, tmp_path_factory.mktemp("stub"), request.param) as found:
        yield found


def options(stub: Stub, prepared: Prepared, *program: str) -> list[str]:
    return ["--gdb", stub.address, "--kernel", str(prepared.debug), *program]


def test_counts_until_exit(stub: Stub, prepared: Prepared, read_function: str) -> None:
    """Two instructions that each read passes once, in this order."""
    program = f"""
        kinst::{read_function}:0 /execname == "reads"/
        {{ @first = count(); @rdx = sum(regs[R_RDX]); }}
        kinst::{read_function}:5 /execname == "reads"/ {{ @second = count(); n++; }}
        kinst::{read_function}:5 /n == 25/ {{ exit(5); }}
        END
        {{ printa("first %@d\\n", @first); printa("second %@d\\n", @second);
           printa("rdx %@d\\n", @rdx); }}"""
    done = kinst(*options(stub, prepared, "-n", program), boots=False)
    assert done.status == 5, done
    found = dict(re.findall(r"(first|second|rdx) (\d+)$", done.out, re.M))
    assert found["second"] == "25" and found["first"] == found["rdx"]
    assert found["first"] == "25"
    assert "stop" in done.err, "kinst says that it has to stop the machine"
    assert stub.goes_on()


def test_a_signal_leaves_the_guest_running(
    stub: Stub, prepared: Prepared, read_function: str
) -> None:
    program = f"kinst::{read_function}:0 {{ @[execname] = count(); }}"
    run = Running(
        *options(stub, prepared, "-q", "-n", program),
        "-n", 'tick-200ms { printf("tick\\n"); }',
        boots=False,
    )  # fmt: skip
    run.until(lambda r: r.out.count("tick") > 10)
    run.stop(signal.SIGTERM)
    done = run.result().good()
    assert counts(done.out)["reads",] >= 1
    assert stub.goes_on()


def test_listing_shows_the_way(stub: Stub, prepared: Prepared, read_function: str) -> None:
    done = kinst(
        *options(stub, prepared, "-l", "-v", "-n", f"kinst::{read_function}:5"), boots=False
    )
    assert done.status == 0, done
    assert re.search(r"\sstop(?:\s|$)", done.out, re.M), done.out
    assert stub.goes_on()


def test_what_a_stub_cannot_do(stub: Stub, prepared: Prepared, read_function: str) -> None:
    """No one is there to run a command; a bad description leaves the guest alone."""
    program = f"kinst::{read_function}:0 {{ @ = count(); }}"
    for more in (["-n", program, "-c", "true"], ["-n", "kinst::no_such_function:0"]):
        done = kinst(*options(stub, prepared, *more), boots=False)
        assert done.status == 1, done
        assert "Traceback" not in done.err
    assert stub.goes_on()


def test_killed_without_a_word(stub: Stub, prepared: Prepared, read_function: str) -> None:
    """kill -9 of kinst: QEMU takes its breakpoints out when the connection is gone, or leaves
    the machine stopped at one; the next kinst finds it in order."""
    run = Running(
        *options(stub, prepared, "-q", "-n", f"kinst::{read_function}:0 {{ printf(\"hit\\n\"); }}"),
        boots=False,
    )  # fmt: skip
    run.until(lambda r: r.out.count("hit") > 3)
    run.stop(signal.SIGKILL)
    run.result()
    program = f'kinst::{read_function}:0 {{ printf("hit\\n"); }} tick-5s {{ exit(0); }}'
    done = kinst(*options(stub, prepared, "-q", "-n", program), boots=False).good()
    assert done.out.count("hit") > 3
    assert stub.goes_on()
