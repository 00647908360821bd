"""Destination of dtrace(1)'s text: the file of the last freopen(); without one, the file of -o or
standard output.

Tested by tests/render/dtrace/test_renderer.py.
"""

from __future__ import annotations

from typing import TextIO

from kinst.render import Destination


class TextOutput:
    """Output of text, to a destination that D's freopen() and ftruncate() can change."""

    def __init__(self, destination: Destination) -> None:
        self._first = destination
        self._file: TextIO | None = None

    def write(self, text: str) -> None:
        if self._file is None:
            self._first.write(text)
            return
        self._file.write(text)
        self._file.flush()

    def reopen(self, path: str) -> None:
        """Append text to this file from now on. If the path is "", go back to the first destination
        (standard output or the file of -o). If the file cannot be opened, report the error and go
        back, too.
        """
        self.close()
        if path:
            try:
                self._file = open(  # noqa: SIM115
                    path, "a", encoding="utf-8", errors="surrogateescape"
                )
            except OSError as error:
                self._first.say(f"dtrace: failed to freopen {path}: {error.strerror}")

    def truncate(self) -> None:
        if self._file is not None:
            self._file.truncate(0)
        elif self._first.truncate is not None:
            self._first.truncate()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
