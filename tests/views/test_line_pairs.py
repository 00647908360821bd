"""Lines of two versions of a file, paired as diff(1) pairs them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from kinst.events import Aggregation, Frame, Stack
from kinst.views.differences import compare, comparison_text
from kinst.views.line_pairs import files_in, paired

OLD = ["int f(int n)", "{", "\tif (n)", "\t\treturn 1;", "\treturn g(n);", "}"]
NEW = ["int f(int n)", "{", "\tif (n > 9)", "\t\tn = 9;", "\tif (n)", "\t\treturn 1;",
       "\treturn h(n);", "}"]  # fmt: skip


def names(a: list[str], b: list[str]) -> tuple[list[str], list[str]]:
    sides = paired({"f.c": a}, {"f.c": b})
    return tuple(
        [side.name("f.c", k).removeprefix("f.c:") for k in range(1, len(text) + 1)]
        for side, text in zip(sides, (a, b), strict=True)
    )  # type: ignore[return-value]


def test_a_line_is_named_by_where_it_is_in_a() -> None:
    assert names(OLD, NEW) == (
        ["1", "2", "3", "4", "-5", "6"],
        ["1", "2", "+3", "+4", "3", "4", "+7", "6"],
    )


def test_a_file_without_text_is_compared_by_number() -> None:
    a, b = paired({"f.c": OLD}, {})
    assert a.name("f.c", 5) == b.name("f.c", 5) == "f.c:5"
    assert a.source("f.c", 5) == b.source("f.c", 5) == ""
    a, b = paired({"f.c": OLD}, {"f.c": NEW})
    assert (a.source("f.c", 5), b.source("f.c", 3)) == ("return g(n);", "if (n > 9)")
    assert a.source("f.c", 99) == ""


def test_files_are_called_what_people_call_them() -> None:
    paths = {"/build/linux/f.c": "f.c"}
    a, b = paired({"/build/linux/f.c": OLD}, {"/build/linux/f.c": NEW}, paths)
    assert a.name("/build/linux/f.c", 5) == "f.c:-5" and b.name("/other.c", 5) == "/other.c:5"


def test_no_file_has_more_in_common_than_diff_says(tmp_path: Path) -> None:
    """Paired lines have the same text, in order; and in most files there are as many as diff(1)
    has."""
    rng = random.Random(14)
    for _ in range(40):
        a = [rng.choice("abcdefgh") * 3 for _ in range(rng.randrange(30))]
        b = [line for line in a if rng.random() < 0.8]
        for _ in range(rng.randrange(6)):
            b.insert(rng.randrange(len(b) + 1), rng.choice("xyz"))
        ours, theirs = names(a, b)
        common = [name for name in ours if name[0] != "-"]
        assert common == [name for name in theirs if name[0] != "+"]
        assert [a[int(name) - 1] for name in common] == [
            text for text, name in zip(b, theirs, strict=True) if name[0] != "+"
        ]
        for name, lines in (("a", a), ("b", b)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        most = subprocess.run(
            ["diff", "--minimal", "--old-line-format=", "--new-line-format=", "a", "b"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        ).stdout.count("\n")  # fmt: skip
        assert most - 2 <= len(common) <= most


def place(line: int) -> tuple[Stack]:
    inner = Frame(0x1004, "vmlinux", "g", 0, "g.h", 7, inlined=True)
    return (Stack("kernel", (inner, Frame(0x1004, "vmlinux", "f", 4, "f.c", line))),)


def test_only_what_was_planted_differs() -> None:
    """One branch more, before lines that ran as often as in the other version."""
    a = Aggregation("", "count", ("stack",), {place(3): 9, place(4): 2})
    b = Aggregation("", "count", ("stack",), {place(3): 9, place(5): 9, place(6): 2})
    assert files_in([a, b]) == ["g.h", "f.c"]
    lines = paired({"f.c": OLD, "g.h": [""] * 6 + ["x++;"]}, {"f.c": NEW})
    (found,) = compare([a], [b], "line", lines=lines)
    assert [one.key for one in found.differences] == [("g.h:7 < f.c:+3",)]
    same = {"g.h": [""] * 6 + ["x++;"]}
    lines = paired({"f.c": OLD} | same, {"f.c": NEW} | same)
    text = comparison_text(compare([a], [b], "line", lines=lines))
    assert text.splitlines()[1:] == [
        "-  9  only B  g.h:7 < f.c:+3  x++;", "2 keys have the same value",
    ]  # fmt: skip
