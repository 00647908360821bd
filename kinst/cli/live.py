"""A live table that fills the terminal, with its keys, for `kinst top`.

Tested by tests/cli/test_top_terminal.py.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kinst.cli.guard import UsageError
from kinst.events import Aggregation
from kinst.views.top import TopTable

KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1b[1~": "home",
    b"\t": "tab", b" ": "space",
}  # fmt: skip
HELP = "q quits   ←→ or 1-9 sorts   r reverses   ↑↓ goes on   space pauses   tab: next aggregation"
_NOTES = 3  # number of lines for messages below the table


def keys_in(data: bytes) -> list[str]:
    """Return the names of the keys for which a terminal sends these bytes; unknown bytes are
    skipped."""
    keys = []
    while data:
        code = next((one for one in KEYS if data.startswith(one)), data[:1])
        name = KEYS.get(code) or code.decode("ascii", "ignore")
        if name.isprintable() and name:
            keys.append(name)
        data = data[len(code) :]
    return keys


def _is_in_background() -> bool:
    """Return whether kinst is in the background of the terminal that it reads, so that it may not
    change the terminal's mode. False if the terminal does not control kinst's session."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False


class Screen:
    """Live tables of aggregations that fill the terminal, one at a time. A table is drawn when
    show() gets new values, and when a key is pressed.

    A context manager: leaving it restores the terminal.

    Attributes:
        stop: called when the user asks for the end of the trace (key q).
    """

    def __init__(self, title: str, instead: str) -> None:
        """Prepare the screen.

        Args:
            title: text for the first line.
            instead: hint for the error if there is no terminal: what else shows the tables.

        Raises:
            UsageError: stdin or stdout is not a terminal, or kinst runs in its background, where
                no program may change the terminal's mode.
        """
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("kinst top needs a terminal", instead)
        if _is_in_background():
            hint = "bring it to the foreground: fg, or timeout --foreground"
            raise UsageError("kinst top runs in the background of its terminal", hint)
        self.stop: Callable[[], None] = lambda: None
        self._title = " ".join(title.split())
        self._console = Console()
        self._tables: dict[str, TopTable] = {}
        self._chosen = 0
        self._paused = False
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._over, self._bell = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="kinst-keys", daemon=True)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False, get_renderable=self._drawn,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(0)
        tty.setcbreak(0)
        self._live.start(refresh=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._bell)
        self._thread.join()
        try:
            self._live.stop()
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            os.close(self._over)

    def show(self, aggregation: Aggregation) -> None:
        """Update the table of an aggregation with its present values."""
        with self._lock:
            table = self._tables.setdefault(aggregation.name, TopTable(aggregation))
            table.take(aggregation, time.monotonic())
            if not self._paused:
                self._live.refresh()

    def note(self, text: str) -> None:
        """Show a message in the lines below the table."""
        with self._lock:
            self._notes += [line for line in text.splitlines() if line.strip()]
            self._live.refresh()

    def last(self) -> None:
        """Print the last table as ordinary output of the terminal."""
        table = self._table
        if table is not None and len(table):
            self._console.print(self._body(table, self._height))

    @property
    def _table(self) -> TopTable | None:
        tables = list(self._tables.values())
        return tables[self._chosen % len(tables)] if tables else None

    @property
    def _height(self) -> int:
        """Number of rows of the table that the screen has room for."""
        return max(self._console.size.height - 3 - _NOTES, 1)

    def _listen(self) -> None:
        while True:
            ready, _, _ = select.select([0, self._over], [], [])
            if self._over in ready:
                return
            data = os.read(0, 64)
            if not data:
                self.stop()
                return
            for key in keys_in(data):
                self._press(key)

    def _press(self, key: str) -> None:
        if key == "q":
            self.stop()
            return
        with self._lock:
            if key == "space":
                self._paused = not self._paused
            elif key == "tab":
                self._chosen += 1
            elif self._table is not None:
                self._table.press(key, self._height)
            self._live.refresh()

    def _drawn(self) -> Group:
        with self._lock:
            table = self._table
            seconds = int(time.monotonic() - self._began)
            state = "   paused" if self._paused else ""
            name = f"@{table.name}: {len(table):,} keys   " if table is not None else ""
            head = Text(f"kinst top   {name}{seconds} s{state}   {self._title}", style="bold")
            head.truncate(self._console.size.width, overflow="ellipsis")
            body = self._body(table, self._height) if table is not None else Text("nothing yet")
            foot = Text("\n".join((*self._notes, HELP)), style="dim", no_wrap=True)
            return Group(head, body, foot)

    def _body(self, table: TopTable, height: int) -> Table:
        shown = Table(box=None, expand=True, pad_edge=False, header_style="reverse")
        last = len(table.columns) - 1
        for k, name in enumerate(table.columns):
            mark = ("▲" if table.reverse else "▼") if k == table.sorted_by else ""
            shown.add_column(
                Text(f"{name}{mark}"), justify="left" if k in (0, last) else "right",
                no_wrap=True, overflow="ellipsis", ratio=1 if k == 0 else None,
            )  # fmt: skip
        for row in table.cells(height):
            shown.add_row(*(Text(cell) for cell in row))
        return shown
