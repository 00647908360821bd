"""Values that only a caller has: kinst's, from call sites, are those that gdb prints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kinst.isa import load
from tests import ROOT
from tests.gdb_rig import report
from tests.image.dwarf.test_locals import built, said

SOURCE = ROOT / "tests/c/calls.c"
FUNCTIONS = ("by_constant", "by_register", "by_frame", "by_tail", "by_pointer", "by_itself")
KNOWN = {"by_constant", "by_register", "by_frame"}


@pytest.mark.parametrize(("level", "version"), [("-O1", 5), ("-O2", 5), ("-Os", 5), ("-O2", 4)])
def test_callers_values(level: str, version: int, tmp_path: Path) -> None:
    """Constants, call-saved registers and addresses in the caller's frame; if the caller is not
    known (a tail call, a pointer, itself again) there is no value, and never a wrong one."""
    program = built(tmp_path, "gcc", level, "-g", f"-gdwarf-{version}", source=SOURCE)
    pairs = said(program, FUNCTIONS)
    by_caller = [pair for pair in pairs if pair.by_caller]
    outcomes = Counter((pair.function, pair.outcome) for pair in by_caller)
    wrong = [pair for pair in pairs if pair.outcome == "different"]
    assert not wrong, report(wrong)
    for function in KNOWN:
        assert outcomes[function, "equal"] >= 3, report(pairs)
        left = [p for p in pairs if p.function == function and p.outcome == "refused"]
        assert not left, report(left)
    assert all(pair.outcome != "only kinst" for pair in by_caller), report(by_caller)
    itself = [pair.reason for pair in pairs if pair.function == "by_itself" and pair.reason]
    assert any("it may call itself at its end" in reason for reason in itself) or level == "-O1"


def test_calls_in_code() -> None:
    """E8 and the distance from its end; also in the middle of other instructions."""
    isa = load("amd64")
    code = bytes.fromhex("90e8fa0f0000c348b8e8f20f0000000000e800000000e8")
    assert list(isa.returns_of(code, 0x1000, 0x2000)) == [0x1006, 0x100E]
    assert list(isa.returns_of(code, 0x1000, 0x1000 + 22)) == [0x1000 + 22]
    assert list(isa.returns_of(b"\xe8\x00", 0, 5)) == []
