"""Layout of a directed graph in layers from top to bottom: positions of the boxes, and lines for
the edges.

The steps are those of Sugiyama's method. Edges that close cycles are reversed. Each box gets a
layer below all boxes that lead to it. An edge over several layers gets a bend in each layer between
its boxes. The boxes and bends of each layer are ordered so that few edges cross. Boxes are moved
toward their neighbours, more strongly along edges of greater weight. Equal graphs get equal
layouts.

Tested by tests/views/test_flow_graphs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from kinst.core.dataclass import dataclass

GAP, BEND, LAYER = 26.0, 12.0, 54.0  # pixels between boxes, around bends, between layers
SWEEPS, MOVES = 8, 24


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A directed edge between two boxes.

    Attributes:
        source: number of the box where it starts.
        target: number of the box where it ends.
        weight: how strongly the layout keeps it short and straight.
    """

    source: int
    target: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """Layout of a graph, in pixels from the upper left corner.

    Attributes:
        boxes: centre (x, y) of each box, by number.
        lines: points of each edge from its source to its target, in the order of the edges.
        width: width of the drawing.
        height: height of the drawing.
    """

    boxes: Mapping[int, tuple[float, float]]
    lines: Sequence[Sequence[tuple[float, float]]]
    width: float
    height: float


@dataclass(slots=True)
class _Node:
    """A box, or a bend of an edge.

    Attributes:
        width: width in pixels.
        height: height in pixels.
        layer: counted from 0 at the top.
        above: (node, weight) of each neighbour in the layer above.
        below: (node, weight) of each neighbour in the layer below.
        x: x of the centre.
    """

    width: float
    height: float
    layer: int
    above: list[tuple[int, float]]
    below: list[tuple[int, float]]
    x: float = 0.0


def lay_out(
    sizes: Mapping[int, tuple[float, float]], edges: Sequence[GraphEdge], root: int
) -> GraphLayout:
    """Return the layout of a graph.

    Args:
        sizes: width and height of each box, by number.
        edges: the edges, between boxes that are in `sizes`.
        root: number of the box at the top.
    """
    if not sizes:
        return GraphLayout({}, [], 0.0, 0.0)
    back = _back_edges(sizes, edges, root)
    layers = _layers(sizes, edges, back)
    nodes = {n: _Node(w, h, layers[n], [], []) for n, (w, h) in sizes.items()}
    chains = [_chain(nodes, edge, len(sizes), turned=k in back) for k, edge in enumerate(edges)]
    rows = _ordered(nodes)
    _move(nodes, rows)
    tops = _tops(nodes, rows)
    left = min(node.x - node.width / 2 for node in nodes.values())
    for node in nodes.values():
        node.x += GAP - left
    lines = [_line(nodes, tops, chain, k in back) for k, chain in enumerate(chains)]
    boxes = {n: (nodes[n].x, tops[nodes[n].layer] + nodes[n].height / 2) for n in sizes}
    width = max(node.x + node.width / 2 for node in nodes.values()) + GAP
    return GraphLayout(boxes, lines, width, tops[-1])


def _back_edges(
    sizes: Mapping[int, object], edges: Sequence[GraphEdge], root: int
) -> frozenset[int]:
    """Return the indices of the edges that close a cycle, found by depth-first search from `root`.

    Args:
        sizes: the boxes.
        edges: edges of the graph.
        root: number of the box at the top.
    """
    out: dict[int, list[int]] = {n: [] for n in sizes}
    for k, edge in enumerate(edges):
        out[edge.source].append(k)
    back, done, on_way = set[int](), set[int](), set[int]()
    for start in (root, *sorted(sizes)):
        if start in done:
            continue
        way = [(start, iter(out[start]))]
        on_way.add(start)
        while way:
            node, left = way[-1]
            for k in left:
                to = edges[k].target
                if to in on_way:
                    back.add(k)
                elif to not in done:
                    way.append((to, iter(out[to])))
                    on_way.add(to)
                    break
            else:
                way.pop()
                on_way.discard(node)
                done.add(node)
    return frozenset(back)


