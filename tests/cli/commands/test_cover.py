"""Messages of kinst cover before its summary."""

from __future__ import annotations

import pytest

from kinst import api
from kinst.cli.commands import cover
from kinst.cli.interrupts import Interrupts
from kinst.errors import KinstError


@pytest.mark.parametrize("quiet", [False, True])
def test_left_out_instructions_are_told_once(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary counts them. Without a summary (-q), a message does."""

    def start(request: api.Request, report: api.Report) -> None:
        report.leave_out("2 instructions are left out")
        raise KinstError("started")

    monkeypatch.setattr(api, "Machine", start)
    with pytest.raises(KinstError, match="started"):
        cover.run([*(["-q"] if quiet else []), "vfs_read", "-c", "true"], Interrupts())
    assert ("2 instructions are left out" in capsys.readouterr().err) == quiet
