"""Histograms of distributions, and heat maps of how they change, as an SVG that needs nothing
else.

A panel for each key, those with most values first.  In a histogram a bar is a bucket; in a heat map
a column is a stretch of time, a row a bucket, and the darker a field, the more values.  What the
mouse is over tells its figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from kinst.events import Bucket, Key
from kinst.views.buckets import (
    Bounds,
    Snapshot,
    bounds_text,
    distribution,
    grid,
    key_text,
    number_text,
    range_text,
)

WIDTH = 960
LEFT, RIGHT, TOP = 84, 24, 56
HEAD, FOOT = 26, 34  # of a panel
BARS = 150  # pixels of the highest bar
ROW = 14  # pixels of a heat map's bucket
MOST_PANELS = 12
_LABEL = 46  # pixels that a label below the axis needs
# From light to dark; as dark as the logarithm of the count.
_RAMP = ((255, 244, 214), (253, 187, 99), (228, 87, 46), (127, 20, 60), (45, 6, 58))
_SHADES = 5  # in the legend


def histogram_svg(snapshot: Snapshot, title: str) -> str:
    """The distribution of each key."""
    table = snapshot.table
    rows = {key: distribution(value) for key, value in table.rows.items()}
    bounds = grid([one for row in rows.values() for one in row], table.function)
    panels, height = [], TOP
    for key in _largest(rows):
        panels.append(_bars(key, rows[key], bounds, table.function, height))
        height += HEAD + BARS + FOOT
    return _page(title, _note(rows), panels, height)


def heat_map_svg(snapshots: Sequence[Snapshot], title: str) -> str:
    """One distribution at several moments, each with what came since the one before."""
    function = snapshots[0].table.function
    columns = [
        {key: distribution(value) for key, value in one.table.rows.items()} for one in snapshots
    ]
    whole: dict[Key, tuple[Bucket, ...]] = {}
    for column in columns:
        for key, row in column.items():
            whole[key] = (*whole.get(key, ()), *row)
    edges, moments = _edges(snapshots)
    most = max((one.count for row in whole.values() for one in row), default=1)
    panels, height = [], TOP + 24
    for key in _largest(whole):
        rows = [column.get(key, ()) for column in columns]
        bounds = grid(whole[key], function)
        panels.append(_fields(key, rows, bounds, function, height, edges, moments, most))
        height += HEAD + ROW * max(len(bounds), 1) + FOOT
    return _page(title, _note(whole), [_legend(most), *panels], height)


def html_page(svg: str, title: str, program: str) -> str:
    """A page with the picture and the program that has made it."""
    drawn = svg.partition("?>\n")[2]
    return _HTML.format(title=escape(title), svg=drawn, program=escape(program.strip()))


def _largest(rows: dict[Key, tuple[Bucket, ...]]) -> list[Key]:
    """The keys that get a panel."""
    return sorted(rows, key=lambda key: -_total(rows[key]))[:MOST_PANELS]


def _total(row: Sequence[Bucket]) -> int:
    return sum(one.count for one in row)


def _note(rows: dict[Key, tuple[Bucket, ...]]) -> str:
    values = f"{sum(map(_total, rows.values())):,} values"
    more = len(rows) - MOST_PANELS
    return f"{values}; {more} keys with fewer are not shown" if more > 0 else values


def _bars(
    key: Key, row: Sequence[Bucket], bounds: Sequence[Bounds], function: str, top: int
) -> str:
    counts = {(one.low, one.high): one.count for one in row}
    highest, whole = max(counts.values(), default=1), max(_total(row), 1)
    step = (WIDTH - LEFT - RIGHT) / max(len(bounds), 1)
    floor = top + HEAD + BARS
    made = [_heading(key, row, top), _axis(floor)]
    for y, value in ((0, 0), (BARS / 2, highest / 2), (BARS, highest)):
        text = number_text(round(value), "") if value == round(value) else ""
        made.append(_text(LEFT - 6, floor - y + 4, text, "end"))
        made.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                    f'y1="{floor - y:.1f}" y2="{floor - y:.1f}"/>')  # fmt: skip
    for k, one in enumerate(bounds):
        count = counts.get(one, 0)
        x = LEFT + k * step
        if count:
            size = max(BARS * count / highest, 1)
            tip = f"{range_text(one)}: {count:,} ({100 * count / whole:.1f}%)"
            made.append(
                f'<rect class="bar" x="{x + 0.5:.1f}" y="{floor - size:.1f}" '
                f'width="{max(step - 1, 0.5):.1f}" height="{size:.1f}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    made += _labels(bounds, function, step, floor)
    return "\n".join(made)


def _labels(bounds: Sequence[Bounds], function: str, step: float, floor: float) -> Iterator[str]:
    """Below a histogram's bars, each where its bucket begins; as many as there is room for."""
    every = max(1, math.ceil(_LABEL / step)) if bounds else 1
    for k in range(0, len(bounds), every):
        yield _text(LEFT + k * step, floor + 16, bounds_text(bounds[k], function), "middle")
    last = bounds[-1][1] if bounds else None
    if last is not None and (len(bounds) % every == 0 or every == 1):
        yield _text(WIDTH - RIGHT, floor + 16, number_text(last, function), "middle")


