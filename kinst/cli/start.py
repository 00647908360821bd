"""Where the command kinst begins: what a shell asks while somebody types is answered without the
rest.

Tested by tests/cli/test_completion_shells.py.
"""

from __future__ import annotations

import os
import resource
import sys
from importlib import import_module

# OpenBLAS comes with numpy, and begins by starting a thread for each CPU.  None has work here, and
# where there is no room for one it ends the process.
THREADS = "OPENBLAS_NUM_THREADS"
# Bytes of address space with which the libraries can be loaded; OpenBLAS and others do not fail in
# order where they have less.
LEAST = 320_000_000
COMPLETE = "--complete"  # how the shells' functions ask; see kinst.cli.completion


def main() -> int:
    """The kinst command; its exit status."""
    words = sys.argv[1:]
    if words[:1] == [COMPLETE]:
        asked: int = import_module("kinst.cli.completion.answer").answer(words[1:])
        return asked
    import_module("kinst.cli.guard")  # what goes wrong from here on is said in one line
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < LEAST:
        print(f"kinst: out of memory (ulimit -v allows {limit // 1024} kB)", file=sys.stderr)
        return 1
    chosen = THREADS in os.environ
    os.environ.setdefault(THREADS, "1")
    command = import_module("kinst.cli.command")
    if not chosen:
        del os.environ[THREADS]  # programs that kinst starts have nothing to do with it
    status: int = command.main(words)
    return status


if __name__ == "__main__":
    sys.exit(main())
