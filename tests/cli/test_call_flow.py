"""What kinst flow says before it waits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kinst.cli import call_flow
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.errors import KinstError
from kinst.views.call_tree import Call, CallTree


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


def test_the_summary_counts_the_functions_that_were_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    read, lock = ("vmlinux", "read"), ("vmlinux", "lock")
    inner = [Call(lock, 0, 1, 8), Call(lock, 0, 2, 9), Call(("vmlinux", "min"), 0, 3, 0)]
    inner[2].inlined = True
    tree = CallTree(Call(read, 0, 0, 4, calls=inner), {})
    tracing = SimpleNamespace(codes=(1, 2, 3, 4))  # four functions were planted
    followed = SimpleNamespace(tree=tree, tracing=tracing, unfollowed=())
    call_flow._say_left_out(followed, {})  # type: ignore[arg-type]
    assert capsys.readouterr().err == "kinst: 3 calls of 2 functions; 4 functions were traced\n"
