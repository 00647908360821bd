"""The page of coverage: complete, with the data's counts, and safe for any source text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from kinst.views.coverage import BranchWay, Coverage, FileCoverage
from kinst.views.coverage_html import coverage_html

READ = FileCoverage(
    {3: 5, 4: 5, 5: 0, 9: 2},
    {(2, "reads"): 5, (8, "<never>"): 0},
    [
        BranchWay(4, 0, 0, 5),
        BranchWay(4, 0, 1, 0),
        BranchWay(9, 0, 0, None),
        BranchWay(9, 0, 1, None),
    ],
    own=True,
)
HEADER = FileCoverage({40: 7, 90: 0}, {(39, "small"): 7})
COVERAGE = Coverage({"include/small.h": HEADER, "fs/read.c": READ})
SOURCE = {
    "fs/read.c": [f"line {number}" for number in range(1, 12)],
    "include/small.h": ["</script><script>alert(1)</script>"] * 100,
}


class Page(HTMLParser):
    """The ends of its elements, and the rows of its table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in ("meta", "input", "wbr"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data


def made(source: dict[str, list[str]]) -> str:
    return coverage_html(COVERAGE, source, "ls </title> & more", ["Linux 6.1"])


def files_of(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return list(json.loads(found[1])["files"])


def test_the_files_that_were_asked_for_come_first() -> None:
    page = made(SOURCE)
    parsed = Page(page)
    assert parsed.open == []
    assert "<title>kinst cover: ls &lt;/title&gt; &amp; more</title>" in page
    assert "prefers-color-scheme: dark" in page and "url(" not in page
    assert parsed.rows == [
        ["file", "lines", "functions", "branches"],
        ["fs/read.c", "", "75.0%", "50.0%", "25.0%"],
        ["inlined from"],
        ["include/small.h", "", "50.0%", "100.0%", "-"],
    ]
    assert "4 of 6 lines (66.7%) · 2 of 3 functions (66.7%) · 1 of 4 branches (25.0%)" in page
    assert "Linux 6.1" in page


def test_lines_have_their_counts_branches_and_functions() -> None:
    read, header = files_of(made(SOURCE))
    assert read["path"] == "fs/read.c" and read["lines"] == {"3": 5, "4": 5, "5": 0, "9": 2}
    assert read["branches"] == {"4": [1, 2], "9": [0, 2]}
    assert read["functions"] == [[2, "reads", 5], [8, "<never>", 0]]
    assert read["source"] == [[1, SOURCE["fs/read.c"]]] and "note" not in read
    # Of a header only lines near code.
    assert [(first, len(texts)) for first, texts in header["source"]] == [(36, 8), (87, 7)]
    assert "</script><script>alert" not in made(SOURCE)


def test_without_source_the_page_says_so_and_has_what_is_known() -> None:
    read, header = files_of(made({}))
    assert read["path"] == "fs/read.c" and header["path"] == "include/small.h"
    assert "source text is not here" in read["note"] and "source text is not here" in header["note"]
    assert read["source"] == [[2, ["", "", "", ""]], [8, ["", ""]]]
