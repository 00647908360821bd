"""Writer and reader of LCOV's coverage format (tracefiles), which genhtml, lcov, editors and CI
services use.

A tracefile has a section for each source file, from SF: to end_of_record, with its functions (FN,
FNDA), branches (BRDA) and lines (DA). Source: geninfo(1), "Files".

Tested by tests/views/test_coverage.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from kinst.core.errors import KinstError
from kinst.core.units import counted
from kinst.views.coverage import BranchWay, Coverage, FileCoverage, total


def lcov_text(coverage: Coverage, source: str = "") -> str:
    """Return a coverage as the text of an LCOV tracefile.

    Args:
        coverage: the coverage of a trace.
        source: folder to put before relative source paths; "" leaves the paths as they are.
    """
    return "".join(
        line + "\n"
        for path, file in coverage.files.items()
        for line in _section(str(PurePosixPath(source) / path), file)
    )


def _section(path: str, file: FileCoverage) -> Iterator[str]:
    yield "TN:"
    yield f"SF:{path}"
    functions = sorted(file.functions.items())
    for (line, name), _ in functions:
        yield f"FN:{line},{name}"
    for (_, name), count in functions:
        yield f"FNDA:{count},{name}"
    yield from _found("FN", file.functions.values())
    for one in sorted(file.branches, key=lambda b: (b.line, b.block, b.way)):
        taken = "-" if one.taken is None else one.taken
        yield f"BRDA:{one.line},{one.block},{one.way},{taken}"
    if file.branches:
        yield from _found("BR", (one.taken for one in file.branches))
    for line, count in sorted(file.lines.items()):
        yield f"DA:{line},{count}"
    yield from _found("L", file.lines.values())
    yield "end_of_record"


def _found(letter: str, counts: Iterable[int | None]) -> Iterator[str]:
    found = total(counts)
    yield f"{letter}F:{found.all}"
    yield f"{letter}H:{found.seen}"


def absent_source(coverage: Coverage, source: str, name: str) -> str:
    """Return a message about source files that genhtml will not find; "" if all of them exist.

    Args:
        coverage: the coverage of a trace.
        source: folder to put before relative source paths; "" leaves the paths as they are.
        name: name of the tracefile.
    """
    absent = [path for path in coverage.files if not Path(source, path).exists()]
    if not absent:
        return ""
    first, others = PurePosixPath(source) / absent[0], len(absent) - 1
    more = f" and {counted(others, 'other source file')}" if others else ""
    verb, them = ("are", "them") if others else ("is", "it")
    needs = "" if source else "run it in the kernel's source, or give --source DIR; "
    return (
        f"{name}: {first}{more} {verb} not here, and genhtml stops without {them}: {needs}"
        f"genhtml --ignore-errors source leaves {them} out, and --html FILE needs no source"
    )


def read_lcov(lines: Iterable[str], name: str) -> dict[str, FileCoverage]:
    """Return the coverage of each file in an LCOV tracefile, by path. If a file has several
    sections, their counts are added up.

    Args:
        lines: text of the tracefile.
        name: name of the tracefile, for error messages.

    Raises:
        KinstError: the text is not in LCOV's format.
    """
    files: dict[str, FileCoverage] = {}
    file: FileCoverage | None = None
    declared: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        word, _, rest = line.rstrip("\n").partition(":")
        try:
            if word == "SF":
                file, declared = files.setdefault(rest, FileCoverage()), {}
            elif word == "end_of_record":
                file = None
            elif word in ("FN", "FNDA", "BRDA", "DA"):
                if file is None:
                    raise ValueError
                _read(word, rest.split(","), file, declared)
        except (ValueError, LookupError):
            raise KinstError(
                f"{name}:{number}: not a line of LCOV's format", "kinst cover -o FILE makes one"
            ) from None
    if not files:
        raise KinstError(f"{name}: no coverage in LCOV's format", "kinst cover -o FILE makes one")
    return files


def _read(word: str, parts: list[str], file: FileCoverage, declared: dict[str, int]) -> None:
    if word == "DA":
        line = int(parts[0])
        file.lines[line] = file.lines.get(line, 0) + int(parts[1])
    elif word == "FN":
        declared[parts[-1]] = int(parts[0])  # since LCOV 2 an end line comes between
        file.functions.setdefault((int(parts[0]), parts[-1]), 0)
    elif word == "FNDA":
        file.functions[declared[parts[1]], parts[1]] += int(parts[0])
    else:
        line, block, way = map(int, parts[:3])
        taken = None if parts[3] == "-" else int(parts[3])
        file.branches.append(BranchWay(line, block, way, taken))
