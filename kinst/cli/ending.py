"""Message about the end of a trace, if the output does not explain the end.

Tested by tests/cli/test_ending.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kinst.api import Request
from kinst.events import End

_NOT_FOUND = 127  # exit status of a shell that has not found a command
# In a command with one of these, any program may be the absent one.
_SHELL = frozenset(";|&\n()`$<>")


def ending_text(end: End, request: Request) -> str:
    """Return a sentence that explains the end of a trace; "" if there is nothing to explain.

    If --timeout ended the trace, the sentence says so. If the guest's shell has not found the
    command's program, but this host has it, the sentence says how to get the program into the
    guest.

    Args:
        end: the last event of the trace.
        request: the request for the trace.
    """
    if end.reason == "command" and end.status == _NOT_FOUND:
        return _absent_text(request)
    if end.reason != "timeout" or request.timeout is None:
        return ""
    still = f", while {request.command!r} still ran" if request.command else ""
    return f"kinst: the trace ended after {request.timeout:g} s, by --timeout{still}"


def _absent_text(request: Request) -> str:
    """Return a hint that says how to copy the command's program from this host into the guest.

    Return "" if this host does not have the program, or if the machine is not a guest that kinst
    boots. Return "" with --root too, which chooses the guest's programs. If the command is more
    than one program with its arguments, the hint names no program: the guest's shell does.
    """
    if not request.kind.abilities.boots or request.machine.root or not request.command.strip():
        return ""
    if _SHELL & set(request.command):
        return (
            "kinst: status 127: a program of the command is not in the guest (--copy FILE copies it"
            " if it is linked statically; --root / runs all programs of this machine)"
        )
    name = request.command.split()[0]
    path = shutil.which(name)
    if path is None:
        return ""
    return (
        f"kinst: {name} is a program of this machine, not of the guest (--copy {path} copies it if"
        f" it is linked statically, -c {Path(path).name} runs it then; --root / runs all programs"
        " of this machine)"
    )
