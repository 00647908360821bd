"""Calls into LLVM that leave the main thread free for signals.

Python deals with a signal in the main thread, between two of its own steps, and LLVM may take
minutes for one.  So LLVM works in a thread beside, without Python's lock, and the main thread
waits in a way that a signal ends.  Then nobody waits for LLVM any more, and it ends with kinst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def aside(work: Callable[[], _Result]) -> _Result:
    """What `work` returns or raises.  A signal handler that raises ends the wait for it.

    Raises RuntimeError where no thread can be started."""
    if threading.current_thread() is not threading.main_thread():
        return work()  # signals are none of this thread's business
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
