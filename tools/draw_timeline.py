"""Draw the slices of a Perfetto trace as an SVG, a band for each track, as Perfetto's page does.

    draw_timeline.py TRACE [FROM TO] >PICTURE

FROM, TO: milliseconds after the first slice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape
from zlib import crc32

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from tools.read_perfetto import Slice, slices

WIDTH, ROW, LEFT, TOP = 1000, 18, 120, 26  # pixels
_LETTER = 6.6  # pixels of a letter
_TICKS = 8  # most ticks on the scale


def drawn(slices: Sequence[Slice], low: int, high: int) -> str:
    """Return an SVG of the slices between two times.

    Args:
        slices: slices of all tracks.
        low: start, in nanoseconds.
        high: end, in nanoseconds.
    """
    ended = [one._replace(end=high if one.end is None else one.end) for one in slices]
    shown = [one for one in ended if one.start < high and (one.end or 0) > low]
    rows, y = list[str](), TOP
    for track in sorted({one.track for one in shown}):
        of_track = [one for one in shown if one.track == track]
        depths = list(_depths(of_track))
        rows.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(track)}</text>')
        for one, depth in zip(of_track, depths, strict=True):
            rows += _slice(one, y + depth * ROW, low, high)
        y += (max(depths) + 1) * ROW
        rows.append(f'<line x1="0" x2="{WIDTH}" y1="{y + 4}" y2="{y + 4}" stroke="#ccc"/>')
        y += 9
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-size="11"'
        ' font-family="monospace"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *_scale(low, high, y), *rows, "</svg>\n"])


def _depths(slices: Sequence[Slice]) -> Iterator[int]:
    """Yield, for each slice of a track, the number of slices that contain it.

    Args:
        slices: slices of one track in the order in which they begin.
    """
    around: list[int] = []
    for one in slices:
        around = [end for end in around if end > one.start]
        yield len(around)
        around.append(one.end or 0)


def _slice(one: Slice, y: int, low: int, high: int) -> Iterator[str]:
    x, end = (_x(at, low, high) for at in (max(one.start, low), min(one.end or high, high)))
    wide = max(end - x, 0.5)
    hue = crc32(one.name.encode()) % 360
    took = _time((one.end or high) - one.start)
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW - 2}" rx="2"'
        f' fill="hsl({hue} 55% 72%)"><title>{escape(one.name)}: {took}</title></rect>'
    )
    fits = int((wide - 6) / _LETTER)
    if fits > 2:
        name = one.name if len(one.name) <= fits else one.name[: fits - 2] + ".."
        yield f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(name)}</text>'


def _time(nanoseconds: int) -> str:
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1000:g} us"
    return f"{nanoseconds / 1_000_000:g} ms"


def _x(at: int, low: int, high: int) -> float:
    return LEFT + (WIDTH - LEFT) * (at - low) / (high - low)


def _scale(low: int, high: int, height: int) -> Iterator[str]:
    steps = (base * 10**power for power in range(3, 10) for base in (1, 2, 5))
    step = next(one for one in steps if (high - low) / one <= _TICKS)
    for at in range(0, high - low, step):
        x = _x(low + at, low, high)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{height}" stroke="#eee"/>'
        yield f'<text x="{x + 2:.1f}" y="12" fill="#777">{_time(at)}</text>'


def main() -> int:
    if len(sys.argv) not in (2, 4):
        print(__doc__, file=sys.stderr)
        return 2
    trace = Trace()
    trace.ParseFromString(Path(sys.argv[1]).read_bytes())
    all_slices = slices(trace, cpus=True)
    begin = min(one.start for one in all_slices)
    bounds = [begin + round(float(word) * 1_000_000) for word in sys.argv[2:]]
    end = max(one.end or one.start for one in all_slices)
    low, high = bounds or (begin, end)
    sys.stdout.write(drawn(all_slices, low, high))
    return 0


if __name__ == "__main__":
    sys.exit(main())
