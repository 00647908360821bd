"""Fetch a kernel to trace, showing progress.

    fetch_kernel.py ISA [VERSION] [--refresh]

Without a version it fetches the kernel that kinst boots by default. Prints nothing if the kernel
has been fetched already; --refresh fetches a newer build if there is one. If a mirror or the
network fails, prints the error and tries again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rich.console import Console

from kinst.core.errors import KinstError
from kinst.kernels.apt import PassingError
from kinst.kernels.fetch import Prepared, Progress, prepare, prepared

_EVERY = 5.0  # seconds between two lines of progress if there is no terminal
PAUSES = (5.0, 20.0)  # seconds before the second and the third attempt
Fetched = TypeVar("Fetched")


def _fetch(
    isa: str, asked: str, refresh: bool, show: Progress, say: Callable[[str], None]
) -> Prepared:
    """Return the files of a kernel, fetched if necessary. Raises KinstError."""
    return patiently(lambda: prepare(isa, show, asked, refresh=refresh), say)


def patiently(fetch: Callable[[], Fetched], say: Callable[[str], None]) -> Fetched:
    """Return the result of `fetch`; after a failure that may pass, wait and call it again, twice at
    most. Raises KinstError.

    Args:
        fetch: fetches something.
        say: prints a message.
    """
    for pause in PAUSES:
        try:
            return fetch()
        except PassingError as error:
            say(f"kinst: {error}")
            say(f"  again in {pause:g} s; what is whole is kept")
            time.sleep(pause)
    return fetch()


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    if len(names) not in (1, 2) or set(sys.argv[1:]) - {*names, "--refresh"}:
        console.print("usage: fetch_kernel.py ISA [VERSION] [--refresh]", markup=False)
        return 2
    isa, asked = names[0], "".join(names[1:])
    refresh = "--refresh" in sys.argv
    started = time.monotonic()
    shown = 0.0

    with console.status("looking for a kernel") as status:

        def show(what: str, part: float | None) -> None:
            nonlocal shown
            line = what if part is None else f"{what} ({part:.0%})"
            if console.is_terminal:
                status.update(line)
            elif time.monotonic() - shown > _EVERY:
                console.print(f"  {line}")
                shown = time.monotonic()

        try:
            cached = prepared(isa, asked)
            kernel = cached
            if kernel is None or refresh:
                kernel = _fetch(isa, asked, refresh, show, partial(console.print, markup=False))
            if cached and not refresh:
                return 0
        except KinstError as error:
            console.print(f"kinst: {error}", markup=False)
            return 1
        except KeyboardInterrupt:
            console.print("interrupted; the next run goes on from here")
            return 130
    took = time.monotonic() - started
    console.print(f"kernel {kernel.release} is ready in {kernel.kernel.parents[1]} ({took:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
