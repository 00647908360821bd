"""Flame graphs: folded stacks drawn as one self-contained SVG for a browser.

Stacks with the same outer frames share the boxes of these frames. The width of a box is the sum of
the values of its stacks; callees are above their callers. A click on a box widens it to the whole
picture, a tooltip shows the figures, and Ctrl-F (or /) highlights frames that match a regular
expression. Where scripts are disabled, the picture is still complete.

Tested by tests/views/test_folded.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from html import escape
from importlib.resources import files

from kinst.core.dataclass import dataclass
from kinst.core.units import value_text
from kinst.events import Aggregation
from kinst.views.folded import INLINED, KERNEL, FoldedStack
from kinst.views.picture import MARGIN, Heading, svg_document

WIDTH, ROW, BOTTOM = 1200, 18, 34
LEGEND = 26  # pixels
ACROSS = 97.4  # per cent of the picture's width that frames use
LETTER = 6.7  # width in pixels of a monospace letter of 11 pixels
NARROWEST = 0.025  # a box narrower than this (per cent of the width) is not drawn
TINTS = 4  # number of tints of each kind of frame
# For each kind of frame: its name and its tooltip in the legend.
KINDS = {
    "plain": ("function", "a function, or another key"),
    "kernel": ("kernel", "a function of the kernel"),
    "inlined": ("inlined", "a function that the compiler had put into the one below"),
}
_COLOURS = {  # hue, saturation, lightness in the light and in the dark theme
    "plain": (36, 88, 66, 33),
    "kernel": (14, 78, 70, 36),
    "inlined": (135, 38, 68, 30),
}


@dataclass(slots=True)
class _Box:
    """A box of the flame graph: a frame that was called from the frames below it.

    Attributes:
        name: name of the frame.
        total: sum of the values of the stacks that go through the box.
        callees: boxes directly above, by name.
    """

    name: str
    total: int = 0
    callees: dict[str, _Box] = field(default_factory=dict)


def flame_svg(stacks: Iterable[FoldedStack], heading: Heading, table: Aggregation) -> str:
    """Return a flame graph as the text of an SVG.

    Args:
        stacks: folded stacks.
        heading: text above the picture.
        table: aggregation that the stacks were folded from. The picture shows its function, the
            names of its keys and the unit of its values.
    """
    root = _tree(stacks)
    boxes = list(_placed(root, 0, 0, max(root.total, 1)))
    heading = replace(heading, notes=[*_notes(root.total, table), *heading.notes])
    top = heading.height + LEGEND
    height = top + BOTTOM + ROW * (1 + max(depth for _, depth, _ in boxes))
    drawn = "\n".join(
        _drawn(box, depth, start, root.total, height, table.unit) for box, depth, start in boxes
    )
    kinds = dict.fromkeys(_kind(box.name) for box, depth, _ in boxes if depth)
    script = files("kinst.views").joinpath("flame.js").read_text(encoding="utf-8")
    parts = [
        _legend([kind for kind in KINDS if kind in kinds], heading.height),
        f'<text id="found" class="end" x="100%" dx="-{MARGIN}" y="{height - 12}"> </text>',
        f'<text id="details" x="{MARGIN}" y="{height - 12}"> </text>',
        f'<svg id="frames" x="1.3%" width="{ACROSS}%" data-letter="{LETTER}">\n{drawn}\n</svg>',
        f"<script><![CDATA[\n{script}\n]]></script>",
    ]
    return svg_document(parts, heading, WIDTH, height, _style())


def _notes(total: int, table: Aggregation) -> Iterator[str]:
    what = "n" if table.function == "count" else f"{table.function}({table.expression})"
    yield f"{what} = {_amount(total, table.unit)}"
    if table.key_names:
        yield f"by {', '.join(table.key_names)}"


def _amount(value: int, unit: str) -> str:
    return value_text(value, unit) if unit else f"{value:,}"


def _tree(stacks: Iterable[FoldedStack]) -> _Box:
    root = _Box("all")
    for stack in stacks:
        box = root
        box.total += stack.value
        for name in stack.frames:
            box = box.callees.setdefault(name, _Box(name))
            box.total += stack.value
    return root


def _placed(box: _Box, depth: int, start: int, whole: int) -> Iterator[tuple[_Box, int, int]]:
    """Yield (box, row, start) for a box and the boxes above it that are wide enough to be drawn.
    The row is counted from the lowest one; `start` is the sum of the values left of the box.

    Args:
        box: the lowest box.
        depth: row of the lowest box.
        start: sum of the values left of the lowest box.
        whole: sum of the values of all stacks.
    """
    yield box, depth, start
    for callee in sorted(box.callees.values(), key=lambda one: one.name):
        if 100 * callee.total >= NARROWEST * whole:
            yield from _placed(callee, depth + 1, start, whole)
        start += callee.total


def _drawn(box: _Box, depth: int, start: int, whole: int, height: int, unit: str) -> str:
    scale = 100 / max(whole, 1)
    x, width = start * scale, box.total * scale
    y = height - BOTTOM - ROW * (depth + 1)
    tip = escape(f"{box.name} ({_amount(box.total, unit)}, {width:.2f}%)")
    letters = int((width / 100 * WIDTH * ACROSS / 100 - 6) / LETTER)
    shown = box.name if len(box.name) <= letters else f"{box.name[: max(letters - 1, 0)]}…"
    label = escape(shown) if letters >= 3 else ""
    kind = f"{_kind(box.name)} t{_tint(box.name)}" if depth else "all"
    return (
        f'<g class="{kind}" data-n="{escape(box.name, quote=True)}" data-x="{start}" '
        f'data-w="{box.total}"><title>{tip}</title>'
        f'<rect x="{x:.3f}%" y="{y}" width="{width:.3f}%" height="{ROW - 1}"/>'
        f'<text x="{x:.3f}%" dx="4" y="{y + ROW - 6}">{label}</text></g>'
    )


def _kind(name: str) -> str:
    """Return the kind of a frame by the suffix of its name: "inlined", "kernel" or "plain". Names
    of kernel frames have a suffix only if the stacks also have frames of a user program."""
    return "inlined" if name.endswith(INLINED) else "kernel" if name.endswith(KERNEL) else "plain"


def _tint(name: str) -> int:
    """Return a number below TINTS that depends only on the name."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=1).digest()[0] % TINTS


