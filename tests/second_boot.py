"""Guests that tests start by themselves, started again if they hang during boot.

About one guest in a hundred hangs so in QEMU; kinst starts such a guest again
(kinst/session/machine.py), and a test that boots one without kinst's session must do the same, or
it fails without a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FIRST_SECONDS = 60.0  # as kinst's FIRST_BOOT_SECONDS
SECONDS = 240.0  # a hang takes this long, a busy machine is slow


def booted(
    start: Callable[[], T], comes_up: Callable[[T, float], bool], end: Callable[[T], object]
) -> T:
    """Return a guest that has come up: the first one or, after a minute, the second.

    Args:
        start: starts a guest.
        comes_up: returns whether a guest comes up within some seconds.
        end: ends a guest that did not.
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
