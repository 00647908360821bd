"""Calls of LLVM in a second thread, which leave the main thread free to handle signals.

Python handles a signal in the main thread, between two bytecode instructions, and one call of LLVM
may take minutes. So LLVM runs in a second thread and releases Python's lock, while the main thread
waits. A signal can end this wait; the second thread then runs on until kinst exits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def aside(work: Callable[[], _Result]) -> _Result:
    """Call `work` in a second thread, wait, and return its result or raise its exception.

    If a signal handler raises an exception in the main thread, the wait ends with that exception.
    Called outside the main thread, aside() calls `work` directly.  Raises RuntimeError if no thread
    can be started.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()  # the main thread handles signals
    results: list[_Result] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    threading.Thread(target=run, name="kinst-llvm", daemon=True).start()
    over.wait()
    if errors:
        raise errors[0]
    return results[0]
