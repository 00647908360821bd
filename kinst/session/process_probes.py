"""Probe descriptions with a process id after the provider's name, such as pid1234:a.out:main:entry.

Tested by tests/session/test_process_probes.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from kinst.core.errors import DError, KinstError
from kinst.core.probe import ProbePattern
from kinst.core.types import PROGRAM
from kinst.dlang.syntax import tree
from kinst.providers import interfaces
from kinst.session.request import Request

_NUMBERED = re.compile(r"(.*?)([0-9]*)")
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', re.S)
# A description in a D text, with its module.
_WITH_MODULE = re.compile(r"\bpid(?:\$target|[0-9]+):([^:\s/{,]+):")
_TO_TYPE = "--process -c 'PROGRAM ARGUMENTS', or --process -p PID"


def separated(pattern: ProbePattern) -> ProbePattern:
    """Return a description with the process id after its provider's name as ProbePattern.process;
    the same description if its provider takes no process id."""
    match = _NUMBERED.fullmatch(pattern.provider)
    interface = interfaces().get(match[1]) if match else None
    if match is None or interface is None or not interface.of_process or not match[2]:
        return pattern
    return replace(pattern, provider=match[1], process=int(match[2]))


def library_named(request: Request, program: str) -> str:
    """Return the name of the library whose probes the programs of a request name, such as
    libc.so.6; "" if they name only probes of the user program itself.

    Raises KinstError if they name several libraries.

    Args:
        program: path of the user program.
    """
    texts = (_COMMENT_OR_STRING.sub(" ", one.text) for one in request.programs)
    modules = {module for text in texts for module in _WITH_MODULE.findall(text)}
    own = {PROGRAM, Path(program).name}
    libraries = sorted(one for one in modules if not any(fnmatchcase(name, one) for name in own))
    if len(libraries) > 1:
        raise KinstError(
            f"{' and '.join(libraries)}: kinst counts in one file of a program at a time",
            "run kinst once for each",
        )
    return libraries[0] if libraries else ""


def with_processes(
    program: tree.ProgramNode, request: Request, target_pid: int
) -> tree.ProgramNode:
    """Return a D program with each description of a user program's probes rewritten.

    The process id becomes a field of its own (ProbePattern.process). The module becomes a.out if it
    is the name of the user program's file. If the request counts in a library, the module becomes
    the name of the library's file.

    Raises DError if such a description names no process or another process than the traced one, or
    if no user program is traced.

    Args:
        request: the request, in which with_vmlinux() has put the file to count in.
        target_pid: the value of $target; 0 before the process exists.
    """
    items = [
        _of_clause(item, request, target_pid) if isinstance(item, tree.ClauseNode) else item
        for item in program.items
    ]
    same = all(a is b for a, b in zip(items, program.items, strict=True))
    return program if same else replace(program, items=tuple(items))


def _of_clause(clause: tree.ClauseNode, request: Request, target_pid: int) -> tree.ClauseNode:
    made = tuple(_of_description(one, request, target_pid) for one in clause.descriptions)
    same = all(a is b for a, b in zip(made, clause.descriptions, strict=True))
    return clause if same else replace(clause, descriptions=made)


def _of_description(
    description: tree.DescriptionNode, request: Request, target_pid: int
) -> tree.DescriptionNode:
    pattern = separated(description.pattern)
    interface = interfaces().get(pattern.provider)
    if interface is None or not interface.of_process:
        return description
    span = description.span
    if pattern.process is None:
        raise DError(
            f"{pattern} names no process", span, "D_PROC_BADPID",
            f"{replace(pattern, process=0)} is in the traced process",
        )  # fmt: skip
    traced = request.machine.process
    file = request.kind.program(request.command, traced)
    if not file:
        message = f"{pattern} is in a user program, and kinst traces a kernel here"
        raise DError(message, span, "D_PROC_GRAB", _TO_TYPE)
    if pattern.process not in (target_pid, traced):
        message = f"{pattern}: kinst does not trace process {pattern.process}"
        hint = f"{replace(pattern, process=0)} is in the process that it traces"
        raise DError(message, span, "D_PROC_GRAB", hint)
    own, counted = Path(file).name, Path(request.machine.kernel or file).name
    if counted == own:
        module = PROGRAM if pattern.module == own else pattern.module
    elif pattern.module and f"{counted}.".startswith(f"{pattern.module}."):
        module = counted
    else:
        message = f"{pattern}: kinst counts in one file of a program at a time, here in {counted}"
        raise DError(message, span, "D_PROC_GRAB", "name this file, or run kinst once for each")
    return replace(description, pattern=replace(pattern, module=module))
