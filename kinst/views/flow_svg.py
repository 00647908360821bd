"""A function's flow graph as SVG: the height of a box shows its block's share of the instructions
that ran, the thickness of a line shows its edge's count.

Tested by tests/views/test_flow_graphs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kinst.core.code import OUTSIDE
from kinst.core.units import value_text
from kinst.views.annotated_text import per_cent
from kinst.views.annotation import Annotation
from kinst.views.flow_dot import block_label, share_of, shown_blocks
from kinst.views.graph_layout import GraphEdge, GraphLayout, lay_out

WIDTH, LETTERS = 214.0, 34  # width of a box in pixels, and number of letters that fit in it
LEAST, MOST = 42.0, 120.0  # height of a box that never ran; additional height for a share of 1
THIN, THICK = 0.8, 9.0  # thickness of the lines of edges that were never, and most often, taken

Points = Sequence[tuple[float, float]]


def flow_svg(annotation: Annotation, name: str) -> str:
    """Return a function's flow graph as an SVG element that an HTML page can contain.

    Args:
        annotation: the function.
        name: a name that is unique in the page, for ids in the element.
    """
    blocks = shown_blocks(annotation)
    edges = [(b, k, edge) for b in blocks for k, edge in enumerate(annotation.code.blocks[b].edges)
             if edge.to != OUTSIDE]  # fmt: skip
    counts = [annotation.flow.edges.get((b, k)) for b, k, _ in edges]
    most = max((count for count in counts if count), default=1)
    sizes = {b: (WIDTH, LEAST + MOST * share_of(annotation, b)) for b in blocks}
    graph_edges = [GraphEdge(b, edge.to, 0.1 + 8 * (count or 0) / most)
              for (b, _, edge), count in zip(edges, counts, strict=True)]  # fmt: skip
    placed = lay_out(sizes, graph_edges, annotation.code.root)
    lines = "".join(
        _edge(annotation, b, k, count, most, placed.lines[n], name)
        for n, ((b, k, _), count) in enumerate(zip(edges, counts, strict=True))
    )
    boxes = "".join(_block(annotation, b, placed, sizes[b][1]) for b in blocks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {placed.width:.0f} '
        f'{placed.height:.0f}" data-width="{placed.width:.0f}" data-height="{placed.height:.0f}">'
        f'<defs><marker id="head-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/>'
        f"</marker></defs>{lines}{boxes}</svg>"
    )


def heat_class(count: int | None, most: int) -> str:
    """Return the CSS class for a count: "h1" to "h10" by its share of `most`, "h0" for 0, "hx" for
    None (not known)."""
    if count is None:
        return "hx"
    return f"h{max(1, round(10 * count / most))}" if count and most else "h0"


def _block(annotation: Annotation, block: int, layout: GraphLayout, height: float) -> str:
    x, y = layout.boxes[block]
    left, top = x - WIDTH / 2, y - height / 2
    where, ran, text = block_label(annotation, block)
    share = per_cent(share_of(annotation, block))
    shown = text if len(text) <= LETTERS else text[: LETTERS - 2] + ".."
    rows = [f"{block}: {where}", f"{ran} \N{MULTIPLICATION SIGN}  {share}", shown]
    texts = "".join(
        f'<text x="{left + 6:.0f}" y="{top + 13 + 12 * k:.0f}">{escape(row)}</text>'
        for k, row in enumerate(rows)
    )
    style = heat_class(annotation.flow.entries[block], annotation.hottest)
    title = f"block {block}, {where}: {ran} times, {share} of what ran\n{text}"
    return (
        f'<g class="block {style}" data-block="{block}"><title>{escape(title)}</title>'
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{WIDTH:.0f}" height="{height:.0f}" rx="3"/>'
        f"{texts}</g>"
    )


def _edge(
    annotation: Annotation, block: int, number: int, count: int | None, most: int, points: Points,
    name: str,
) -> str:  # fmt: skip
    edge = annotation.code.blocks[block].edges[number]
    width = THIN + (THICK - THIN) * (count or 0) / most
    style = "unknown" if count is None else "never" if not count else "ran"
    shown = "?" if count is None else f"{count:,}"
    nanoseconds = annotation.edges.get((block, edge.to))
    if nanoseconds is not None:
        shown += f", {value_text(nanoseconds, 'ns')}"
    asked = "asked for" if (block, number) in annotation.flow.asked else "follows from the counts"
    tip = f"{block} to {edge.to} ({edge.kind}): {shown}" + ("" if count is None else f", {asked}")
    x, y = points[0]
    (x1, y1) = points[1]
    at = f'x="{x + (x1 - x) * 0.6 + width / 2 + 4:.0f}" y="{y + max(12, (y1 - y) * 0.6):.0f}"'
    label = f"<text {at}>{escape(shown)}</text>" if count != 0 else ""
    return (
        f'<g class="edge {style}" data-from="{block}" data-to="{edge.to}">'
        f"<title>{escape(tip)}</title>"
        f'<path d="{"".join(_path(points))}" stroke-width="{width:.1f}" '
        f'marker-end="url(#head-{name})"/>{label}</g>'
    )


def _path(points: Points) -> Iterator[str]:
    """Yield the SVG path commands of a smooth line through points."""
    (x, y), *rest = points
    yield f"M{x:.0f} {y:.0f}"
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        yield f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
        x, y = to_x, to_y
