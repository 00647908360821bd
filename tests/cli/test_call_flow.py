"""What kinst flow says before it waits."""

from __future__ import annotations

import pytest

from kinst.cli import call_flow
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.errors import KinstError


@pytest.mark.parametrize(
    ("words", "idle"),
    [([], True), (["-c", "true"], False), (["--shell"], False), (["--live"], False)],
)
def test_an_idle_guest_is_told_at_once(
    words: list[str],
    idle: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(*_: object, **__: object) -> None:
        raise KinstError("started")

    monkeypatch.setattr(call_flow, "Machine", start)
    request = parse([*words, "do_sys_openat2"], lambda: "").request
    with pytest.raises(KinstError, match="started"):
        call_flow.traced_call(request, "do_sys_openat2", "", Interrupts())
    said = "the guest is idle, and may never call do_sys_openat2: -c CMD gives it work"
    assert (said in capsys.readouterr().err) == idle
