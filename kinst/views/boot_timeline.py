"""Timeline of a kernel's boot: when each of its parts ran, as a picture and as a table.

Tested by tests/views/test_boot_timeline.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape

from kinst.core.dataclass import dataclass
from kinst.core.units import value_text
from kinst.events import Frame, Record
from kinst.views.picture import Heading, svg_document, text
from kinst.views.scales import round_ticks

WIDTH, ROW, HEAD, FOOT = 1100, 17, 26, 34  # pixels
LEFT, RIGHT = 2.0, 98.0  # ends of the time axis, in per cent of the width
NARROWEST = 0.12  # per cent of the width that a bar has at least
MIDDLE = 55.0  # a bar that ends further right has its name on its left
TICKS = 10
DEPTHS = 4  # tints of bars, by how many parts are around them
ENTRY = "entry"
_STYLE = """\
.rule { stroke: var(--rule); }
.d0 { fill: var(--axis); }
.d1 { fill: var(--bar); }
.d2 { fill: var(--s4); }
.d3 { fill: var(--s6); }
.part:hover { stroke: var(--ink); }
"""


@dataclass(frozen=True, slots=True)
class BootPart:
    """A call of a function during the boot.

    Attributes:
        name: name of the function.
        thread: id of the thread that ran it.
        begin: when it began, in ns after the first record.
        end: when it ended.
        depth: number of parts of the same thread that were running when it began.
    """

    name: str
    thread: int
    begin: int
    end: int
    depth: int

    @property
    def took(self) -> int:
        return self.end - self.begin


def program_of(calls: Sequence[str], functions: Sequence[str]) -> str:
    """Return the D program that records when the parts of a boot begin and end, for parts_of().

    Args:
        calls: functions whose first argument (arg0) is the address of a function that they call,
            such as Linux's do_one_initcall. Each called function is a part of the boot.
        functions: other functions that are parts of the boot.
    """
    called = ",\n".join(f"fbt::{name}:{ENTRY}" for name in calls)
    entered = ",\n".join(f"fbt::{name}:{ENTRY}" for name in functions)
    left = ",\n".join(f"fbt::{name}:return" for name in (*calls, *functions))
    return (
        f"{called}\n{{ trace(tid); sym(arg0); }}\n"
        f"{entered}\n{{ trace(tid); }}\n{left}\n{{ trace(tid); }}\n"
    )


def parts_of(records: Iterable[Record]) -> list[BootPart]:
    """Return the parts of a boot in the order in which they began.

    If the return of a part was not recorded, the part ends when a part around it returns, or with
    the last record.

    Args:
        records: records of the program that program_of() returns.
    """
    running: dict[int, list[tuple[str, int, str]]] = {}
    parts: list[BootPart] = []
    first = last = None
    for one in records:
        first = one.time_ns if first is None else first
        last = one.time_ns
        thread, *called = (value.value for value in one.values)
        assert isinstance(thread, int)
        inside = running.setdefault(thread, [])
        function = one.probe.name.function
        if one.probe.name.name == ENTRY:
            target = called[0] if called else None
            name = target.function if isinstance(target, Frame) else function
            inside.append((name, one.time_ns - first, function))
        else:
            while inside:  # what is above it has not returned: it was left by a jump
                name, begin, entered = inside.pop()
                parts.append(BootPart(name, thread, begin, last - first, len(inside)))
                if entered == function:
                    break
    if first is not None and last is not None:
        for thread, inside in running.items():
            parts += [
                BootPart(name, thread, begin, last - first, depth)
                for depth, (name, begin, _) in enumerate(inside)
            ]
    return sorted(parts, key=lambda part: (part.begin, part.depth))


def timeline_svg(parts: Sequence[BootPart], heading: Heading, least: int) -> str:
    """Return a picture of a boot as the text of an SVG, with a row for each part.

    Args:
        parts: the parts, in the order in which they began.
        heading: text above the picture.
        least: ns that a part must have taken to have a row.
    """
    shown = [part for part in parts if part.took >= least]
    whole = max((part.end for part in parts), default=1) or 1
    hidden = len(parts) - len(shown)
    notes = [f"{len(parts)} calls in {value_text(whole, 'ns')}"]
    notes += [f"{hidden} of less than {value_text(least, 'ns')} not shown"] if hidden else []
    heading = replace(heading, notes=[*notes, *heading.notes])
    top = heading.height + HEAD
    bottom = top + ROW * len(shown)
    rows = [*_axis(whole, top, bottom)]
    for number, part in enumerate(shown):
        rows += _row(part, top + ROW * number, whole)
    return svg_document(rows, heading, WIDTH, bottom + FOOT, _STYLE)


def _axis(whole: int, top: int, bottom: int) -> Iterator[str]:
    for tick in round_ticks(0, whole, TICKS):
        x = LEFT + (RIGHT - LEFT) * tick / whole
        yield (f'<line class="rule" x1="{x:.3f}%" x2="{x:.3f}%" y1="{top - 6}" y2="{bottom + 4}"/>')
        for y in (top - 10, bottom + 18):
            yield text(f"{x:.3f}%", y, value_text(tick, "ns"), anchor="middle", kind="tick")


def _row(part: BootPart, y: int, whole: int) -> Iterator[str]:
    scale = (RIGHT - LEFT) / whole
    start, width = LEFT + part.begin * scale, max(part.took * scale, NARROWEST)
    took = value_text(part.took, "ns")
    tip = f"{part.name}: {took}, from {value_text(part.begin, 'ns')} on, thread {part.thread}"
    yield (
        f'<rect class="part d{min(part.depth, DEPTHS - 1)}" x="{start:.3f}%" y="{y + 2}" '
        f'width="{width:.3f}%" height="{ROW - 4}"><title>{escape(tip)}</title></rect>'
    )
    shown = f"{part.name} ({took})"
    if start + width > MIDDLE:
        yield text(f"{start:.3f}%", y + 13, shown, anchor="end", kind="code", dx=-5)
    else:
        yield text(f"{start + width:.3f}%", y + 13, shown, kind="code", dx=5)


def slowest_text(parts: Sequence[BootPart], least: int) -> str:
    """Return a table of the parts, those that took longest first: time, when it began, name.

    Args:
        parts: the parts, in any order.
        least: ns that a part must have taken to be in the table.
    """
    rows = sorted((part for part in parts if part.took >= least), key=lambda part: -part.took)
    lines = [f"{'took':>10} {'from':>10}  part"]
    lines += [
        f"{value_text(part.took, 'ns'):>10} {value_text(part.begin, 'ns'):>10}  {part.name}"
        for part in rows
    ]
    return "\n".join(lines) + "\n"
