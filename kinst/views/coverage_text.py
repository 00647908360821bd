"""Coverage as text: a summary, and a comparison that lists the code that one run reached and
another run did not.

Tested by tests/views/test_coverage.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kinst.core.units import counted
from kinst.views.coverage import Coverage, FileCoverage, Total, total

MOST_REASONS = 8


def summary(coverage: Coverage) -> str:
    """Return a table of lines, functions and branches reached, followed by the number of
    instructions that were left out, with the reasons.

    The table has a row for each file that declares functions that were traced, a row for the
    code inlined from other files, and a total.
    """
    rows: list[tuple[str, ...]] = [("", "LINES", "", "FUNCTIONS", "", "BRANCHES", "")]
    own = {path: file for path, file in coverage.files.items() if file.own}
    rows += [_row(path, [file]) for path, file in own.items()]
    others = [file for file in coverage.files.values() if not file.own]
    if others:
        rows.append(_row(f"(inlined from {counted(len(others), 'other file')})", others))
    if len(coverage.files) > 1:
        rows.append(_row("(all)", coverage.files.values()))
    if not any(file.branches for file in coverage.files.values()):
        rows = [row[:5] for row in rows]
    return "".join(f"{line}\n" for line in (*_table(rows), *_left_out(coverage)))


def _row(name: str, files: Iterable[FileCoverage]) -> tuple[str, ...]:
    files = list(files)
    lines = total(count for file in files for count in file.lines.values())
    functions = total(count for file in files for count in file.functions.values())
    branches = total(one.taken for file in files for one in file.branches)
    return (name, *_parts(lines), *_parts(functions), *_parts(branches))


def _parts(found: Total) -> tuple[str, str]:
    return f"{found.seen} of {found.all}", found.share


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield f"{first.ljust(widths[0])}  {'  '.join(cells)}".rstrip()


def _left_out(coverage: Coverage) -> Iterator[str]:
    yield f"{counted(coverage.sites, 'instruction')} counted, {coverage.seen} of them ran"
    reasons = sorted(coverage.reasons.items(), key=lambda row: -row[1])
    if reasons:
        count = sum(count for _, count in reasons)
        lines = f", and so {'is' if coverage.unknown == 1 else 'are'}"
        lines += f" {counted(coverage.unknown, 'line')}" if coverage.unknown else ""
        yield (
            f"{counted(count, 'instruction')} could not be planted and"
            f" {'is' if count == 1 else 'are'} left out{lines if coverage.unknown else ''}:"
        )
        width = len(str(reasons[0][1]))
        for reason, count in reasons[:MOST_REASONS]:
            yield f"  {count:>{width}}  {reason}"
        if len(reasons) > MOST_REASONS:
            yield f"  and {counted(len(reasons) - MOST_REASONS, 'other reason')}"
    if coverage.sourceless:
        names = ", ".join(coverage.sourceless[:3])
        more = ", ..." if len(coverage.sourceless) > 3 else ""
        yield f"no source lines are known of {names}{more}"


def new_text(now: Mapping[str, FileCoverage], before: Mapping[str, FileCoverage], name: str) -> str:
    """Return the functions and lines that one run reached and an earlier run did not, as a text
    with a line for each file.

    Args:
        now: coverage of this run, by file.
        before: coverage of the earlier run, by file.
        name: file of the earlier run's coverage, for the text.
    """
    lines = [f"reached now, and not in {name}:"]
    for path, file in now.items():
        old = before.get(path, FileCoverage())
        functions = [
            key[1] for key, n in file.functions.items() if n and not old.functions.get(key)
        ]
        reached = [line for line, n in file.lines.items() if n and not old.lines.get(line)]
        if functions or reached:
            names = f"functions {', '.join(sorted(set(functions)))}" if functions else ""
            numbers = f"lines {_ranges(reached)}" if reached else ""
            lines.append(f"{path}: {'; '.join(filter(None, (names, numbers)))}")
    if not lines[1:]:
        return f"nothing was reached that is not in {name}\n"
    return "".join(f"{line}\n" for line in lines)


def _ranges(numbers: Iterable[int]) -> str:
    """Return line numbers as text such as "3-5, 9"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
