"""Display of long text on a terminal with the user's pager."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys

from kinst.cli.guard import write

FALLBACK = (132, 24)  # columns and lines to assume if there is no terminal
NOT_FOUND = 127  # a shell's status for a missing program


def columns() -> int:
    """Return the width of the terminal in columns."""
    return shutil.get_terminal_size(FALLBACK).columns


def has_colours() -> bool:
    """Return whether standard output is a terminal that the user wants coloured (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return sys.stdout.isatty() and wanted


def show(text: str) -> None:
    """Print a text. If standard output is a terminal with fewer lines than the text, use the pager:
    $KINST_PAGER, $PAGER or less."""
    pager = os.environ.get("KINST_PAGER", os.environ.get("PAGER", "less"))
    lines = shutil.get_terminal_size(FALLBACK).lines
    if sys.stdout.isatty() and pager not in ("", "cat") and text.count("\n") >= lines:
        # Pass colours on, cut long lines, and leave the text on the screen.
        environment = {"LESS": "RSX", **os.environ}
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pager handles Ctrl-C
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
