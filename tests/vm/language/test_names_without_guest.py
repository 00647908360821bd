"""kinst -l needs no guest if one like it had booted: the names are the same as in a guest."""

from __future__ import annotations

import re

import pytest

from kinst import api
from kinst.cli.command import main
from kinst.session import early_names
from kinst.wire.child_process import Child
from tests.vm.command import kinst

pytestmark = pytest.mark.vm

DESCRIPTIONS = "kinst::vfs_read:, fbt::ksys_*:, kinst::fdget_pos:entry, kinst::vfs_read:@467"


def names(text: str) -> list[str]:
    """Return provider, module, function and name of each probe."""
    rows = (re.fullmatch(r" *\d+ +(\w+) +(\w+) +(\S+) (\S+)\s*", line) for line in text.split("\n"))
    return [":".join(row.groups()) for row in rows if row]


def test_names_are_those_of_a_guest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = names(kinst("-l", "-v", "-n", DESCRIPTIONS).good().out)  # this one starts a guest

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(Child, "__init__", start)
    assert main(["-l", "-n", DESCRIPTIONS]) == 0
    found = names(capsys.readouterr().out)
    assert found == live
    assert len(found) > 150 and "fbt:vmlinux:ksys_read:return" in found


WRONG = [
    "kinst::vfs_reed:0",
    "kinst:vmlinux:vfs_reed:",
    "fbt::tcp_sendmesg:entry",
    "kinst::vm_fault:0",  # FreeBSD's
    "kinst::zzzzzz:0",
    "fbt::read:entry",  # the system call
]


@pytest.mark.parametrize("description", WRONG)
def test_a_wrong_function_is_told_as_a_guest_tells_it(
    description: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["-n", f"BEGIN, {description} {{}}", "-c", "true"]
    # The command starts a guest before it reads the program; nothing here may wait for that guest.
    monkeypatch.setattr(api, "start_early", lambda _request: None)
    with monkeypatch.context() as without:
        without.setattr(early_names, "check_functions", lambda *_: None)
        assert main(line) == 1
    told = capsys.readouterr().err

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(Child, "__init__", start)
    assert main(line) == 1
    assert capsys.readouterr().err == told
    assert "no function named" in told
    call = "syscall::read:entry and syscall::read:return trace the system call"
    assert (call in told) == (description == "fbt::read:entry")
