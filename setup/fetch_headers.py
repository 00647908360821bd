"""Fetch the headers of the kernel that kinst traces, for the tests that build kinst's kernel
module.

    fetch_headers.py    (with the checkout on PYTHONPATH)

Prints nothing if the headers have been fetched already. If a mirror or the network fails, prints
the error and tries again.
"""

from __future__ import annotations

import sys
import time
from functools import partial

from fetch_kernel import patiently

from kinst.core.errors import KinstError
from kinst.kernels.fetch import prepared
from tools.kernel_headers import are_there, headers_of

ISA = "amd64"


def main() -> int:
    kernel = prepared(ISA, "")
    if kernel is None:
        print("kinst: there is no kernel yet to have headers of")
        return 1
    if are_there(kernel.release):
        return 0
    print(f"  headers of {kernel.release}")
    started = time.monotonic()
    try:
        place = patiently(partial(headers_of, ISA, kernel.release), print)
    except KinstError as error:
        print(f"kinst: {error}")
        return 1
    print(f"headers are ready in {place} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
