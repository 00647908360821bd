"""Guests that start before the program is compiled, and prepare the command as soon as they run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kinst.api import Machine, start_early
from kinst.cli.command import main
from kinst.cli.options import parse
from kinst.machines.vm.qemu import Qemu
from kinst.machines.vm.warm import WarmStart
from kinst.session.request import Request

pytestmark = pytest.mark.vm
COMMAND = "echo \"it's $0\"; printf 'a\\nb\\n'"


def request_of(command: str) -> Request:
    return parse(["-q", "-n", "fbt::vfs_write:entry { @ = count(); }", "-c", command]).request


@pytest.fixture(scope="module", autouse=True)
def saved_state() -> None:
    """Boot a guest, unless there is a saved state."""
    with Machine(request_of("true")) as machine:
        machine.start()


EARLY = """
import sys
from kinst import api
from kinst.cli.options import parse
request = parse(["-n", "kinst::vfs_read:0", "-c", "true"], lambda: "").request
early = api.start_early(request)
print(early is not None, *(name for name in ("numpy", "iced_x86") if name in sys.modules))
if early is not None:
    early.close()
"""


def test_a_guest_starts_before_modules_for_tracing_are_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


TRACE = """
import sys
from kinst.cli.command import main
status = main(["-q", "-n", "kinst::vfs_read:0 { exit(0); }", "-c", "wc -l /etc/passwd"])
print(status, *(name for name in ("numpy", "numpy.ma", "numba", "rich") if name in sys.modules))
"""


def test_a_trace_loads_no_more_than_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "numpy"]


@pytest.mark.parametrize("command", [COMMAND, "echo another"])
def test_the_output_is_that_of_the_traced_command(command: str) -> None:
    early = start_early(request_of(COMMAND))
    assert early is not None
    with Machine(request_of(COMMAND), early_start=early) as machine:
        result = machine.run(machine.compile_request(request_of(command)), command)
        expected = {COMMAND: b"it's sh\na\nb\n"}.get(command, b"another\n")
        assert (result.output, result.status) == (expected, 0)
        assert machine.execute("echo again").output == b"again\n"


@pytest.mark.parametrize(
    ("program", "status", "loads"),
    [
        ("kinst::vfs_reed:0 { exit(0); }", 1, 0),
        ("kinst::vfs_read:0 { x = nosuch; }", 1, 0),
        ("kinst::vfs_read:0 { exit(0); }", 0, 1),
    ],
)
def test_a_wrong_program_ends_a_guest_that_has_loaded_nothing(
    program: str, status: int, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = list[str](), WarmStart.load

    def note(self: WarmStart, qemu: Qemu, command: str = "") -> None:
        loaded.append(command)
        load(self, qemu, command)

    monkeypatch.setattr(WarmStart, "load", note)
    assert main(["-q", "-n", program, "-c", COMMAND]) == status
    assert loaded == [COMMAND] * loads
