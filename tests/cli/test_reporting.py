"""The Report of a command: it asks before downloads unless --yes is given, also in kinst flow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kinst.api import Report
from kinst.cli import call_flow, outcome
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.cli.reporting import user_report


class MachineOpenedError(Exception):
    """Raised instead of opening a machine."""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Sequence[Report]:
    """Return the reports of the machines that commands open. Opening raises an error."""
    opened: list[Report] = []

    def machine(request: object, *, report: Report) -> None:
        opened.append(report)
        raise MachineOpenedError

    monkeypatch.setattr(call_flow, "Machine", machine)
    monkeypatch.setattr(outcome.api, "Machine", machine)
    return opened


@pytest.mark.parametrize(("words", "asks"), [(["vfs_read"], True), (["--yes", "vfs_read"], False)])
def test_each_command_asks_before_a_download(
    words: list[str], asks: bool, reports: Sequence[Report]
) -> None:
    request = parse(words).request
    with pytest.raises(MachineOpenedError):
        call_flow.traced_call(request, "vfs_read", "", Interrupts())
    with pytest.raises(MachineOpenedError):
        outcome.open_machine(request)
    assert [report.confirm is not None for report in reports] == [asks, asks]


def test_a_report_tells_of_each_stage() -> None:
    report = user_report(parse(["vfs_read"]).request, started=1.0)
    ended: list[str] = []
    report.stage("compile")
    report.on_stage = ended.append
    report.stage("plan")
    assert ended == ["plan"] and [name for name, _ in report.stages] == ["compile", "plan"]
    assert report.started == 1.0
