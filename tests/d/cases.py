"""Reader of the conformance suite's files of cases (README.md in this folder has the format)."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass
class Case:
    """One program and the expected outcome.

    Attributes:
        args: options without the program.
        script: arguments of a script; None for -n.
        out, err: expected text; None if the section is missing.
        files: name and text of each file to create.
    """

    chapter: str
    title: str
    line: int
    program: str = ""
    args: list[str] = field(default_factory=lambda: ["-q"])
    script: list[str] | None = None
    input: str = ""
    files: dict[str, str] = field(default_factory=dict)
    out: str | None = None
    err: list[str] | None = None
    no_err: bool = False
    status: int | None = None

    @property
    def expected_status(self) -> int:
        if self.status is not None:
            return self.status
        return 1 if self.err is not None and self.out is None else 0

    @property
    def command(self) -> list[str]:
        """Return the command's arguments; a script is in prog.d."""
        if self.script is not None:
            return [*self.args, "-s", "prog.d", *self.script]
        return [*self.args, "-n", self.program]


def read(path: Path) -> list[Case]:
    """Return the cases of a file.  Raises ValueError for a malformed case."""
    cases: list[Case] = []
    section, body = "", list[str]()

    def end() -> None:
        if cases:
            _fill(cases[-1], section, "\n".join(body))

    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("== "):
            end()
            cases.append(Case(path.stem, line[3:].strip(), number))
            section, body = "program", []
        elif line.startswith("-- ") and cases:
            end()
            section, body = line[3:].strip(), []
        elif cases:
            body.append(line)
        elif line and not line.startswith("#"):
            raise ValueError(f"{path}:{number}: text before the first case")
    end()
    titles = [case.title for case in cases]
    twice = {t for t in titles if titles.count(t) > 1}
    if twice:
        raise ValueError(f"{path}: titles used twice: {sorted(twice)}")
    return cases


def _fill(case: Case, section: str, text: str) -> None:
    word, _, rest = section.partition(" ")
    if section == "program":
        case.program = text.strip("\n")
    elif word == "args":
        case.args = shlex.split(rest)
    elif word == "script":
        case.script = shlex.split(rest)
    elif word == "input":
        case.input = text + "\n"
    elif word == "file":
        case.files[rest] = text + "\n"
    elif section == "out":
        case.out = tidy(text)
    elif section == "err":
        case.err = [line for line in text.splitlines() if line.strip()]
        if not case.err:
            raise ValueError(f"{case.chapter}: {case.title}: an empty -- err says nothing")
    elif section == "no err":
        case.no_err = True
    elif word == "status":
        case.status = int(rest)
    else:
        raise ValueError(f"{case.chapter}: {case.title}: unknown section {section!r}")


def tidy(text: str) -> str:
    """Return text without trailing blanks of lines and without trailing blank lines."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")


def all_cases() -> list[Case]:
    return [case for path in sorted(HERE.glob("*.cases")) for case in read(path)]
