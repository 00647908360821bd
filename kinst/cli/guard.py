"""Error reports of the kinst and inlinecall commands: one line on stderr, and an exit status."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, TextIO

from kinst.cli.shortages import shortage
from kinst.errors import GoneError, KinstError

_SOON = 0.01  # seconds


class UsageError(KinstError):
    """Error in the command line, for which kinst exits with status 2, as dtrace(1) does."""


class Interrupted(KeyboardInterrupt):
    """Exception that a signal handler raises because a signal ends the command.

    Attributes:
        number: number of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupt(error: BaseException) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt that an exception is or that it was made from, or None.

    While a class is made, CPython 3.11 turns an exception of a member's __set_name__ into a
    RuntimeError with that exception as its cause, even KeyboardInterrupt. Source:
    type_new_set_names() in CPython 3.11's Objects/typeobject.c.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Report an uncaught exception (sys.excepthook): Ctrl-C and a lack of memory in one line,
    others as Python does. This happens only while modules are imported, before guarded() runs."""
    name = os.path.basename(sys.argv[0])
    if _interrupt(error) is not None:
        print(f"{name}: interrupted", file=sys.stderr)
    elif (short := shortage(error)) is not None:
        print(f"{name}: {short}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, where)


def _unraisable(said: Any) -> None:
    """Handle an exception in a library's callback or a finaliser, where Python cannot raise it
    (sys.unraisablehook).

    If a signal that ends kinst is the cause, send the signal again. Ignore a shortage of memory,
    file descriptors or the like: it will happen again elsewhere. Report any other exception as
    Python does.
    """
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
    """Open /dev/null as stdin, stdout or stderr if the command was started without one of them.

    Without this, the next file that kinst opens would get the missing file's number. With
    /dev/null, reading stdin yields nothing, writing to stdout is an error as in a C program
    (EBADF), and messages to stderr are lost.
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
    """Return the file, or a wrapper that completes short writes to it.

    With PYTHONUNBUFFERED (TextIOWrapper over a raw file) Python calls write(2) once for a text. If
    write(2) takes only a part of the text, for example because a signal arrives while a pipe is
    full, Python drops the rest. The wrapper has a buffer, so Python writes the rest too. The buffer
    delays no text, since this module's function write() flushes it.
    """
    if not isinstance(file.buffer, io.RawIOBase):
        return file
    return open(file.fileno(), "w", encoding=file.encoding, errors=file.errors, closefd=False)


def _forget(file: TextIO) -> None:
    """Discard text that is buffered for a file, so that closing the file does not fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def write(file: TextIO, text: str) -> None:
    """Write text to a file and flush the file.

    Raises:
        KinstError: the text cannot be written, for example because the disk is full.
        BrokenPipeError: the file is a pipe whose reader has closed it.
    """
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
    """Write one message to stderr; if stderr is closed, the message is lost.

    On a terminal the message replaces the line of progress (kinst.cli.progress).
    """
    with suppress(KinstError, BrokenPipeError):
        end = "\x1b[K\n" if sys.stderr.isatty() else "\n"
        write(sys.stderr, text.replace("\n", end) + end)


def _end_by(number: int) -> int:
    """End this process by a signal, so that a shell sees the signal. If the signal is blocked,
    return an exit status instead."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # if the signal is blocked


def guarded(
    work: Callable[[], int],
    name: str,
    complain: Callable[[KinstError], None],
) -> int:
    """Do the work of a command, and return its exit status. After an error, report the error and
    return the exit status for it.

    Every error that a user can cause is reported in one line. A defect of kinst is reported in one
    line, or raised if KINST_TRACEBACK is set.

    Args:
        work: does the work, and returns the exit status.
        name: name of the command. After a UsageError a second line points to its --help.
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
    except BrokenPipeError:
        return _end_by(signal.SIGPIPE)  # the reader of the output has ended
    except (Exception, KeyboardInterrupt) as error:
        if (interrupt := _interrupt(error)) is not None:
            say(f"{name}: interrupted")
            return _end_by(
                interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT
            )
        if os.environ.get("KINST_TRACEBACK"):
            raise
        if (short := shortage(error)) is not None:
            complain(short)
            return 1
        # Imported here, because it takes as long to load as the rest of this module.
        last = import_module("traceback").extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        say(f"{name}: a defect of kinst: {type(error).__name__}: {error} at {place}"
            " (KINST_TRACEBACK=1 shows more)")  # fmt: skip
        return 1
