"""Histograms and heat maps: the drawn fields are the values, each at its bucket, and the axes have
the right labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kinst.cli import command
from kinst.errors import KinstError
from kinst.events import Aggregation, Bucket
from kinst.views.buckets import DistributionSnapshot, chosen, grid
from kinst.views.distributions import heat_map_svg, histogram_svg
from kinst.views.picture import Heading

SVG = "{http://www.w3.org/2000/svg}"
TICKS = """int n;
tick-5ms { @t["a<b"] = quantize(n); @t["c"] = quantize(1 << (n % 5)); @all = count(); n++; }
tick-5ms /n == 40/ { exit(6); }
"""


def buckets(*given: tuple[int | None, int | None, int]) -> tuple[Bucket, ...]:
    return tuple(Bucket(*one) for one in given)


def tips(svg: str) -> list[tuple[float, str]]:
    """Return (x, tooltip) of each field."""
    root = ElementTree.fromstring(svg.encode())
    return [
        (float((rect.get("x") or "0").rstrip("%")), rect[0].text or "")
        for rect in root.iter(f"{SVG}rect")
        if len(rect)
    ]


def test_empty_buckets_are_there() -> None:
    low = buckets((None, 0, 1), (10, 20, 1), (40, 50, 2), (100, None, 1))
    assert grid(low, "lquantize") == (
        (None, 0), (0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 60), (60, 70), (70, 80),
        (80, 90), (90, 100), (100, None),
    )  # fmt: skip
    assert grid(buckets((0, 1, 1), (8, 16, 1)), "quantize") == (
        (0, 1), (1, 2), (2, 4), (4, 8), (8, 16)
    )  # fmt: skip
    assert grid(buckets((-7, -3, 1), (2, 4, 1)), "quantize") == (
        (-7, -3), (-3, -1), (-1, 0), (0, 1), (1, 2), (2, 4)
    )  # fmt: skip
    assert grid(buckets((10, 20, 1), (500, 600, 1)), "llquantize") == (
        (10, 20), (20, 500), (500, 600)
    )  # fmt: skip
    assert grid(buckets((0, 1, 1), (10**6, 10**6 + 1, 1)), "lquantize") == (
        (0, 1), (1, 10**6), (10**6, 10**6 + 1)
    )  # fmt: skip


def ticks(svg: str, width: str = "wide") -> list[str]:
    """Return the labels of axes, in a picture of one width."""
    root = ElementTree.fromstring(svg.encode())
    hidden = {"wide": "narrow", "narrow": "wide"}[width]
    kinds = [(one, (one.get("class") or "").split()) for one in root.iter(f"{SVG}text")]
    return [one.text or "" for one, kind in kinds if "tick" in kind and hidden not in kind]


def test_which_one_is_drawn() -> None:
    have = [("a", "count"), ("q", "quantize"), ("l", "lquantize"), ("q", "quantize")]
    assert chosen(have, "@l") == "l" and chosen(have[:2], "") == "q"
    for given, by, message in (
        (have, "", "there are 2 distributions (choose one with --by: @q, @l)"),
        (have, "a", "there is no distribution @a (there is @q, @l)"),
        (have[:1], "", "nothing to draw: no distribution (quantize(), "),
    ):
        with pytest.raises(KinstError) as error:
            chosen(given, by)
        assert str(error.value).startswith(message)


def test_a_histogram_has_every_bucket() -> None:
    rows = {("x & y",): buckets((4, 8, 3), (16, 32, 1)), ("z",): buckets((4, 8, 100))}
    table = Aggregation("", "quantize", ("string",), rows, "n + 1", "", ("execname",))
    svg = histogram_svg(DistributionSnapshot(None, table), Heading("a < b", "BEGIN { @ = 1; }"))
    assert [tip for _, tip in tips(svg)] == [
        "4 to 7: 100 (100.0%)", "4 to 7: 3 (75.0%)", "16 to 31: 1 (25.0%)"
    ]  # fmt: skip
    left, first, second = (x for x, _ in tips(svg))
    assert left == first < second  # the panels have one scale
    text = "".join(ElementTree.fromstring(svg.encode()).itertext())
    assert "a < b" in text and "x & y  n = 4 · median 4 to 7" in text and "n = 104" in text
    assert "quantize(n + 1) by execname" in text and "BEGIN { @ = 1; }" in text
    assert ticks(svg)[:5] == ["0", "20", "40", "60", "80"]  # counts
    assert "4" in ticks(svg) and "16" in ticks(svg)


def test_a_long_key_leaves_room_for_the_figures() -> None:
    table = Aggregation("", "quantize", ("string",), {("k" * 200,): buckets((4, 8, 3))})
    svg = histogram_svg(DistributionSnapshot(None, table), Heading("t"))
    (heading,) = (
        one for one in ElementTree.fromstring(svg.encode()).iter(f"{SVG}text")
        if one.get("class") == "key"
    )  # fmt: skip
    whole, wide, narrow = ("".join(one.itertext()) for one in heading)
    assert whole == f"{'k' * 200}  n = 3 · median 4 to 7 · 99th percentile 4 to 7"
    assert wide == f"{'k' * 59}…  n = 3 · median 4 to 7 · 99th percentile 4 to 7"
    assert narrow == f"{'k' * 22}…  n = 3 · median 4 to 7"


@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_a_histogram_of_nanoseconds_has_times_on_its_axis(width: str) -> None:
    rows = {(): buckets(*((1 << k, 2 << k, k) for k in range(9, 30)))}
    table = Aggregation("", "quantize", (), rows, "timestamp - self->t", "ns")
    svg = histogram_svg(DistributionSnapshot(None, table), Heading(""))
    times = [one for one in ticks(svg, width) if one.endswith("s")]
    assert times == {
        "wide": ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"],
        "narrow": ["1 µs", "1 ms", "1 s"],
    }[width]  # fmt: skip
    root = ElementTree.fromstring(svg.encode())
    named = [one.text for one in root.iter(f"{SVG}text") if "axis-name" in (one.get("class") or "")]
    assert named == ["count", "timestamp - self->t"]
    assert "Mi" not in svg and "16.8 ms to 33.6 ms: 24" in svg


def test_a_heat_map_has_a_column_for_each_moment() -> None:
    def at(seconds: float, *given: tuple[int | None, int | None, int]) -> DistributionSnapshot:
        rows = {(): buckets(*given)} if given else {}
        return DistributionSnapshot(round(seconds * 1e9), Aggregation("t", "quantize", (), rows))

    shots = [at(10, (1, 2, 5)), at(11, (1, 2, 1), (4, 8, 2)), at(12), at(14, (1, 2, 9))]
    svg = heat_map_svg(shots, Heading("t"))
    found = tips(svg)
    assert [tip for _, tip in found] == [
        "0 to 1 s, 1: 5", "1 s to 2 s, 1: 1", "1 s to 2 s, 4 to 7: 2", "3 s to 5 s, 1: 9",
    ]  # fmt: skip
    x = [x for x, _ in found]
    assert x[1] == x[2] and (x[3] - x[0]) == pytest.approx(3 * (x[1] - x[0]), abs=0.1)


def drawn(svg: str, key: str) -> int:
    """Return how many values a panel's fields have."""
    panel = svg.rsplit(f">{key}</tspan>", 1)[1].split('class="key"')[0]
    return sum(int(count.replace(",", "")) for count in re.findall(r": ([\d,]+)</title>", panel))


