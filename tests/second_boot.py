"""Guests that tests start without a session of kinst, started again if they hang during boot.

In QEMU about one guest in a hundred hangs during boot.  kinst starts such a guest again
(kinst/session/machine.py); a test that boots a guest without a session must do so too, or it fails
although nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FIRST_SECONDS = 60.0  # the same as kinst's FIRST_BOOT_SECONDS
SECONDS = 240.0  # long enough for a busy machine; only a hang takes longer


def booted(
    start: Callable[[], T], comes_up: Callable[[T, float], bool], end: Callable[[T], object]
) -> T:
    """Return a guest that has come up: the first one or, if that takes over a minute, a second
    one.

    Args:
        start: starts a guest.
        comes_up: returns whether a guest comes up within some seconds.
        end: ends a guest that did not come up.
    """
    guest = start()
    if comes_up(guest, FIRST_SECONDS):
        return guest
    end(guest)
    guest = start()
    if not comes_up(guest, SECONDS):
        end(guest)
        raise AssertionError("two guests in a row have not come up")
    return guest
