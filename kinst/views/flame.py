"""Flame graphs: folded stacks as one SVG that needs nothing else, to be looked at in a browser.

A box for each frame that stacks have in common, as wide as what was seen in it; who called whom
goes upwards.  A click makes a box the whole width, the mouse tells figures, Ctrl-F (or /) marks
what a regular expression matches.  Without scripts it is still the picture.

Tested by tests/views/test_folded.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape

from kinst.views.folded import INLINED, KERNEL, FoldedStack

WIDTH, ROW, MARGIN, TOP, BOTTOM = 1200, 17, 10, 46, 30
LETTER = 6.6  # width of one, of 11 pixels' monospace
NARROWEST = 0.3  # pixels that a box must have to be drawn


@dataclass(slots=True)
class _Box:
    """A frame under its callers.  total: what was seen in it and in what it called."""

    name: str
    total: int = 0
    callees: dict[str, _Box] = field(default_factory=dict)


def flame_svg(stacks: Iterable[FoldedStack], title: str, unit: str) -> str:
    """The SVG's text.  unit: what the values are, such as "samples"."""
    root = _tree(stacks)
    boxes = list(_placed(root, 0, 0, max(root.total, 1)))
    height = TOP + BOTTOM + ROW * (1 + max(depth for _, depth, _ in boxes))
    drawn = "\n".join(
        _drawn(box, depth, start, root.total, height, unit) for box, depth, start in boxes
    )
    return _PAGE.format(
        width=WIDTH, height=height, middle=WIDTH // 2, title=escape(title), boxes=drawn,
        below=height - 10, right=WIDTH - MARGIN, script=_SCRIPT, inner=WIDTH - 2 * MARGIN,
        margin=MARGIN, letter=LETTER,
    )  # fmt: skip


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
    """(box, rows above the lowest, what was seen to its left) of all that can be drawn."""
    yield box, depth, start
    for callee in sorted(box.callees.values(), key=lambda one: one.name):
        if callee.total * (WIDTH - 2 * MARGIN) >= NARROWEST * whole:
            yield from _placed(callee, depth + 1, start, whole)
        start += callee.total


def _drawn(box: _Box, depth: int, start: int, whole: int, height: int, unit: str) -> str:
    scale = (WIDTH - 2 * MARGIN) / max(whole, 1)
    x, width = MARGIN + start * scale, box.total * scale
    y = height - BOTTOM - ROW * (depth + 1)
    share = 100 * box.total / max(whole, 1)
    tip = escape(f"{box.name} ({box.total:,} {unit}, {share:.2f}%)")
    letters = int((width - 4) / LETTER)
    shown = box.name if len(box.name) <= letters else f"{box.name[: letters - 2]}.."
    label = escape(shown) if letters >= 3 else ""
    return (
        f'<g data-n="{escape(box.name, quote=True)}" data-x="{start}" data-w="{box.total}">'
        f"<title>{tip}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" '
        f'fill="{_colour(box.name)}"/>'
        f'<text x="{x + 3:.1f}" y="{y + ROW - 5}">{label}</text></g>'
    )


def _colour(name: str) -> str:
    """The same for the same name: warm, green where it was inlined, orange for the kernel's frames
    where there are others as well."""
    shade = hashlib.blake2b(name.encode(errors="replace"), digest_size=2).digest()
    light = 55 + shade[1] % 17
    if name.endswith(INLINED):
        return f"hsl({110 + shade[0] % 40},45%,{light + 10}%)"
    if name.endswith(KERNEL):
        return f"hsl({28 + shade[0] % 12},85%,{light}%)"
    return f"hsl({shade[0] % 50},80%,{light}%)"


_PAGE = """\
<?xml version="1.0" encoding="utf-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" font-family="monospace" font-size="11" \
data-inner="{inner}" data-margin="{margin}" data-letter="{letter}">
<style>
rect {{ stroke: none; rx: 1.5; }}
g:hover rect {{ stroke: #000; stroke-width: 0.7; cursor: pointer; }}
g.match rect {{ fill: #b040d0; }}
g.faded {{ opacity: 0.5; }}
text {{ pointer-events: none; fill: #111; }}
#title {{ font-size: 16px; text-anchor: middle; }}
#found {{ text-anchor: end; }}
.button {{ pointer-events: auto; cursor: pointer; fill: #225; }}
</style>
<rect width="100%" height="100%" fill="#fbf8f2"/>
<text id="title" x="{middle}" y="24">{title}</text>
<text id="reset" class="button" x="10" y="24"></text>
<text id="search" class="button" x="{right}" y="24" text-anchor="end">search</text>
<text id="details" x="10" y="{below}"> </text>
<text id="found" x="{right}" y="{below}"> </text>
<g id="frames">
{boxes}
</g>
<script><![CDATA[
{script}
]]></script>
</svg>
"""

_SCRIPT = r"""
"use strict";
const svg = document.documentElement;
const inner = +svg.dataset.inner, margin = +svg.dataset.margin, letter = +svg.dataset.letter;
const frames = [...document.querySelectorAll("#frames > g")];
const byId = (name) => document.getElementById(name);
const whole = frames[0];

function show(low, size) {
  const scale = inner / size;
  for (const g of frames) {
    const start = +g.dataset.x, total = +g.dataset.w;
    const [rect, text] = [g.querySelector("rect"), g.querySelector("text")];
    const left = Math.max(start, low), right = Math.min(start + total, low + size);
    g.style.display = right > left && (right - left) * scale >= 0.3 ? "" : "none";
    if (right <= left) continue;
    const x = margin + (left - low) * scale, width = (right - left) * scale;
    rect.setAttribute("x", x);
    rect.setAttribute("width", width);
    text.setAttribute("x", x + 3);
    const letters = Math.floor((width - 4) / letter), name = g.dataset.n;
    text.textContent = letters < 3 ? "" : name.length <= letters ? name
      : name.slice(0, letters - 2) + "..";
    g.classList.toggle("faded", total > size);
  }
}

function zoom(g) {
  show(+g.dataset.x, +g.dataset.w);
  byId("reset").textContent = g === whole ? "" : "whole width";
}

function search() {
  const asked = prompt("frames that match this regular expression", "");
  if (asked === null) return;
  let wanted = null;
  try { wanted = asked ? new RegExp(asked) : null; } catch (error) { alert(error.message); return; }
  let covered = 0, end = 0;
  for (const g of frames) {
    const hit = wanted !== null && wanted.test(g.dataset.n);
    g.classList.toggle("match", hit);
    // Frames come by their callers first: what a matching caller covers is not counted again.
    if (hit && +g.dataset.x >= end) {
      covered += +g.dataset.w;
      end = +g.dataset.x + +g.dataset.w;
    }
  }
  byId("found").textContent = wanted === null ? " "
    : "matched: " + (100 * covered / +whole.dataset.w).toFixed(2) + "%";
}

for (const g of frames) {
  g.addEventListener("click", () => zoom(g));
  g.addEventListener("mouseover", () => {
    byId("details").textContent = g.querySelector("title").textContent;
  });
}
byId("reset").addEventListener("click", () => zoom(whole));
byId("search").addEventListener("click", search);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" || ((event.ctrlKey || event.metaKey) && event.key === "f")) {
    event.preventDefault();
    search();
  } else if (event.key === "Escape") zoom(whole);
});
"""