def test_the_command_makes_a_heat_map(tmp_path: Path) -> None:
    """The exit status is the program's own, and every value is drawn, including those at the
    end."""
    made, kept = tmp_path / "a.svg", tmp_path / "a.json"
    words = ["plot", "-o", str(made), "--every", "50ms", "-q", "-n", TICKS]
    assert command.main(words) == 6
    svg = made.read_text()
    assert drawn(svg, "a&lt;b") == drawn(svg, "c") == 40
    assert len({x for x, _ in tips(svg)}) >= 3

    # The saved result of the same program makes the same sort of picture.
    added = ["-n", "tick-50ms { trace(timestamp); printa(@t); clear(@t); }",
             "-n", "dtrace:::END { trace(timestamp); printa(@t); }"]  # fmt: skip
    assert command.main(["--json", "-q", "-o", str(kept), "-n", TICKS, *added]) == 6
    times = [json.loads(line) for line in kept.read_text().splitlines()]
    assert sum(line["type"] == "aggregation" and line["name"] == "t" for line in times) >= 3
    assert command.main(["plot", "-o", str(made), str(kept)]) == 0
    assert drawn(made.read_text(), "c") == 40 and " ms to " in made.read_text()


@pytest.mark.parametrize("name", ["a.html", "A.HTML"])
def test_the_command_makes_a_histogram_in_a_page(name: str, tmp_path: Path) -> None:
    made = tmp_path / name
    assert command.main(["plot", "-o", str(made), "-q", "-n", TICKS, "--title", "T & T"]) == 6
    page = made.read_text()
    assert page.startswith("<!doctype html>") and "<title>T &amp; T</title>" in page
    assert "quantize(1 &lt;&lt; (n % 5))" in page and "<?xml" not in page
    assert "32 to 63: 8 (20.0%)" in page  # n from 0 to 39


def test_it_shows_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command.main(["plot", "-d", "--every", "1s", "-n", "BEGIN { @a[1] = quantize(1); }"]) == 0
    )
    assert capsys.readouterr().out == (
        "BEGIN { @a[1] = quantize(1); }\n"
        "tick-1s { trace(timestamp); printa(@a); clear(@a); }\n"
        "dtrace:::END { trace(timestamp); printa(@a); }\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "-o FILE is needed (FILE.svg, FILE.html, or - for standard output)"),
        (["-o", "a.svg"], "no probes specified (-n or -s names some, or kinst plot RESULT)"),
        (["-o", "a.svg", "--every", "soon", "-n", "BEGIN"],
         "--every soon: not an interval (100ms, 1s, 10hz)"),
        (["-o", "a.svg", "--every", "1s", "-n", "BEGIN { @ = count(); }"],
         "--every: the program has no distribution (--by NAME says which)"),
        (["-o", "a.svg", "--every", "1s", "a.json"],
         "--every needs a program to trace, not a result file (leave --every out)"),
    ],
)  # fmt: skip
def test_a_wrong_command_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["plot", *words]) == 2
    assert capsys.readouterr().err == f"kinst: {message}\nTry 'kinst --help'.\n"
