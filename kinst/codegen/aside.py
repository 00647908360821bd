"""Call LLVM in another thread, so that the main thread can handle signals.

Python handles a signal in the main thread, between two of its own steps, and one call of LLVM may
take minutes.  So LLVM runs in another thread, without Python's lock, and a signal ends the main
thread's wait for it.  LLVM's thread then ends with kinst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def aside(work: Callable[[], _Result]) -> _Result:
    """Return or raise what `work` returns or raises.  A signal handler that raises ends the wait.

    Raises RuntimeError if no thread can be started."""
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
