"""kinst top on a pseudo-terminal (pty): its screen, its keys, and how it ends."""

from __future__ import annotations

import os
import re
import signal

import pytest

from kinst.cli import command
from kinst.cli.live import keys_in
from tests.top_terminal import Terminal, keys_of

PROGRAM = """int n; tick-10ms { @low[n % 3] = count(); @high["x"] = count(); n++; }
END { printf("%d", n); }"""


def test_it_lives_sorts_and_leaves() -> None:
    top = Terminal("--every", "100ms", "-n", PROGRAM)
    # The last line comes last: a read may end within a screen.
    top.until(lambda screen: "@low: 3 keys" in screen and "█" in screen and "q quits" in screen)
    assert "count" in top.screen and "per s▼" in top.screen
    top.type("1")
    top.until(lambda screen: "key▼" in screen and keys_of(screen) == ["0", "1", "2"])
    top.type("r")
    top.until(lambda screen: "key▲" in screen and keys_of(screen) == ["2", "1", "0"])
    top.type("\x1b[C")
    top.until(lambda screen: "count▲" in screen)
    top.type("\t")
    top.until(lambda screen: "@high: 1 keys" in screen and keys_of(screen) == ["x"])
    top.type(" ")
    top.until(lambda screen: "paused" in screen)
    top.type(" ")
    top.until(lambda screen: "paused" not in screen)
    top.type("q")
    assert top.status() == 0
    # The last table is on the ordinary screen, with the values of the end.
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", top.written.split("\x1b[?1049l")[-1])
    assert re.search(r"^x +\d+ ", last, re.MULTILINE), last


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_q_does(number: int) -> None:
    top = Terminal("--every", "100ms", "-n", PROGRAM)
    top.until(lambda screen: "@low: 3 keys" in screen)
    if number == signal.SIGINT:
        top.type("\x03")  # Ctrl-C
    else:
        os.kill(top.pid, number)
    assert top.status() == 0


def test_an_error_gives_the_terminal_back() -> None:
    # After two seconds, so that a busy machine has drawn the table before.
    program = 'int n; tick-10ms { @ = count(); n++; } tick-10ms /n == 200/ { system("true"); }'
    top = Terminal("-w", "--every", "50ms", "-n", program)
    top.until(lambda screen: "@:" in screen)
    assert top.status() == 1
    assert "kinst: system() cannot be used with a live table (take it out)" in top.written


def test_keys_of_a_terminal() -> None:
    data = b"\x1b[A\x1bOBq\x1b[5~\t 1\x07\xff"
    assert keys_in(data) == ["up", "down", "q", "page up", "tab", "space", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "kinst top needs a terminal (without one: kinst -n"
         " 'profile-97 /arg0 && pid/ { @[execname, func(arg0)] = count(); }')"),
        (["-n", "BEGIN { @ = count(); }"],
         "kinst top needs a terminal (kinst without a command prints the same aggregation)"),
        (["-n", "BEGIN { trace(1); }"],
         "the program has no aggregation to show (--by NAME says which)"),
        (["-o", "x"], "-o and --shell cannot be used with kinst top"
         " (kinst without a command has both)"),
        (["--every", "1"], "--every 1: not an interval (100ms, 1s, 10hz)"),
    ],
)  # fmt: skip
def test_a_wrong_command_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["top", *words]) == 2
    assert capsys.readouterr().err == f"kinst: {message}\nTry 'kinst --help'.\n"


def test_it_shows_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["top", "-d"]) == 0
    assert capsys.readouterr().out == (
        "profile-97 /arg0 && pid/ { @[execname, func(arg0)] = count(); }\ntick-1s { printa(@); }\n"
    )
