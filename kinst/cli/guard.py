"""How the kinst and inlinecall commands report errors: one line, and an exit status.

Tested by tests/cli/test_standard_files.py.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

from kinst.cli.shortages import shortage
from kinst.errors import GoneError, KinstError

_SOON = 0.01  # seconds


class UsageError(KinstError):
    """The command line itself is wrong: exit status 2, as dtrace(1)."""


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command."""

    def __init__(self, number: int) -> None:
        self.number = number


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Report Ctrl-C, or a lack of memory, in one line while modules are still imported."""
    name = os.path.basename(sys.argv[0])
    if issubclass(kind, KeyboardInterrupt):
        print(f"{name}: interrupted", file=sys.stderr)
    elif (short := shortage(error)) is not None:
        print(f"{name}: {short}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, where)


def _unraisable(said: Any) -> None:
    """Handle what cannot be raised where it happened (a callback of a library, a finaliser): send a
    signal that ends kinst again; ignore a shortage, which will happen again."""
    error = said.exc_value
    if isinstance(error, Interrupted):
        threading.Thread(target=_again, args=(error.number,), daemon=True).start()
    elif error is None or shortage(error) is None:
        sys.__unraisablehook__(said)


def _again(number: int) -> None:
    time.sleep(_SOON)
    os.kill(os.getpid(), number)


sys.excepthook = _uncaught
sys.unraisablehook = _unraisable


def standard_files() -> None:
    """Make stdin, stdout and stderr usable if the command was started without them.

    Otherwise the next file to be opened would take their place.  Reading yields nothing, writing to
    stdout is an error as it would be in C (EBADF), messages are lost.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    sys.stdout, sys.stderr = _whole(sys.stdout), _whole(sys.stderr)


def _whole(file: TextIO) -> TextIO:
    """Wrap the file so that short writes are completed.

    With PYTHONUNBUFFERED (TextIOWrapper over a raw file) Python drops what one write(2) did not
    take, as when a signal arrives while a pipe is full.  write() flushes, so nothing waits longer.
    """
    if not isinstance(file.buffer, io.RawIOBase):
        return file
    return open(file.fileno(), "w", encoding=file.encoding, errors=file.errors, closefd=False)


def _forget(file: TextIO) -> None:
    """Discard what is still buffered for a file, so that closing it does not fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def write(file: TextIO, text: str) -> None:
    """Write text to a file at once.

    Raises KinstError for a full disk and the like, BrokenPipeError if the reader is gone."""
    try:
        file.write(text)
        file.flush()
    except BrokenPipeError:
        _forget(file)
        raise
    except OSError as error:
        _forget(file)
        name = "standard output" if file is sys.stdout else file.name
        raise KinstError(f"failed to write to {name}: {error.strerror}") from error


def say(text: str) -> None:
    """Write one message to stderr; it is lost if stderr is closed.

    On a terminal it replaces the line of progress (kinst.cli.progress).
    """
    with suppress(KinstError, BrokenPipeError):
        end = "\x1b[K\n" if sys.stderr.isatty() else "\n"
        write(sys.stderr, text.replace("\n", end) + end)


def _end_by(number: int) -> int:
    """End this process by a signal, so that a shell sees the signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # if the signal is blocked


def guarded(
    work: Callable[[], int],
    name: str,
    complain: Callable[[KinstError], None],
) -> int:
    """Do the work of a command, and return the exit status: that of `work`, or of its error.

    Every error that a user can cause becomes one line; KINST_TRACEBACK lets a defect through.

    Args:
        name: of the command; after a wrong command line a second line points to its --help.
        complain: prints an error.
    """
    try:
        return work()
    except UsageError as error:
        complain(error)
        say(f"Try '{name} --help'.")
        return 2
    except GoneError as error:
        complain(error)
        return error.status
    except KinstError as error:
        complain(error)
        return 1
    except KeyboardInterrupt as error:
        say(f"{name}: interrupted")
        return _end_by(error.number if isinstance(error, Interrupted) else signal.SIGINT)
    except BrokenPipeError:
        return _end_by(signal.SIGPIPE)  # whoever read our output is gone
    except Exception as error:
        if os.environ.get("KINST_TRACEBACK"):
            raise
        if (short := shortage(error)) is not None:
            complain(short)
            return 1
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        say(f"{name}: a defect of kinst: {type(error).__name__}: {error} at {place}"
            " (KINST_TRACEBACK=1 shows more)")  # fmt: skip
        return 1
