"""Coverage of a made-up function: lines, functions and branches computed by hand; files are read
back, drcov's by an independent reader."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kinst.core.probe import Function
from kinst.core.source import CodeLine, InlinedCode, SourceFunction, TracedSite
from kinst.errors import KinstError
from kinst.events import Aggregation
from kinst.views.coverage import BranchWay, Coverage, Total, counts_by_address, cover, total
from kinst.views.coverage_text import new_text, summary
from kinst.views.drcov import DrcovModule, drcov, pieces_that_ran
from kinst.views.flow import solve
from kinst.views.lcov import absent_source, lcov_text, read_lcov
from tests.views.made_code import BASE, LOOP, STEP

GENHTML = shutil.which("genhtml")

# Eight instructions of four bytes.  Line 10 of a.c, line 3 of b.h twice (two copies of an inline
# function, the second of which has a gap), line 11 and line 12 of a.c; the last has no line.
OWN = Function("vmlinux", "own", 0x100, 32)
LINES = (
    CodeLine(0x100, 0x104, "a.c", 10),
    CodeLine(0x104, 0x108, "b.h", 3),
    CodeLine(0x108, 0x10C, "a.c", 11),
    CodeLine(0x10C, 0x110, "b.h", 3),
    CodeLine(0x110, 0x114, "a.c", 12),
    CodeLine(0x114, 0x118, "b.h", 3),
    CodeLine(0x118, 0x11C, "a.c", 12),
)
COPIES = (
    InlinedCode("small", "b.h", 2, 0x104, ((0x104, 0x108),)),
    InlinedCode("small", "b.h", 2, 0x10C, ((0x10C, 0x110), (0x114, 0x118))),
)
FUNCTION = SourceFunction(OWN, "own", "a.c", 9, LINES, COPIES)


def sites(refused: dict[int, str] | None = None) -> list[TracedSite]:
    at = range(OWN.address, OWN.address + OWN.size, 4)
    return [TracedSite(OWN, one, 4, (refused or {}).get(one, "")) for one in at]


def covered(*numbers: int | None) -> Coverage:
    """Return coverage for counts of the eight instructions; None for one that could not be
    planted."""
    at = dict(zip(range(0x100, 0x120, 4), numbers, strict=True))
    refused = {one: "why" for one, number in at.items() if number is None}
    counts = {one: number for one, number in at.items() if number is not None}
    return cover([FUNCTION], sites(refused), counts)


def test_a_line_has_its_highest_count_in_each_body() -> None:
    found = covered(5, 5, 2, 2, 7, 3, 1, 0)
    assert found.files["a.c"].lines == {10: 5, 11: 2, 12: 7}
    assert found.files["b.h"].lines == {3: 5 + 3}
    assert found.files["a.c"].functions == {(9, "own"): 5}
    assert found.files["b.h"].functions == {(2, "small"): 5 + 2}
    assert found.files["a.c"].own and not found.files["b.h"].own
    assert (found.sites, found.seen, found.unknown) == (8, 7, 0)


def test_what_was_not_planted_is_not_in_the_denominator() -> None:
    """Line 11 is unknown; line 12 ran; line 3 did, too, in another body."""
    found = covered(5, 5, None, None, 7, None, None, 0)
    assert found.files["a.c"].lines == {10: 5, 12: 7}
    assert found.files["b.h"].lines == {3: 5}
    assert found.files["b.h"].functions == {(2, "small"): 5}
    assert (found.sites, found.unknown, found.reasons) == (4, 1, {"why": 4})


def test_a_line_of_which_only_a_part_was_planted_and_not_seen_is_not_known() -> None:
    found = covered(5, 0, 0, 0, 0, 0, None, 0)
    assert found.files["a.c"].lines == {10: 5, 11: 0}
    assert found.unknown == 1


def test_a_function_whose_entry_could_not_be_planted() -> None:
    assert covered(None, 4, 1, 0, 0, 0, 0, 0).files["a.c"].functions == {(9, "own"): 4}


def test_a_function_that_was_inside_when_it_began() -> None:
    found = covered(0, 0, 0, 0, 0, 0, 9, 9)
    assert found.files["a.c"].functions == {(9, "own"): 1}
    assert found.files["b.h"].functions == {(2, "small"): 0}


def test_a_moved_part_counts_for_the_function() -> None:
    cold = Function("vmlinux", "own.cold", 0x900, 4)
    part = SourceFunction(cold, "own", "a.c", 9, (CodeLine(0x900, 0x904, "a.c", 20),), ())
    there = [*sites(), TracedSite(cold, 0x900, 4)]
    counts = {site.address: 3 for site in there}
    found = cover([FUNCTION, part], there, {**counts, 0x900: 0})
    assert found.files["a.c"].functions == {(9, "own"): 3}
    assert found.files["a.c"].lines[20] == 0


def test_functions_without_lines_are_named() -> None:
    found = cover([SourceFunction(OWN, "own", "", 0, (), ())], sites(), {0x100: 1})
    assert (found.files, found.sourceless) == ({}, ("own",))
    assert "no source lines are known of own\n" in summary(found)


def test_counts_are_found_by_module_function_and_offset() -> None:
    rows = {("vmlinux", "own", "8"): 3, ("vmlinux", "other", "4"): 9}
    table = Aggregation("", "count", ("string",) * 3, rows)
    counts = counts_by_address(sites({0x104: "why"}), table)
    assert counts == {0x100: 0, 0x108: 3, **dict.fromkeys(range(0x10C, 0x120, 4), 0)}
    assert set(counts_by_address(sites(), None).values()) == {0}


def loop(times: int, inner: int) -> Coverage:
    """Return coverage of the loop, entered once."""
    runs = [1, times + 1, times, inner, times, 1] if times >= 0 else [0] * 6
    counts = {i.address: runs[k] for k, b in enumerate(LOOP.blocks) for i in b.instructions}
    starts = [BASE + STEP * k for k in range(6)]
    lines = tuple(CodeLine(at, at + STEP, "l.c", k) for k, at in enumerate(starts, 1))
    function = SourceFunction(LOOP.function, "made", "l.c", 1, lines, ())
    there = [TracedSite(LOOP.function, at, 4) for at in counts]
    return cover([function], there, counts, [(LOOP, solve(LOOP, counts, {}))])


def test_branches() -> None:
    assert loop(5, 2).files["l.c"].branches == [
        BranchWay(2, 0, 0, 1), BranchWay(2, 0, 1, 5), BranchWay(3, 0, 0, 3), BranchWay(3, 0, 1, 2),
    ]  # fmt: skip
    assert loop(0, 0).files["l.c"].branches == [
        BranchWay(2, 0, 0, 1), BranchWay(2, 0, 1, 0),
        BranchWay(3, 0, 0, None), BranchWay(3, 0, 1, None),
    ]  # fmt: skip


def test_lcov() -> None:
    found = loop(5, 5)
    assert lcov_text(found, "/src").splitlines() == [
        "TN:", "SF:/src/l.c", "FN:1,made", "FNDA:1,made", "FNF:1", "FNH:1",
        "BRDA:2,0,0,1", "BRDA:2,0,1,5", "BRDA:3,0,0,0", "BRDA:3,0,1,5", "BRF:4", "BRH:3",
        "DA:1,1", "DA:2,6", "DA:3,5", "DA:4,5", "DA:5,5", "DA:6,1", "LF:6", "LH:6",
        "end_of_record",
    ]  # fmt: skip


def test_source_that_genhtml_does_not_find(tmp_path: Path) -> None:
    """genhtml stops exactly if there is a message, but not with the option that it names."""
    info, found = tmp_path / "l.info", loop(5, 5)
    for folder, there in (("", False), (str(tmp_path), False), (str(tmp_path), True)):
        if there:
            (tmp_path / "l.c").write_text("int made;\n" * 6)
        said = absent_source(found, folder, "l.info")
        assert bool(said) != there
        assert ("--source DIR" in said) == (not folder)
        info.write_text(lcov_text(found, folder))
        for options in ((), ("--ignore-errors", "source")):
            if GENHTML:
                made = subprocess.run(
                    [GENHTML, *options, info, "-o", tmp_path / "html"],
                    cwd=tmp_path, capture_output=True,
                )  # fmt: skip
                assert (made.returncode == 0) == (there or bool(options)), made


@pytest.mark.full
@pytest.mark.parametrize("found", [loop(5, 2), loop(5, 5), covered(5, 0, 2, 2, 7, 3, 1, 0)])
def test_genhtml_counts_as_the_summary_does(found: Coverage, tmp_path: Path) -> None:
    (tmp_path / "l.info").write_text(lcov_text(found))
    made = subprocess.run(
        ["genhtml", "--branch-coverage", "--ignore-errors", "source", "l.info", "-o", "html"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = summary(found).splitlines()
    (total,) = [line for line in said if line.startswith("(all)")] or said[1:2]
    ours = re.findall(r"([0-9]+) of ([0-9]+)", total)
    theirs = re.findall(r"^  \w+\.*: .*\(([0-9]+) of ([0-9]+)", made.stdout, re.M)
    assert len(ours) >= 2 and ours == theirs[: len(ours)]  # lines, functions, branches


@pytest.mark.parametrize("found", [loop(5, 2), loop(-1, 0), covered(5, 0, 2, 2, 7, 3, 1, 0)])
def test_lcov_is_read_back(found: Coverage) -> None:
    again = read_lcov(lcov_text(found).splitlines(), "x")
    assert {path: (f.lines, f.functions, f.branches) for path, f in again.items()} == {
        path: (f.lines, f.functions, f.branches) for path, f in found.files.items()
    }


@pytest.mark.parametrize("text", ["", "DA:1,1", "SF:a\nDA:x,1", "SF:a\nFNDA:1,f", "SF:a\nBRDA:1"])
def test_what_is_no_lcov(text: str) -> None:
    with pytest.raises(KinstError, match=r"^x.*LCOV"):
        read_lcov(text.splitlines(), "x")


def test_lcov_2_says_where_functions_end() -> None:
    read = read_lcov(["SF:a", "FN:3,9,f", "FNDA:2,f", "end_of_record"], "x")
    assert read["a"].functions == {(3, "f"): 2}


def test_summary() -> None:
    assert summary(covered(5, 5, None, 2, 0, 0, 0, 0)).splitlines() == [
        "                              LINES          FUNCTIONS",
        "a.c                          1 of 2   50.0%     1 of 1  100.0%",
        "(inlined from 1 other file)  1 of 1  100.0%     1 of 1  100.0%",
        "(all)                        2 of 3   66.7%     2 of 2  100.0%",
        "7 instructions counted, 3 of them ran",
        "1 instruction could not be planted and is left out, and so is 1 line:",
        "  1  why",
    ]
    assert "BRANCHES" in summary(loop(1, 1))
    assert total([]).share == "-" and total([0, None, 2]) == Total(1, 3)


def test_what_one_run_has_and_another_has_not() -> None:
    before, now = covered(5, 0, 0, 0, 0, 0, 0, 0), covered(5, 5, 5, 5, 5, 5, 5, 0)
    assert new_text(now.files, before.files, "old").splitlines() == [
        "reached now, and not in old:",
        "a.c: lines 11-12",
        "b.h: functions small; lines 3",
    ]
    assert new_text(before.files, now.files, "old") == "nothing was reached that is not in old\n"


def test_drcov_is_what_its_format_says() -> None:
    """Read by the format's description, independently of kinst."""
    counts = {0x100: 1, 0x104: 1, 0x108: 0, 0x10C: 2, 0x110: 3}
    ran = pieces_that_ran(sites(), counts)
    assert ran == {"vmlinux": [(0x100, 0x108), (0x10C, 0x110), (0x110, 0x114)]}
    long = [(0x20, 0x20 + 0x10005)]
    data = drcov([(DrcovModule(0x80, 0x1000, "a"), ran["vmlinux"]), (DrcovModule(0, 9, "b"), long)])
    head, _, rest = data.partition(b" bbs\n")
    lines = head.decode().splitlines()
    assert lines[0] == "DRCOV VERSION: 2" and lines[1].startswith("DRCOV FLAVOR: ")
    assert lines[2] == "Module Table: version 2, count 2"
    columns = [name.strip() for name in lines[3].removeprefix("Columns: ").split(",")]
    rows = [dict(zip(columns, map(str.strip, r.split(",")), strict=True)) for r in lines[4:6]]
    shown = [(row["id"], int(row["base"], 16), row["path"]) for row in rows]
    assert shown == [("0", 0x80, "a"), ("1", 0, "b")]
    count = int(re.fullmatch(r"BB Table: (\d+)", lines[6])[1])  # type: ignore[index]
    pieces = [struct.unpack_from("<IHH", rest, 8 * k) for k in range(count)]
    assert len(rest) == 8 * count
    assert pieces == [(0x80, 8, 0), (0x8C, 4, 0), (0x90, 4, 0), (0x20, 0xFFFF, 1),
                      (0x1001F, 6, 1)]  # fmt: skip
