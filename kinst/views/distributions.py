"""Histograms of distributions, and heat maps that show how a distribution changes over time, as
self-contained SVG.

Each key of the aggregation gets a panel, those with most values first. In a histogram each bar is a
bucket. In a heat map each column is a span of time, each row is a bucket, and the colour of a field
shows the number of values. A tooltip gives the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

from kinst.core.units import count_text, counted, value_text
from kinst.events import Aggregation, Bucket, Key
from kinst.views.buckets import Bounds, DistributionSnapshot, distribution, grid, key_text
from kinst.views.picture import MARGIN, SHADES, STYLE, Heading, cut, svg_document, text
from kinst.views.scales import BucketScale, round_ticks

WIDTH = 960
LEFT, RIGHT = 13.0, 97.0  # ends of the axis, in per cent of the width
WIDEST_BAR, WIDEST_COLUMN = 5.0, 2.5  # per cent
BARS = 132  # pixels of the highest bar
WIDE_LETTERS, NARROW_LETTERS = 120, 46  # letters of a panel's heading
ROW = 14  # pixels of a heat map's bucket
HEAD, FOOT = 44, 54  # pixels of a panel
MOST_PANELS = 12
WIDE_TICKS, NARROW_TICKS = 12, 5  # on a horizontal axis of full width
_EVERYWHERE = (("wide", WIDE_TICKS), ("narrow", NARROW_TICKS))
_STYLE = """\
.cell { shape-rendering: crispEdges; }
.axis { stroke: var(--axis); }
.rule { stroke: var(--rule); }
.bar { fill: var(--bar); }
.bar:hover, .cell:hover { stroke: var(--ink); }
""" + "".join(f".s{k} {{ fill: var(--s{k}); }}\n" for k in range(1, SHADES + 1))  # fmt: skip

Rows = Mapping[Key, tuple[Bucket, ...]]


def histogram_svg(snapshot: DistributionSnapshot, heading: Heading) -> str:
    """Return an SVG with a histogram for each key of a distribution."""
    table = snapshot.table
    rows = {key: distribution(value) for key, value in table.rows.items()}
    bounds = grid([one for row in rows.values() for one in row], table.function)
    heading = replace(heading, notes=[*_notes(table, rows), *heading.notes])
    panels, height = [], heading.height
    for key in _largest(rows):
        panels.append(_bars(key, rows[key], table, bounds, height))
        height += HEAD + BARS + FOOT
    return svg_document(panels, heading, WIDTH, height, _STYLE)


def heat_map_svg(snapshots: Sequence[DistributionSnapshot], heading: Heading) -> str:
    """Return an SVG with a heat map for each key of a distribution.

    Args:
        snapshots: one distribution at several moments, in order of time; each snapshot has only the
            values that were added since the one before.
        heading: text above the picture.
    """
    table = snapshots[0].table
    columns = [
        {key: distribution(value) for key, value in one.table.rows.items()} for one in snapshots
    ]
    totals: dict[Key, tuple[Bucket, ...]] = {}
    for column in columns:
        for key, row in column.items():
            totals[key] = (*totals.get(key, ()), *row)
    time = _Time(snapshots)
    most = max((one.count for row in totals.values() for one in row), default=1)
    heading = replace(heading, notes=[*_notes(table, totals), *heading.notes])
    top = heading.height
    panels, height = [_legend(most, top)], top + 30
    for key in _largest(totals):
        rows = [column.get(key, ()) for column in columns]
        scale = _scale(table, grid(totals[key], table.function))
        panels.append(_fields(key, rows, table, scale, height, time, most))
        height += HEAD + ROW * max(len(scale.bounds), 1) + FOOT
    return svg_document(panels, heading, WIDTH, height, _STYLE)


def html_page(svg: str, title: str, program: str) -> str:
    """Return an HTML page with a picture and the D program that it comes from.

    Args:
        svg: text of the picture.
        title: title of the page.
        program: D text; "" if it is not known.
    """
    drawn = svg.partition("?>\n")[2]
    shown = f"<pre>{escape(program.strip())}</pre>\n" if program.strip() else ""
    return _HTML.format(title=escape(title), style=STYLE, svg=drawn, program=shown)


def _largest(rows: Rows) -> list[Key]:
    """Return the keys to draw, one in each panel: the MOST_PANELS keys with most values, in
    descending order."""
    return sorted(rows, key=lambda key: -_total(rows[key]))[:MOST_PANELS]


def _total(row: Sequence[Bucket]) -> int:
    return sum(one.count for one in row)


def _notes(table: Aggregation, rows: Rows) -> Iterator[str]:
    yield f"n = {sum(map(_total, rows.values())):,}"
    by = f" by {', '.join(table.key_names)}" if table.key_names else ""
    if table.expression:
        yield f"{table.function}({table.expression}){by}"
    elif table.name:
        yield f"@{table.name}"
    more = len(rows) - MOST_PANELS
    if more > 0:
        yield f"{counted(more, 'key')} with fewer values not shown"


def _scale(table: Aggregation, bounds: Sequence[Bounds]) -> BucketScale:
    return BucketScale(bounds, table.function, table.unit)


def _heading(key: Key, row: Sequence[Bucket], scale: BucketScale, top: int) -> str:
    """Return the SVG text above a panel: the key, the number of values, the median and the 99th
    percentile.

    Args:
        top: y of the panel, in pixels.
    """
    figures = [f"n = {_total(row):,}"]
    for part, name in ((0.5, "median"), (0.99, "99th percentile")):
        bounds = _quantile(row, part)
        if bounds is not None:
            figures.append(f"{name} {scale.range_text(bounds)}")
    tooltip = escape("  ".join(filter(None, [key_text(key), " · ".join(figures)])))
    lines = "".join(
        f'<tspan class="{width}">{_fitting(key_text(key), figures, letters)}</tspan>'
        for width, letters in (("wide", WIDE_LETTERS), ("narrow", NARROW_LETTERS))
    )
    return (
        f'<text class="key" x="{LEFT}%" y="{top + 18}" xml:space="preserve">'
        f"<title>{tooltip}</title>{lines}</text>"
    )


def _fitting(name: str, figures: Sequence[str], letters: int) -> str:
    """Return a panel's heading as SVG, short enough for one line: the key, cut to half of the line,
    and those figures that fit beside it. The first figure is always shown.

    Args:
        name: text of the key; "" if there is no key.
        figures: the figures, most important first.
        letters: number of letters that fit into the line.
    """
    name = cut(name, letters // 2)
    shown = figures[0]
    for figure in figures[1:]:
        longer = f"{shown} · {figure}"
        shown = longer if len(name) + len(longer) + 2 <= letters else shown
    named = f'<tspan class="name">{escape(name)}</tspan>  ' if name else ""
    return named + escape(shown)


def _quantile(row: Sequence[Bucket], part: float) -> Bounds | None:
    """Return the bounds of the bucket that contains a quantile; None if there are no values.

    Args:
        row: buckets, in any order.
        part: the quantile, 0 to 1.
    """
    counts: dict[Bounds, int] = {}
    for one in row:
        counts[one.low, one.high] = counts.get((one.low, one.high), 0) + one.count
    remaining = part * sum(counts.values())
    for bounds in sorted(counts, key=lambda b: (b[0] is not None, b[0] or 0)):
        remaining -= counts[bounds]
        if remaining <= 0:
            return bounds
    return None


# --- Histograms -----------------------------------------------------------------------------


def _bars(
    key: Key, row: Sequence[Bucket], table: Aggregation, bounds: Sequence[Bounds], top: int
) -> str:
    counts = {(one.low, one.high): one.count for one in row}
    highest, whole = max(counts.values(), default=1), max(_total(row), 1)
    step = min((RIGHT - LEFT) / max(len(bounds), 1), WIDEST_BAR)
    end = LEFT + step * len(bounds)
    scale, floor = _scale(table, bounds), top + HEAD + BARS
    parts = [_heading(key, row, scale, top), text(f"{LEFT}%", top + 36, "count", kind="axis-name")]
    for tick in _whole_ticks(highest):
        y = floor - BARS * tick / highest
        parts.append(_level(y, end, "rule" if tick else "axis"))
        parts.append(text(f"{LEFT}%", y + 4, count_text(tick), anchor="end", kind="tick", dx=-8))
    for k, one in enumerate(bounds):
        count = counts.get(one, 0)
        if count:
            size = max(BARS * count / highest, 1.5)
            tip = f"{scale.range_text(one)}: {count:,} ({100 * count / whole:.1f}%)"
            parts.append(
                f'<rect class="bar" x="{LEFT + (k + 0.05) * step:.3f}%" y="{floor - size:.1f}" '
                f'width="{0.9 * step:.3f}%" height="{size:.1f}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    parts += _bucket_ticks(scale, step, floor)
    parts.append(text(f"{LEFT}%", floor + 38, _axis_name(table), kind="axis-name code"))
    return "\n".join(parts)


def _whole_ticks(highest: int) -> list[float]:
    """Return round whole numbers from 0 to `highest` for the axis of counts."""
    return [tick for tick in round_ticks(0, highest, 6) if tick == int(tick)]


def _bucket_ticks(scale: BucketScale, step: float, floor: float) -> Iterator[str]:
    share = step * len(scale.bounds) / (RIGHT - LEFT)
    for width, most in _EVERYWHERE:
        for one in scale.ticks(max(round(most * share), 2)):
            yield _tick(LEFT + one.at * step, floor, one.text, width)


def _tick(x: float, floor: float, shown: str, width: str) -> str:
    return (
        f'<line class="axis {width}" x1="{x:.3f}%" x2="{x:.3f}%" y1="{floor}" y2="{floor + 4}"/>'
        + text(f"{x:.3f}%", floor + 18, shown, anchor="middle", kind=f"tick {width}")
    )


def _level(y: float, end: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{LEFT}%" x2="{end:.3f}%" y1="{y:.1f}" y2="{y:.1f}"/>'


def _axis_name(table: Aggregation) -> str:
    return table.expression or "value"


# --- Heat maps ------------------------------------------------------------------------------


class _Time:
    """The horizontal axis of heat maps: time, or the snapshots' positions if their times are not
    known.

    Attributes:
        edges: where the first column begins, then where each column ends: in nanoseconds from the
            start, or 0, 1, 2, ... if the times are not known.
        unit: unit of the edges: "ns" or "".
        end: where the last column ends, in per cent of the picture's width.
    """

    def __init__(self, snapshots: Sequence[DistributionSnapshot]) -> None:
        times = [one.time_ns for one in snapshots if one.time_ns is not None]
        count = len(snapshots)
        self.edges = [float(k) for k in range(count + 1)]
        self.unit = ""
        if len(times) == count > 1 and times == sorted(set(times)):
            # Take the first snapshot to cover as long a time as the second one.
            start = times[0] - (times[1] - times[0])
            self.edges = [0.0, *(float(time - start) for time in times)]
            self.unit = "ns"
        self._step = min((RIGHT - LEFT) / count, WIDEST_COLUMN)
        self.end = LEFT + self._step * count

    @property
    def name(self) -> str:
        return "time" if self.unit else "print"

    def position(self, moment: float) -> float:
        """Return the position of a moment on the axis, in per cent of the picture's width. The
        moment is in the unit of `edges`.
        """
        return LEFT + (self.end - LEFT) * moment / self.edges[-1]

    def text(self, moment: float) -> str:
        return value_text(moment, self.unit)

    def ticks(self, most: int) -> list[float]:
        share = (self.end - LEFT) / (RIGHT - LEFT)
        return round_ticks(0, self.edges[-1], max(round(most * share), 2))


def _fields(
    key: Key, columns: Sequence[Sequence[Bucket]], table: Aggregation, scale: BucketScale,
    top: int, time: _Time, most: int,
) -> str:  # fmt: skip
    high = ROW * max(len(scale.bounds), 1)
    floor = top + HEAD + high
    row = [one for column in columns for one in column]
    name = text(f"{LEFT}%", top + 36, _axis_name(table), kind="axis-name code")
    parts = [_heading(key, row, scale, top), name]
    for tick in scale.ticks(max(len(scale.bounds) // 2, 2)):
        y = floor - ROW * tick.at
        parts.append(_level(y, time.end, "rule"))
        parts.append(text(f"{LEFT}%", y + 4, tick.text, anchor="end", kind="tick", dx=-8))
    rows = {one: k for k, one in enumerate(scale.bounds)}
    for k, column in enumerate(columns):
        x, end = time.position(time.edges[k]), time.position(time.edges[k + 1])
        moments = f"{time.text(time.edges[k])} to {time.text(time.edges[k + 1])}"
        for one in column:
            if not one.count:
                continue
            bounds = one.low, one.high
            tip = f"{moments}, {scale.range_text(bounds)}: {one.count:,}"
            parts.append(
                f'<rect class="cell s{_shade(one.count, most)}" x="{x:.3f}%" '
                f'y="{floor - ROW * (rows[bounds] + 1)}" width="{end - x:.3f}%" height="{ROW}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    parts.append(_level(floor, time.end, "axis"))
    for width, most_ticks in _EVERYWHERE:
        parts += [
            _tick(time.position(at), floor, time.text(at), width) for at in time.ticks(most_ticks)
        ]
    parts.append(text(f"{LEFT}%", floor + 38, time.name, kind="axis-name"))
    return "\n".join(parts)


def _legend(most: int, top: int) -> str:
    """Return the SVG legend of the colours, from a count of 1 to `most`.

    Args:
        most: the greatest count in the heat maps.
        top: y of the legend, in pixels.
    """
    parts = [text(str(MARGIN), top + 14, "values in a field", kind="axis-name")]
    counts = sorted({_least(k, most) for k in range(1, SHADES + 1)})
    shades = sorted({_shade(count, most) for count in counts})
    parts.append(f'<svg x="{MARGIN}" y="{top}" overflow="visible"><g class="legend">')
    x = 108
    parts.append(text(f"{x}", 14, count_text(1), anchor="end"))
    for place, k in enumerate(shades):
        left = x + 6 + 18 * place
        parts.append(f'<rect class="s{k}" x="{left}" y="4" width="18" height="12"/>')
    if most > 1:
        parts.append(text(f"{x + 12 + 18 * len(shades)}", 14, f"{most:,}"))
    parts.append("</g></svg>")
    return "\n".join(parts)


def _least(shade: int, most: int) -> int:
    """Return approximately the least count that is drawn in a shade.

    Args:
        shade: 1 to SHADES.
        most: the greatest count in the heat maps.
    """
    return max(1, round(math.pow(most, (shade - 1) / (SHADES - 1))))


def _shade(count: int, most: int) -> int:
    """Return the shade for a count, from 1 to SHADES, on a logarithmic scale.

    Args:
        count: number of values in a field.
        most: the greatest count, which has the last shade.
    """
    if most <= 1:
        return SHADES // 2
    return 1 + round((SHADES - 1) * math.log(count) / math.log(most))


_HTML = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}
body {{ margin: 1em auto; max-width: 960px; padding: 0 8px; background: var(--paper);
  color: var(--ink); font: 14px system-ui, sans-serif; }}
svg.picture {{ width: 100%; }}
pre {{ border: 1px solid var(--rule); border-radius: 4px; padding: 1em; overflow: auto;
  white-space: pre-wrap; }}
</style>
{svg}
{program}</html>
"""
