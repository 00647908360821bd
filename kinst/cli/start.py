"""Start of the kinst command. It answers a shell's completion without loading the rest of kinst.

Tested by tests/cli/test_completion_shells.py.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from importlib import import_module

# OpenBLAS comes with numpy and starts a thread for each CPU.  kinst has no work for them, and
# OpenBLAS ends the process if it cannot start one.
THREADS = "OPENBLAS_NUM_THREADS"
# Bytes of address space that the libraries need to load; with less, OpenBLAS and others crash.
LEAST = 320_000_000
# Number of new objects after which Python looks for reference cycles. The millions of instructions
# of a whole kernel are in no cycle, and scanning them repeatedly took a third of the time.
COLLECT = 200_000
COMPLETE = "--complete"  # option by which the shells' functions ask; see kinst.cli.completion


def main() -> int:
    """Run the kinst command and return its exit status."""
    gc.set_threshold(COLLECT)
    words = sys.argv[1:]
    if words[:1] == [COMPLETE]:
        asked: int = import_module("kinst.cli.completion.answer").answer(words[1:])
        return asked
    import_module("kinst.cli.guard")  # from here on errors are one line
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < LEAST:
        print(f"kinst: out of memory (ulimit -v allows {limit // 1024} kB)", file=sys.stderr)
        return 1
    chosen = THREADS in os.environ
    os.environ.setdefault(THREADS, "1")
    command = import_module("kinst.cli.command")
    if not chosen:
        del os.environ[THREADS]  # programs that kinst starts must not inherit it
    status: int = command.main(words)
    gc.freeze()  # Python would look for cycles among all objects before it ends
    return status


if __name__ == "__main__":
    sys.exit(main())
