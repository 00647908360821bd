"""File of a sweep's results, one JSON object a line. With it, a sweep goes on where it was
interrupted.

The first line says which sweep it is; each other line is a try.

Tested by tests/trials/test_sweep.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinst.core.errors import KinstError
from kinst.trials.outcomes import Try


class ResultsFile:
    """Results of a sweep, kept in a file if it has one. Several threads may add tries.

    Attributes:
        tries: the tries so far, by number.
    """

    def __init__(self, path: str, sweep: Mapping[str, Any]) -> None:
        """Read the tries that the file has already, and open it for more.

        Args:
            path: the file's path; "" to keep the results in memory only.
            sweep: what identifies the sweep, as values of JSON.

        Raises:
            KinstError: the file cannot be used, or has the results of another sweep.
        """
        self.tries: dict[int, Try] = {}
        self._lock = threading.Lock()
        self._path = Path(path) if path else None
        if self._path is None:
            return
        try:
            if self._path.exists() and self._path.stat().st_size:
                self._read(self._path, sweep)
            else:
                self._path.write_text(json.dumps({"sweep": sweep}) + "\n", encoding="utf-8")
        except OSError as error:
            raise KinstError(f"failed to open {path}: {error.strerror}") from error

    def _read(self, path: Path, sweep: Mapping[str, Any]) -> None:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        try:
            head = json.loads(first)["sweep"]
            # A line may be cut off, if kinst was killed while it wrote.
            whole = [json.loads(line) for line in lines if line.endswith("}")]
        except (ValueError, KeyError, TypeError) as error:
            raise KinstError(f"{path}: not a file of results", "name another file") from error
        if head != json.loads(json.dumps(sweep)):
            differing = sorted(k for k in {*head, *sweep} if head.get(k) != sweep.get(k))
            raise KinstError(
                f"{path} has the results of another sweep (other {', '.join(differing)})",
                "name another file",
            )
        for values in whole:
            one = Try.of_json(values)
            self.tries[one.number] = one
        if lines and not lines[-1].endswith("}"):
            text = "".join(f"{json.dumps(values)}\n" for values in [{"sweep": sweep}, *whole])
            path.write_text(text, encoding="utf-8")

    def add(self, one: Try) -> None:
        """Add the result of a try. Raises KinstError if the file cannot be written."""
        with self._lock:
            self.tries[one.number] = one
            if self._path is None:
                return
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one.to_json()) + "\n")
            except OSError as error:
                raise KinstError(f"failed to write {self._path}: {error.strerror}") from error