def _legend(kinds: list[str], top: int) -> str:
    """Return the SVG of the legend, which explains the colours of the kinds of frames, and of the
    buttons beside it, which search and reset the picture.

    Args:
        kinds: kinds of frames that the picture has.
        top: y of the legend, in pixels.
    """
    parts, x = [], MARGIN
    for kind in kinds:
        name, meaning = KINDS[kind]
        parts.append(
            f'<rect class="{kind} t1" x="{x}" y="{top - 6}" width="12" height="12" rx="2"/>'
            f'<text x="{x + 18}" y="{top + 4}"><title>{meaning}</title>{name}</text>'
        )
        x += 34 + round(6.6 * len(name))
    buttons = (
        f'<text id="search" class="button end" x="100%" dx="-{MARGIN}" y="{top + 4}"></text>'
        f'<text id="reset" class="button end" x="100%" dx="-{MARGIN + 56}" y="{top + 4}"></text>'
    )
    return f'<g id="legend">{"".join(parts)}</g>{buttons}'


def _style() -> str:
    rules = [_RULES]
    for dark in (False, True):
        made = [
            f".{kind}.t{k} > rect, rect.{kind}.t{k} {{ fill: hsl({hue + 4 * k - 6},{saturation}%,"
            f"{(lights[dark]) + 3 * k - 4}%); }}"
            for kind, (hue, saturation, *lights) in _COLOURS.items()
            for k in range(TINTS)
        ]
        block = "\n".join(made)
        rules.append(
            f"@media (prefers-color-scheme: dark) {{\n{block}\n}}\n" if dark else f"{block}\n"
        )
    return "".join(rules)


_RULES = """\
#frames rect { rx: 2px; stroke: var(--paper); stroke-width: 0.5; }
svg.picture #frames text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  fill: var(--ink); pointer-events: none; }
#frames .all > rect { fill: var(--rule); }
#frames g:hover > rect { stroke: var(--ink); stroke-width: 1; cursor: pointer; }
svg.picture #frames g.match > rect { fill: #b05ad8; }
#frames g.faded { opacity: 0.5; }
svg.picture .end { text-anchor: end; }
svg.picture #details { fill: var(--ink); }
svg.picture .button { cursor: pointer; fill: var(--bar); }
"""
