"""Long text on a terminal goes through the user's pager."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys

from kinst.cli.guard import write

FALLBACK = (132, 24)  # columns and lines where there is no terminal
NOT_FOUND = 127  # what a shell says of a program that is not there


def columns() -> int:
    """Of the terminal, or of its stand-in."""
    return shutil.get_terminal_size(FALLBACK).columns


def has_colours() -> bool:
    """Whether standard output takes them (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return sys.stdout.isatty() and wanted


def show(text: str) -> None:
    """On a terminal, by $KINST_PAGER, $PAGER or less where the text is longer than that; as it is
    elsewhere, and where there is no such program."""
    pager = os.environ.get("KINST_PAGER", os.environ.get("PAGER", "less"))
    lines = shutil.get_terminal_size(FALLBACK).lines
    if sys.stdout.isatty() and pager not in ("", "cat") and text.count("\n") >= lines:
        # Colours as they are, long lines cut; what was shown stays.
        environment = {"LESS": "RSX", **os.environ}
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's
        try:
            data = text.encode("utf-8", "surrogateescape")
            done = subprocess.run(shlex.split(pager), input=data, env=environment, check=False)
            if done.returncode != NOT_FOUND:
                return
        except OSError:  # there is no such program
            pass
        finally:
            signal.signal(signal.SIGINT, before)
    write(sys.stdout, text)
