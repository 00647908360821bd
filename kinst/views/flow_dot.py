"""Flow graphs in graphviz's language: a box for each basic block, coloured by its count, and a line
for each edge, thicker for a greater count.

Tested by tests/views/test_flow_graphs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kinst.core.code import OUTSIDE
from kinst.views.annotated_text import per_cent
from kinst.views.annotation import Annotation

_STYLES = {"taken": "solid", "next": "solid", "jump": "solid", "computed": "dashed",
           "return": "solid", "fault": "dotted"}  # fmt: skip


def flow_dot(annotations: Iterable[Annotation]) -> str:
    """Return a graph in graphviz's language with a cluster for each function."""
    lines = ["digraph annotate {", '  node [shape=box, style=filled, fontname="monospace",'
             ' fontsize=10, margin="0.08,0.04"];',
             '  edge [fontname="monospace", fontsize=9];']  # fmt: skip
    for number, one in enumerate(annotations):
        lines += (f"  {line}" for line in _cluster(number, one))
    return "\n".join([*lines, "}", ""])


def shown_blocks(annotation: Annotation) -> list[int]:
    """Return the numbers of the basic blocks to draw. Padding is left out: blocks that did not run
    and that no edge leads to.
    """
    led_to = {edge.to for block in annotation.code.blocks for edge in block.edges} | {
        annotation.code.root
    }
    blocks = range(len(annotation.code.blocks))
    return [number for number in blocks if number in led_to or annotation.flow.entries[number]]


def block_label(annotation: Annotation, number: int) -> tuple[str, str, str]:
    """Return three texts that describe a basic block: its range of offsets, how often it ran ("?"
    if that is not known), and its first source line."""
    block = annotation.code.blocks[number]
    low, high = annotation.label(block.address), annotation.label(block.last.address)
    count = annotation.flow.entries[number]
    first = next(row for row in annotation.instructions if row.instruction is block.instructions[0])
    call = first.within[0].call if first.within else first.spot
    text = annotation.source(call).strip() or (str(call) if call.file else "")
    return low if low == high else f"{low} to {high}", "?" if count is None else f"{count:,}", text


def share_of(annotation: Annotation, number: int) -> float:
    """Return a block's part, 0 to 1, of all instructions that ran in the function."""
    counts = (
        annotation.flow.instructions.get(i.address, 0)
        for i in annotation.code.blocks[number].instructions
    )
    return sum(counts) / annotation.executed if annotation.executed else 0.0


def _cluster(number: int, annotation: Annotation) -> Iterator[str]:
    entered = annotation.flow.entered
    title = f"{annotation.name}: entered {'?' if entered is None else entered} times"
    yield f"subgraph cluster_{number} {{"
    yield f"  label={_quoted(title)}; fontname=monospace;"
    counts = [annotation.flow.edges.get((b, k)) for b in range(len(annotation.code.blocks))
              for k in range(len(annotation.code.blocks[b].edges))]  # fmt: skip
    most = max((count for count in counts if count), default=0)
    blocks = shown_blocks(annotation)
    for block in blocks:
        where, ran, text = block_label(annotation, block)
        label = (
            f"{block}: {where}\n{ran} times, {per_cent(share_of(annotation, block))}\n{text[:40]}"
        )
        count = annotation.flow.entries[block] or 0
        part = count / annotation.hottest if annotation.hottest else 0.0
        colour = f"0.{round(16 - 15 * part):02} {0.1 + 0.75 * part:.2f} 1.0" if count else "white"
        yield f'  b{number}_{block} [label={_quoted(label)}, fillcolor="{colour}"];'
    for block in blocks:
        for k, edge in enumerate(annotation.code.blocks[block].edges):
            if edge.to == OUTSIDE:
                continue
            found = annotation.flow.edges.get((block, k))
            shown = "?" if found is None else f"{found}"
            ns = annotation.edges.get((block, edge.to))
            shown += f"\n{ns} ns" if ns is not None else ""
            width = 0.5 + 6 * (found or 0) / max(most, 1)
            colour = "grey70" if found == 0 else "black"
            yield (
                f"  b{number}_{block} -> b{number}_{edge.to} [label={_quoted(shown)}, "
                f"penwidth={width:.2f}, color={colour}, style={_STYLES[edge.kind]}];"
            )
    yield "}"


def _quoted(text: str) -> str:
    """Return text as a string of graphviz's language; if it has several lines, each is aligned
    left."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    lines = escaped.split("\n")
    return f'"{escaped}"' if len(lines) == 1 else '"' + "".join(f"{one}\\l" for one in lines) + '"'
