"""The page for a browser: complete, safe for any source text, and linked up."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from kinst.views.annotated_html import annotated_html
from tests.views.made_code import BASE, annotated


def data_of(page: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


class Checker(HTMLParser):
    """Checks that elements that need an end have one, and that nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in ("meta", "input", "path", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect"):
            assert self.open.pop() == tag


def test_one_page_that_needs_nothing_else() -> None:
    page = annotated_html([annotated("x"), annotated()], "ls </title> & more")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert "<title>kinst annotate: ls &lt;/title&gt; &amp; more</title>" in page
    assert "{{" not in page.partition("<script>")[0] and "url(http" not in page


def test_a_page_without_source_says_why() -> None:
    why = "no source text is shown: --source <DIR>"
    page = annotated_html([annotated()], "x", why)
    assert '<p id="notice">no source text is shown: --source &lt;DIR&gt;</p>' in page
    assert 'id="notice"' not in annotated_html([annotated()], "x")


def test_instructions_and_lines_refer_to_each_other() -> None:
    (one,) = data_of(annotated_html([annotated()], "x"))
    source = {row["id"]: row for row in one["source"]}
    assert len(source) == len(one["source"])
    by_text = {row["text"]: row for row in one["code"]}
    assert source[by_text["test edi, edi"]["line"]]["text"] == "return a != 0;"
    assert source[by_text["test edi, edi"]["line"]]["depth"] == 1
    assert by_text["je +32"]["taken"] == "70.0% of 10"
    assert one["code"][by_text["je +32"]["target"]]["text"] == "dec edi"
    assert by_text["call helper"]["reason"] == "its bytes change at run time"
    assert one["entered"] == 10 and one["ran"] == 99
    # Lines without code are shown, in the function's own file.
    texts = [row.get("text", "").strip() for row in one["source"]]
    assert texts[:3] == ["{", "/* <why> */", "if (check(a))"] and "again:" in texts
    nested = [row["inlined"] for row in one["source"] if "inlined" in row]
    assert nested == ["check"]


def test_columns_and_colours_are_explained_and_both_themes_are_there() -> None:
    page = annotated_html([annotated("x")], "ls -l")
    assert '<b id="title">ls -l</b>' in page and 'id="legend"' in page
    assert "prefers-color-scheme: dark" in page and "max-width: 900px" in page
    (one,) = data_of(page)
    assert one["most"] == 28  # the count of the strongest colour


def test_times_have_their_unit() -> None:
    one = annotated("latency")
    made = type(one)(
        one.code, one.flow, {}, {}, "latency", "ns", {BASE: 1_234_567}, {(0, 2): 77_000}
    )
    page = annotated_html([made], "x")
    (data,) = data_of(page)
    assert (data["measure"], data["code"][0]["measure"]) == ("latency", "1.23 ms")
    assert ", 77 µs</text>" in page


def test_source_that_would_end_the_script() -> None:
    one = annotated()
    lines = ["</script><script>alert(1)</script>"] * 20
    page = annotated_html([type(one)(one.code, one.flow, {}, {"fs/made.c": lines})], "x")
    assert "</script><script>alert" not in page
    assert any(row.get("text") == lines[0] for row in data_of(page)[0]["source"])
