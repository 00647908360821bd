"""Programs that must print the same on any traced machine.

They are those of the conformance suite (tests/d), moved from BEGIN to an instruction of the
kernel, and scripts of examples/.

live_programs.py VMLINUX FOLDER...: run them by --live, with the guest programs in these folders;
each prints a line of JSON, [its name, its output, the messages to the user].
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import kinst
from kinst.errors import KinstError
from kinst.render import DEFAULT, Destination, renderer
from tests.d.cases import Case, all_cases, tidy
from tests.vm.language.test_examples import COVERING, EXAMPLES, Example, examples

CASES, SCRIPTS = 120, 36
# By --live a command's output goes through a pipe, whose bytes this program counts.
ELSE_BY_LIVE = {"pipe_bytes"}
PROBE = 'kinst::vfs_read:0 /execname == "reads"/'
# Words whose value differs in BEGIN, or that would act more than once.
_ELSEWHERE = re.compile(
    r"\b(?:END|ERROR|BEGIN\s*[/,]|dtrace|tick|probe\w+|execname|pid|tid|cpu|epid|id|ipl|ppid|arg\d"
    r"|\w*timestamp|curthread|\w*stack\w*|\w*caller|uid|gid|system|freopen)\b|BEGIN\s*[/,]|`"
)


@dataclass(frozen=True)
class Known:
    """A program.

    Attributes:
        source: D text, or a script's path.
    """

    name: str
    source: str | Path
    command: str
    options: Mapping[str, None] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def _spread(every: list[Case], count: int) -> list[Case]:
    return [every[k * len(every) // count] for k in range(count)]


def cases() -> dict[str, Case]:
    """Return programs that print something and end well, by name."""
    fit = [
        case
        for case in all_cases()
        if case.out and case.err is None and case.expected_status == 0 and case.args == ["-q"]
        and case.script is None and not case.files and not case.input
        and len(re.findall(r"\bBEGIN\b", case.program)) == 1
        and not _ELSEWHERE.search(case.program)
    ]  # fmt: skip
    # The folder in which the command runs, and its arguments, differ between the two guests.
    spread = _spread(fit, CASES)
    same = [case for case in spread if not re.search(r"\b(cwd|execargs)\b", case.program)]
    return {f"{case.chapter}: {case.title}": case for case in same}


def is_printed(case: Case, out: str) -> bool:
    return tidy(out) == case.out


def scripts() -> dict[str, Example]:
    """Return the scripts that `make test` runs, and others from all over the list."""
    every = [one for one in examples() if not one.options and one.name not in ELSE_BY_LIVE]
    first = [one for one in every if one.name in COVERING]
    others = [one for one in every if one.name not in COVERING]
    more = SCRIPTS - len(first)
    spread = [others[k * len(others) // more] for k in range(more)]
    return {one.name: one for one in (*first, *spread)}


def programs() -> Iterator[Known]:
    quiet = {"quiet": None}
    for name, case in cases().items():
        yield Known(name, re.sub(r"\bBEGIN\b", PROBE, case.program), "reads 1", quiet)
    for name, script in scripts().items():
        yield Known(name, EXAMPLES / f"{name}.d", "deeds", {}, script.arguments)


def said(machine: kinst.Machine, known: Known) -> tuple[str, str]:
    """Return the command's output and its messages to the user."""
    out, messages = list[str](), list[str]()
    try:
        with machine.trace(known.source, known.command, known.options, known.arguments) as trace:
            shown = renderer(DEFAULT)(Destination(out.append, messages.append), trace.schema)
            for event in trace.events():
                shown.show(event)
            shown.close()
    except KinstError as error:
        messages.append(str(error))
    return "".join(out), "\n".join(messages)


def main() -> None:
    os.environ["PATH"] = ":".join([*sys.argv[2:], os.environ.get("PATH", "")])
    with kinst.live(debug=sys.argv[1]) as machine:
        for known in programs():
            print(json.dumps([known.name, *said(machine, known)]), flush=True)


if __name__ == "__main__":
    main()