def _layers(
    sizes: Mapping[int, object], edges: Sequence[GraphEdge], back: frozenset[int]
) -> dict[int, int]:
    """Return the layer of each box, from 0 at the top: one below the lowest box that leads to it.

    Args:
        sizes: the boxes.
        edges: edges of the graph.
        back: indices of edges that are taken in reverse direction.
    """
    ways = [(e.target, e.source) if k in back else (e.source, e.target)
            for k, e in enumerate(edges) if e.source != e.target]  # fmt: skip
    waits = dict.fromkeys(sizes, 0)
    out: dict[int, list[int]] = {n: [] for n in sizes}
    for upper, lower in ways:
        waits[lower] += 1
        out[upper].append(lower)
    layers = dict.fromkeys(sizes, 0)
    ready = [n for n in sorted(sizes) if not waits[n]]
    for node in ready:
        for lower in out[node]:
            layers[lower] = max(layers[lower], layers[node] + 1)
            waits[lower] -= 1
            if not waits[lower]:
                ready.append(lower)
    return layers


def _chain(nodes: dict[int, _Node], edge: GraphEdge, boxes: int, *, turned: bool) -> list[int]:
    """Return the nodes of an edge from top to bottom: its upper box, a bend in each layer between,
    its lower box. The bends are added to `nodes` under negative numbers, and neighbours are
    connected.

    Args:
        nodes: all nodes so far.
        edge: the edge.
        boxes: how many of the nodes are boxes, to compute the bends' numbers.
        turned: whether the edge leads upward, from its lower box.
    """
    upper, lower = (edge.target, edge.source) if turned else (edge.source, edge.target)
    chain = [upper]
    for layer in range(nodes[upper].layer + 1, nodes[lower].layer):
        bend = boxes - len(nodes) - 1
        nodes[bend] = _Node(BEND, 0.0, layer, [], [])
        chain.append(bend)
    chain.append(lower)
    if upper == lower:
        return chain
    for one, other in pairwise(chain):
        # Keep long edges straight in their middle.
        weight = edge.weight * (3 if one < 0 and other < 0 else 1)
        nodes[one].below.append((other, weight))
        nodes[other].above.append((one, weight))
    return chain