def _edges(snapshots: Sequence[Snapshot]) -> tuple[list[float], list[str]]:
    """(where columns begin and end, 0 to 1; labels of those places: seconds, or numbers)."""
    times = [one.time_ns for one in snapshots if one.time_ns is not None]
    count = len(snapshots)
    if len(times) == count > 1 and times == sorted(set(times)):
        # What the first snapshot has came in as long a time as what the second one has.
        start = times[0] - (times[1] - times[0])
        span = times[-1] - start
        edges = [0.0, *((time - start) / span for time in times)]
        return edges, [f"{edge * span / 1e9:.3g} s" for edge in edges]
    return [k / count for k in range(count + 1)], [str(k) for k in range(count + 1)]


def _fields(
    key: Key, columns: Sequence[Sequence[Bucket]], bounds: Sequence[Bounds], function: str,
    top: int, edges: Sequence[float], moments: Sequence[str], most: int,
) -> str:  # fmt: skip
    inner = WIDTH - LEFT - RIGHT
    floor = top + HEAD + ROW * max(len(bounds), 1)
    made = [_heading(key, [one for row in columns for one in row], top), _axis(floor)]
    rows = {one: k for k, one in enumerate(bounds)}
    for k, row in enumerate(columns):
        x, end = LEFT + edges[k] * inner, LEFT + edges[k + 1] * inner
        for one in row:
            if not one.count:
                continue
            where = rows[one.low, one.high]
            tip = (
                f"{moments[k]} to {moments[k + 1]}, {range_text((one.low, one.high))}: "
                f"{one.count:,}"
            )
            made.append(
                f'<rect x="{x:.2f}" y="{floor - ROW * (where + 1)}" '
                f'width="{max(end - x, 0.5):.2f}" height="{ROW}" fill="{_shade(one.count, most)}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    for k, bound in enumerate(bounds):
        made.append(_text(LEFT - 6, floor - ROW * k - 3, bounds_text(bound, function), "end"))
    shown = -1e9
    for edge, moment in zip(edges, moments, strict=True):
        x = LEFT + edge * inner
        if x - shown >= 1.5 * _LABEL:
            made.append(_text(x, floor + 16, moment, "middle"))
            shown = x
    return "\n".join(made)


def _legend(most: int) -> str:
    made, x = [], LEFT
    for k in range(_SHADES):
        count = round(math.exp(math.log1p(most) * (k + 1) / _SHADES)) - 1 or 1
        made.append(f'<rect x="{x}" y="{TOP}" width="18" height="12" '
                    f'fill="{_shade(count, most)}"/>')  # fmt: skip
        made.append(_text(x + 22, TOP + 10, f"{count:,}", "start"))
        x += 90
    return "\n".join(made)


def _shade(count: int, most: int) -> str:
    place = math.log1p(count) / math.log1p(most) * (len(_RAMP) - 1)
    k = min(int(place), len(_RAMP) - 2)
    mixed = (round(a + (b - a) * (place - k)) for a, b in zip(_RAMP[k], _RAMP[k + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _heading(key: Key, row: Sequence[Bucket], top: int) -> str:
    name = key_text(key)
    text = f"{name}: {_total(row):,}" if name else f"{_total(row):,}"
    return f'<text class="key" x="{LEFT}" y="{top + 16}">{escape(text)}</text>'


def _axis(floor: float) -> str:
    return f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _page(title: str, note: str, panels: Sequence[str], height: int) -> str:
    return _SVG.format(
        width=WIDTH, height=height + 8, title=escape(title), note=escape(note), left=LEFT,
        panels="\n".join(panels),
    )  # fmt: skip


_SVG = """\
<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}">
<style>
svg {{ background: #fff; }}
text {{ font: 11px ui-monospace, monospace; fill: #444; }}
.title {{ font-size: 15px; fill: #111; }}
.key {{ font-size: 12px; font-weight: bold; fill: #111; }}
.axis {{ stroke: #444; }}
.rule {{ stroke: #ddd; }}
.bar {{ fill: #c8502f; }}
rect:hover {{ stroke: #111; }}
</style>
<rect width="100%" height="100%" fill="#fff" stroke="none"/>
<text class="title" x="{left}" y="26">{title}</text>
<text x="{left}" y="43">{note}</text>
{panels}
</svg>
"""
_HTML = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ margin: 1em auto; max-width: 1200px; font: 14px sans-serif; }}
svg {{ width: 100%; height: auto; }}
pre {{ background: #f4f4f4; padding: 1em; overflow: auto; }}
</style>
{svg}
<pre>{program}</pre>
</html>
"""
