"""A server that runs the kinst command many times, forking for each run instead of importing
again.

Requests and answers are lines of JSON on stdin and stdout.  A request is {"argv", "cwd",
"seconds", "env"}, its answer {"status", "timeout"}.  Input and output of the command are the files
stdin, stdout and stderr in the request's folder.  Each run is a process with its own descriptors
that calls the function of the `kinst` script and ends with its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from importlib import import_module

import kinst
from kinst.cli import command as cli
from kinst.cli import options

WARM = """BEGIN { self->a = 1; b[1] = "x"; @[b[1]] = count(); printf("%d %s", self->a, b[1]); }
    BEGIN { @q = quantize(1); trace(strlen(b[1])); exit(0); }"""


def prepare() -> None:
    """Load all of kinst and compile a program with LLVM, so that no fork has to."""
    import_module("kinst.cli.tracing")  # the command's own import is inside of main()
    options.parse(["-q", "-n", WARM])  # this loads every kind of machine
    with kinst.host() as machine:
        machine.run(WARM)
    gc.freeze()  # a collection in a fork would copy the pages of all objects


def child(request: dict[str, object]) -> None:
    """Run the command in this process; do not return."""
    os.chdir(str(request["cwd"]))
    os.setpgid(0, 0)
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(name, flags, 0o644), number)
    # Not the streams that a test runner put in their place.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__  # type: ignore[assignment]
    words = [str(word) for word in request["argv"]]  # type: ignore[attr-defined]
    status = 70
    try:
        sys.argv = ["kinst", *words]
        status = cli.main()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)


def run(request: dict[str, object]) -> dict[str, object]:
    pid = os.fork()
    if pid == 0:
        child(request)
    end = time.monotonic() + float(str(request["seconds"]))
    pause = 0.002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return {"status": os.waitstatus_to_exitcode(status), "timeout": False}
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"status": -signal.SIGKILL, "timeout": True}
        time.sleep(pause)
        pause = min(0.02, pause * 1.5)


def main() -> None:
    prepare()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