def _ordered(nodes: Mapping[int, _Node]) -> list[list[int]]:
    """Return the nodes of each layer from left to right, in an order with few crossings.

    Sweeps down and up sort each layer by the average position of its neighbours; the order with the
    fewest crossings is returned.
    """
    rows: list[list[int]] = [[] for _ in range(1 + max(n.layer for n in nodes.values()))]
    for number in _downward(nodes):
        rows[nodes[number].layer].append(number)
    best, fewest = [list(row) for row in rows], _crossings(nodes, rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows[1:] if down else rows[-2::-1]:
            place = {n: k for one in rows for k, n in enumerate(one)}

            def middle(number: int, place: Mapping[int, int] = place, down: bool = down) -> float:
                joined = nodes[number].above if down else nodes[number].below
                return sum(place[n] for n, _ in joined) / len(joined) if joined else place[number]

            row.sort(key=middle)
        crossings = _crossings(nodes, rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _downward(nodes: Mapping[int, _Node]) -> list[int]:
    """Return all nodes in the order of a depth-first search, which keeps the nodes of a path
    together."""
    seen: dict[int, None] = {}
    for start in sorted(nodes, key=lambda n: (nodes[n].layer, n < 0, abs(n))):
        todo = [start]
        while todo:
            node = todo.pop()
            if node not in seen:
                seen[node] = None
                todo += [n for n, _ in sorted(nodes[node].below, key=lambda one: one[1])]
    return list(seen)


def _crossings(nodes: Mapping[int, _Node], rows: Sequence[Sequence[int]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        place = {n: k for k, n in enumerate(lower)}
        ends = [end for u in upper for end in sorted(place[b] for b, _ in nodes[u].below)]
        # Count inversions with a tree of counts (Fenwick).
        counts = [0] * (len(lower) + 1)
        for seen, end in enumerate(ends):
            at, before = end + 1, 0
            while at:
                before += counts[at]
                at -= at & -at
            total += seen - before
            at = end + 1
            while at <= len(lower):
                counts[at] += 1
                at += at & -at
    return total


def _move(nodes: Mapping[int, _Node], rows: Sequence[Sequence[int]]) -> None:
    """Set the x of each node near the average x of its neighbours, weighted by the edges. The order
    of nodes in each layer stays.

    Args:
        nodes: all nodes.
        rows: nodes of each layer from left to right.
    """
    for row in rows:
        x = 0.0
        for number in row:
            node = nodes[number]
            node.x = x + node.width / 2
            x += node.width + GAP
    for move in range(MOVES):
        last = move >= MOVES - 2
        for row in rows[1:] if move % 2 == 0 else rows[-2::-1]:
            positions = []
            for number in row:
                node = nodes[number]
                joined = node.above if move % 2 == 0 else node.below
                joined = [*node.above, *node.below] if last or not joined else joined
                weights = sum(weight for _, weight in joined)
                at = (
                    sum(nodes[n].x * weight for n, weight in joined) / weights
                    if weights
                    else node.x
                )
                positions.append((at, max(weights, 0.01)))
            _settle(nodes, row, positions)


def _settle(
    nodes: Mapping[int, _Node], row: Sequence[int], wanted: Sequence[tuple[float, float]]
) -> None:
    """Set the x of a layer's nodes as near to wanted positions as possible, in order and without
    overlap.

    Minimises the weighted sum of squared distances: nodes that would overlap become one group
    (isotonic regression).

    Args:
        nodes: all nodes.
        row: the layer's nodes from left to right.
        wanted: (position, weight) of each node of the layer.
    """
    groups: list[tuple[float, float, list[int]]] = []  # (position of the first, weight, members)
    before: list[float] = []
    at = 0.0
    for k, number in enumerate(row):
        if k:
            at += (nodes[row[k - 1]].width + nodes[number].width) / 2 + GAP
        before.append(at)
    for k, (place, weight) in enumerate(wanted):
        groups.append((place - before[k], weight, [k]))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (a, wa, first), (b, wb, second) = groups[-2:]
            groups[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, first + second)]
    for place, _, members in groups:
        for k in members:
            nodes[row[k]].x = place + before[k]


def _tops(nodes: Mapping[int, _Node], rows: Sequence[Sequence[int]]) -> list[float]:
    """Return the y of the upper edge of each layer, followed by the y of the drawing's lower
    edge."""
    tops, y = [], GAP
    for row in rows:
        tops.append(y)
        y += max(nodes[n].height for n in row) + LAYER
    return [*tops, y - LAYER + GAP]


def _line(
    nodes: Mapping[int, _Node], tops: Sequence[float], chain: Sequence[int], back: bool
) -> list[tuple[float, float]]:
    """Return the points of an edge from its source to its target.

    The line goes from the bottom of the source to the top of the target. For an edge that leads
    back, it goes from the right of the source to the right of the target, or from left to left.

    Args:
        nodes: all nodes.
        tops: result of _tops().
        chain: nodes of the edge from top to bottom.
        back: whether the edge leads back, from the last node of `chain` to the first one.
    """
    upper, lower = nodes[chain[0]], nodes[chain[-1]]
    top = tops[upper.layer]
    if chain[0] == chain[-1]:  # to itself
        right = upper.x + upper.width / 2
        middle = top + upper.height / 2
        return [(right, middle + 6), (right + 18, middle), (right, middle - 6)]
    points = [(upper.x, top + upper.height)]
    for number in chain[1:-1]:
        bend = nodes[number]
        points.append((bend.x, tops[bend.layer] - LAYER / 4))
        points.append((bend.x, tops[bend.layer + 1] - LAYER * 3 / 4))
    points.append((lower.x, tops[lower.layer]))
    if not back:
        return points
    # The line goes from its source's right side round the bends to its target's right side.
    right = max(upper.x + upper.width / 2, lower.x + lower.width / 2)
    inner = points[1:-1] or [(right + 16, top + upper.height), (right + 16, tops[lower.layer])]
    start = (lower.x + lower.width / 2, tops[lower.layer] + lower.height / 2)
    end = (upper.x + upper.width / 2, top + upper.height / 2)
    if inner[0][0] < upper.x:  # the bends are on the left
        start = (lower.x - lower.width / 2, start[1])
        end = (upper.x - upper.width / 2, end[1])
    return [start, *reversed(inner), end]
