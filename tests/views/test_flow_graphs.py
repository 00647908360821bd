"""Drawn flow graphs: nothing overlaps, edges end at their boxes, graphviz reads the text."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from itertools import combinations
from xml.etree import ElementTree

import pytest

from kinst.views.annotation import Annotation
from kinst.views.flow import solve
from kinst.views.flow_dot import flow_dot
from kinst.views.flow_svg import flow_svg
from kinst.views.graph_layout import GraphEdge, lay_out
from tests.views.made_code import annotated, random_code

SVG = "{http://www.w3.org/2000/svg}"


def random_graph(seed: int) -> tuple[dict[int, tuple[float, float]], list[GraphEdge]]:
    choose = random.Random(seed)
    count = choose.randint(1, 25)
    sizes = {n: (choose.uniform(40, 200), choose.uniform(20, 90)) for n in range(count)}
    edges = [GraphEdge(choose.randrange(n), n) for n in range(1, count)]
    edges += [
        GraphEdge(choose.randrange(count), choose.randrange(count), choose.random())
        for _ in range(count // 2)
    ]
    return sizes, edges


@pytest.mark.parametrize("seed", range(25))
def test_boxes_do_not_overlap_and_edges_end_at_them(seed: int) -> None:
    sizes, edges = random_graph(seed)
    placed = lay_out(sizes, edges, 0)
    assert set(placed.boxes) == set(sizes)
    for one, other in combinations(sizes, 2):
        (x1, y1), (x2, y2) = placed.boxes[one], placed.boxes[other]
        apart_x = abs(x1 - x2) >= (sizes[one][0] + sizes[other][0]) / 2 - 0.01
        assert apart_x or abs(y1 - y2) >= (sizes[one][1] + sizes[other][1]) / 2 - 0.01
    for edge, line in zip(edges, placed.lines, strict=True):
        for number, (x, y) in ((edge.source, line[0]), (edge.target, line[-1])):
            middle, (width, height) = placed.boxes[number], sizes[number]
            assert abs(x - middle[0]) <= width / 2 + 0.01, (edge, line)
            assert abs(y - middle[1]) <= height / 2 + 0.01, (edge, line)
    for number, (x, y) in placed.boxes.items():
        width, height = sizes[number]
        assert x - width / 2 >= 0 and x + width / 2 <= placed.width
        assert y - height / 2 >= 0 and y + height / 2 <= placed.height


def test_a_straight_line_is_drawn_straight() -> None:
    placed = lay_out(dict.fromkeys(range(4), (100, 30)), [GraphEdge(n, n + 1) for n in range(3)], 0)
    assert len({x for x, _ in placed.boxes.values()}) == 1
    assert sorted(placed.boxes, key=lambda n: placed.boxes[n][1]) == [0, 1, 2, 3]


def test_scale() -> None:
    """A higher count makes a line thicker and a box higher."""
    page = ElementTree.fromstring(flow_svg(annotated(), "x"))
    width = {}
    for edge in page.iter(f"{SVG}g"):
        if "edge" in edge.get("class", ""):
            path = edge.find(f"{SVG}path")
            assert path is not None
            way = int(edge.attrib["data-from"]), int(edge.attrib["data-to"])
            width[way] = float(path.attrib["stroke-width"])
    # Counts 21, 7, 7 and 3.
    assert width[2, 2] > width[0, 2] == width[2, 3] > width[0, 1] > 0
    height = {}
    for block in page.iter(f"{SVG}g"):
        if "data-block" in block.attrib:
            rect = block.find(f"{SVG}rect")
            assert rect is not None
            height[int(block.attrib["data-block"])] = float(rect.attrib["height"])
    # 56 and 7 of 99 executions.
    assert height[2] > height[3] > 0


def test_dot() -> None:
    text = flow_dot([annotated("x")])
    edges = re.findall(r"b0_(\d) -> b0_(\d) \[label=\"(\d+)", text)
    assert sorted(edges) == [("0", "1", "3"), ("0", "2", "7"), ("2", "2", "21"), ("2", "3", "7")]
    assert '\\l77 ns\\l"' in text


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("dot"), reason="make setup-all installs graphviz")
@pytest.mark.parametrize("seed", range(3))
def test_graphviz_reads_it(seed: int) -> None:
    code = random_code(random.Random(seed))
    flow = solve(code, {one.address: 0 for one in code.instructions}, {})
    text = flow_dot([Annotation(code, flow), annotated("x")])
    done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    page = ElementTree.fromstring(
        done.stdout.partition("<svg")[1] + done.stdout.partition("<svg")[2]
    )
    boxes = [g for g in page.iter(f"{SVG}g") if g.get("class") == "node"]
    assert len(boxes) == text.count("fillcolor=")
