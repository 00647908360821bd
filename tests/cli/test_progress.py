"""Progress on a terminal is one line that goes away; in a log it is a few lines."""

from __future__ import annotations

import io

import pytest

from kinst.cli.progress import Progress
from kinst.session.report import Report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def screen(text: str) -> list[str]:
    """Return the lines that a terminal shows after this output: CR and ESC [K are obeyed."""
    lines = [""]
    column = 0
    for part in text.replace("\x1b[K", "\0"):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\0":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + 1 :]
            column += 1
    return lines


def test_on_a_terminal_one_line_is_rewritten_and_erased() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("kinst", out, clock)
    progress("downloading 1 of 4 MB", 0.25)
    assert screen(out.getvalue()) == ["kinst: downloading 1 of 4 MB [######..................] 25%"]
    clock.now = 1.0
    progress("unpacking", None)
    assert screen(out.getvalue()) == ["kinst: unpacking"]
    progress("unpacking", 1.0)
    assert screen(out.getvalue()) == [""]


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [("\n", True), ("y\n", True), ("Yes\n", True), ("n\n", False), ("what?\n", False), ("", False)],
)
def test_on_a_terminal_a_download_is_asked_about(
    monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool
) -> None:
    """Enter means yes, and an end of input means no, as in apt-get."""
    out = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert Progress("kinst", out).confirm("linux-image-9 and 2 more", 311_000_000) == agreed
    first, question = screen(out.getvalue())
    assert first == "kinst: to be downloaded, 311 MB: linux-image-9 and 2 more"
    assert question == "kinst: download it? [Y/n] "


def test_without_a_terminal_a_download_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    for out, stdin in ((io.StringIO(), Terminal("n\n")), (Terminal(), io.StringIO("n\n"))):
        monkeypatch.setattr("sys.stdin", stdin)
        assert Progress("kinst", out).confirm("linux-image-9", 1_000_000)
        assert out.getvalue() == "kinst: to be downloaded, 1 MB: linux-image-9\n"


def test_on_a_terminal_it_is_drawn_ten_times_a_second() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("kinst", out, clock)
    for step in range(1000):
        clock.now = step / 1000
        progress("downloading", step / 1000)
    assert 5 <= out.getvalue().count("\r\x1b[K") <= 11


def test_in_a_log_each_work_begins_and_ends_with_a_line() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress("kinst", out, clock)
    progress("reading the package lists", None)
    for step in range(200):
        clock.now = step / 10
        progress(f"reading the package lists ({clock.now:.0f} s)", None)
    for step in range(101):
        progress(f"downloading {step} of 100 MB", step / 100)
    progress("downloading 100 of 100 MB", 1.0)
    progress("downloading 0 of 7 MB", 0.0)
    assert out.getvalue().splitlines() == [
        "kinst: reading the package lists",
        "kinst: reading the package lists (10 s)",
        "kinst: downloading 0 of 100 MB 0%",
        "kinst: downloading 100 of 100 MB 100%",
        "kinst: downloading 0 of 7 MB 0%",
    ]


def test_a_log_can_be_left_alone() -> None:
    out = io.StringIO()
    Progress("inlinecall", out, log=False)("indexing debug information", 1.0)
    assert out.getvalue() == ""


def test_that_nobody_reads_it_is_no_error() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    Progress("kinst", Closed())("indexing", 0.5)


def test_short_work_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], list[tuple[str, float | None]]()
    monkeypatch.setattr("kinst.session.report.time.monotonic", lambda: now[0])
    report = Report(lambda _: None, lambda work, done: told.append((work, done)), 0.0)
    short = report.if_long("short")
    short(0.0)
    now[0] = 0.9
    short(0.9)
    short(1.0)
    assert not told
    long = report.if_long("long")
    now[0] = 2.1
    long(0.4)
    long(1.0)
    assert told == [("long", 0.4), ("long", 1.0)]
