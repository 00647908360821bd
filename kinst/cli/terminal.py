"""Terminal of --shell: kinst's own terminal becomes the terminal of a shell in the guest while the
trace runs.

Typed bytes go to the guest unchanged, including Ctrl-C, from which the guest's kernel makes a
signal. Only Ctrl-] goes to kinst, and ends the trace. kinst's own output appears on the terminal as
usual.
"""

from __future__ import annotations

import os
import select
import shlex
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from kinst.cli.guard import UsageError

ESCAPE = b"\x1d"  # Ctrl-]
_LOOK = 0.25  # seconds between two checks of the terminal's size
_MOST = 4096  # bytes to read from the terminal at once
# Indexes of what tcgetattr() returns.
_INPUT, _LOCAL, _CHARACTERS = 0, 3, 6


def shell_command(environment: Mapping[str, str]) -> str:
    """Return the shell command that starts a shell in the guest: $SHELL if the guest has it,
    otherwise /bin/sh.

    Args:
        environment: kinst's own environment, from which the shell gets TERM.
    """
    kind = shlex.quote(environment.get("TERM", "dumb"))
    return f'export TERM={kind}; [ -x "$SHELL" ] || SHELL=/bin/sh; exec "$SHELL"'


class HostTerminal:
    """The terminal that kinst was started on, as a Terminal (protocol in core/machine.py).

    A context manager: leaving it restores the terminal.

    Attributes:
        stop: called when Ctrl-] asks for the end of the trace.
    """

    def __init__(self, descriptor: int = 0) -> None:
        """Open the terminal.

        Args:
            descriptor: file descriptor of the terminal.

        Raises:
            UsageError: the descriptor is not a terminal.
        """
        if not os.isatty(descriptor):
            raise UsageError("--shell needs a terminal", "-c runs a command without one")
        self.stop: Callable[[], None] = lambda: None
        self._read = descriptor
        self._write = os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        self._before: list[Any] = termios.tcgetattr(descriptor)
        self._over, self._bell = os.pipe2(os.O_CLOEXEC)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._bell)
        if self._thread is not None:
            self._thread.join()
        termios.tcsetattr(self._read, termios.TCSADRAIN, self._before)
        os.close(self._over)
        os.close(self._write)

    def size(self) -> tuple[int, int]:
        size = os.get_terminal_size(self._write)
        return size.lines or 24, size.columns or 80

    def show(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._write, data) :]

    def connect(self, type_in: Callable[[bytes], None], resize: Callable[[int, int], None]) -> None:
        sys.stderr.write("kinst: a shell of the guest; its end, or Ctrl-], ends the trace\n")
        sys.stderr.flush()
        termios.tcsetattr(self._read, termios.TCSADRAIN, self._raw())
        self._thread = threading.Thread(
            target=self._pass_on, args=(type_in, resize), name="kinst-typed", daemon=True
        )
        self._thread.start()

    def _raw(self) -> list[Any]:
        """Return terminal attributes for raw mode, as cfmakeraw() of termios(3) sets them. But keep
        output processing: it adds a carriage return to each line that kinst writes."""
        raw = list(self._before)
        raw[_INPUT] &= ~(
            termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP | termios.INLCR
            | termios.IGNCR | termios.ICRNL | termios.IXON
        )  # fmt: skip
        raw[_LOCAL] &= ~(
            termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN
        )
        raw[_CHARACTERS] = list(raw[_CHARACTERS])
        raw[_CHARACTERS][termios.VMIN], raw[_CHARACTERS][termios.VTIME] = 1, 0
        return raw

    def _pass_on(
        self, type_in: Callable[[bytes], None], resize: Callable[[int, int], None]
    ) -> None:
        size = self.size()
        try:
            while True:
                ready, _, _ = select.select([self._read, self._over], [], [], _LOOK)
                if self._over in ready:
                    return
                if self.size() != size:
                    size = self.size()
                    resize(*size)
                if not ready:
                    continue
                data = os.read(self._read, _MOST)
                typed, escape, _ = data.partition(ESCAPE)
                if typed:
                    type_in(typed)
                if escape or not data:
                    self.stop()
                    return
        except Exception:  # the guest or the terminal is gone: the trace reports it
            self.stop()
