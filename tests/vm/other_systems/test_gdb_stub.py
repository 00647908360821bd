"""kinst on a QEMU that it did not start, through its GDB stub: stop-planted, and left running."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import Running, counts, kinst
from tests.vm.stub_guest import Stub, stub_guest

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module", params=["unix", "tcp"])
def stub(
    request: pytest.FixtureRequest,
    prepared: Prepared,
    reads: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stub]:
    folder = tmp_path_factory.mktemp("stub")
    with stub_guest("amd64", prepared, reads, folder, request.param) as found:
        yield found


def options(stub: Stub, prepared: Prepared, *program: str) -> list[str]:
    return ["--gdb", stub.address, "--kernel", str(prepared.debug), *program]


def test_counts_until_exit(stub: Stub, prepared: Prepared, read_function: str) -> None:
    """Count two instructions that each read executes once, in this order."""
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
    reads = f'kinst::{read_function}:0 /execname == "reads"/ {{ n++; }}'
    run = Running(
        *options(stub, prepared, "-q", "-n", program),
        "-n", f'{reads} tick-200ms /n > 3/ {{ printf("tick\\n"); }}',
        boots=False,
    )  # fmt: skip
    run.until(lambda r: r.out.count("tick") > 10)
    run.stop(signal.SIGTERM)
    done = run.result().good()
    assert counts(done.out)["reads",] > 3
    assert stub.goes_on()


def test_listing_shows_the_way(stub: Stub, prepared: Prepared, read_function: str) -> None:
    done = kinst(
        *options(stub, prepared, "-l", "-v", "-n", f"kinst::{read_function}:5"), boots=False
    )
    assert done.status == 0, done
    assert re.search(r"\sstop(?:\s|$)", done.out, re.M), done.out
    assert stub.goes_on()


def test_what_a_stub_cannot_do(stub: Stub, prepared: Prepared, read_function: str) -> None:
    """A stub cannot run a command; a bad description leaves the guest alone."""
    program = f"kinst::{read_function}:0 {{ @ = count(); }}"
    wrong_usage = ["-n", program, "-c", "true"]
    for status, more in ((2, wrong_usage), (1, ["-n", "kinst::no_such_function:0"])):
        done = kinst(*options(stub, prepared, *more), boots=False)
        assert done.status == status, done
        assert "Traceback" not in done.err
    assert stub.goes_on()


def test_killed_without_a_word(stub: Stub, prepared: Prepared, read_function: str) -> None:
    """kill -9 of kinst: the next kinst finds the machine in order.

    QEMU removes kinst's breakpoints when the connection is gone, or leaves the machine stopped at
    one.
    """
    run = Running(
        *options(stub, prepared, "-q", "-n", f"kinst::{read_function}:0 {{ printf(\"hit\\n\"); }}"),
        boots=False,
    )  # fmt: skip
    run.until(lambda r: r.out.count("hit") > 3)
    run.stop(signal.SIGKILL)
    run.result()
    program = (
        f'kinst::{read_function}:0 {{ printf("hit\\n"); n++; }} tick-1s /n > 3/ {{ exit(0); }}'
    )
    done = kinst(*options(stub, prepared, "-q", "-n", program), boots=False).good()
    assert done.out.count("hit") > 3
    assert stub.goes_on()
