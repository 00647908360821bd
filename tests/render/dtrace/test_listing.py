"""-l -v: how each instruction is planted, what leads to it, and why it is not planted in a better
way."""

from __future__ import annotations

from kinst.consumer.messages import LIST_HEADER
from kinst.render.dtrace.listing import planned_rows
from kinst.session.values import ListedProbe

SHORT = "2 bytes are too short for a jump"


def row(way: str, reason: str = "", chained: str = "") -> list[str]:
    probe = ListedProbe(
        17, "kinst", "vmlinux", "f", "5", 0x1005, b"\x41\x57", "push r15", "next", way, reason,
        "fs/f.c:7", None, chained,
    )  # fmt: skip
    header, name, *rows = planned_rows([probe]).splitlines()
    assert header == LIST_HEADER and name.split() == ["17", "kinst", "vmlinux", "f", "5"]
    assert all(one.startswith("\t") for one in rows)
    return [" ".join(one.split()) for one in rows]


def test_a_jump_needs_no_explanation() -> None:
    assert row("jump") == ["41 57 push r15 jump fs/f.c:7"]
    assert row("jump", chained="+0") == ["41 57 push r15 jump fs/f.c:7", "chained from +0"]


def test_why_no_better() -> None:
    assert row("trap", SHORT) == ["41 57 push r15 trap fs/f.c:7", SHORT]
    assert row("run", SHORT, "g+3")[1] == f"chained from g+3; {SHORT}"


def test_refused() -> None:
    assert row("refused", "a jump label") == ["41 57 push r15 refused: a jump label fs/f.c:7"]
