"""The import rule of docs/architecture.md, computed from the source.

The rule concerns two graphs.  In the first, every top-level folder, every root module and every
file of session/ is a node.  This graph has no cycle, and the stages of the path import only
earlier stages.  The floor of a node is one above the highest node that it imports.  In the second,
the children of one folder (subfolders and files) are the nodes; it has no cycle either.  Every
import statement counts: there is no list of exemptions, no import is inside a function, and every
file belongs to a node.

    python -m pytest -s tests/test_layers.py    prints the floors
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.syntax_trees import nodes_of

ROOT = Path(__file__).resolve().parent.parent / "kinst"
STAGES = ("compile", "expand", "enable", "place", "plan", "apply", "run")  # of the path
RANK = {
    "core": 0, "version": 0, "errors": 1, "events": 1, "dlang": 1, "isa": 1, "image": 1, "wire": 1,
    "providers": 2, "codegen": 2, "patch": 2, "sugar": 3, "consumer": 3, "kernels": 3,
    "systems": 3, "machines": 3, "inlines": 3, "results": 3, "session": 4, "api": 5, "render": 5,
    "views": 5, "trials": 6, "cli": 7, "kinst": 7,
}  # fmt: skip
ONLY_USER = {
    "llvmlite": "codegen", "capstone": "isa", "iced_x86": "isa", "ctypes": "wire", "socket": "wire",
    "numba": "image",
}  # fmt: skip

Graph = Mapping[str, Mapping[str, str]]  # node to imported nodes, with the place


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(ROOT.rglob("*.py")))


@cache
def imported(path: Path) -> tuple[tuple[str, int], ...]:
    """Return (absolute name of a module or of its member, line) of every import of a file."""
    found: list[tuple[str, int]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return tuple(found)


@cache
def own(name: str) -> tuple[str, ...]:
    """Return the path below kinst of the module that an imported name belongs to.

    kinst/__init__.py is ("__init__",).
    """
    parts = name.split(".")[1:]
    while parts:
        place = ROOT.joinpath(*parts)
        if place.with_suffix(".py").is_file():
            return tuple(parts)
        if place.is_dir():
            return (*parts, "__init__")
        parts.pop()
    return ("__init__",)


def graph(nodes: Sequence[Path], node_of: Callable[[tuple[str, ...]], str]) -> Graph:
    """Return the graph of imports.

    Args:
        node_of: maps a module's path below kinst to its node; "" if it is in none.
    """
    found: dict[str, dict[str, str]] = {}
    for path in nodes:
        here = node_of(path.relative_to(ROOT).with_suffix("").parts)
        edges = found.setdefault(here, {})
        for name, line in imported(path):
            there = node_of(own(name)) if name.split(".")[0] == "kinst" else ""
            if there not in ("", here):
                edges.setdefault(there, f"{path.relative_to(ROOT)}:{line}")
    return found


def main_node(parts: tuple[str, ...]) -> str:
    if parts == ("__init__",):
        return "kinst"
    if parts[0] == "session":
        return "session/" + "/".join(parts[1:])
    return parts[0]


def circle(edges: Graph) -> str:
    """Return one cycle with the places of its imports, or ""."""
    done: set[str] = set()

    def walk(node: str, way: tuple[str, ...]) -> str:
        if node in way:
            turn = [*way[way.index(node) :], node]
            return "; ".join(f"{a} -> {b} ({edges[a][b]})" for a, b in pairwise(turn))
        if node in done:
            return ""
        found = next(filter(None, (walk(n, (*way, node)) for n in edges.get(node, ()))), "")
        done.add(node)
        return found

    return next(filter(None, (walk(node, ()) for node in edges)), "")


def floors(edges: Graph) -> dict[str, int]:
    """Return the floor of each node, from 1.  The graph has no cycle."""
    found: dict[str, int] = {}

    def floor(node: str) -> int:
        if node not in found:
            found[node] = 1 + max((floor(n) for n in edges.get(node, ())), default=0)
        return found[node]

    for node in edges:
        floor(node)
    return found


def test_the_floors(capsys: pytest.CaptureFixture[str]) -> None:
    edges = graph(files(), main_node)
    assert not circle(edges), circle(edges)
    found = floors(edges)
    with capsys.disabled():
        for floor in range(max(found.values()), 0, -1):
            on_it = sorted(node for node, at in found.items() if at == floor)
            print(f"\n  floor {floor}: {', '.join(on_it)}", end="")
        print(f"\n  {len(found)} nodes, {sum(map(len, edges.values()))} edges, no circle", end=" ")


def test_stages_import_only_earlier_ones() -> None:
    """Direct and indirect imports: a stage does not know what later stages of the path make."""
    edges = graph(files(), main_node)

    def reached(node: str) -> set[str]:
        found, waiting = set[str](), [node]
        while waiting:
            for below in edges.get(waiting.pop(), ()):
                if below not in found:
                    found.add(below)
                    waiting.append(below)
        return found

    for number, stage in enumerate(STAGES):
        assert f"session/{stage}" in edges, f"there is no stage {stage}"
        later = {f"session/{one}" for one in STAGES[number + 1 :]} & reached(f"session/{stage}")
        assert not later, f"{stage} imports {', '.join(sorted(later))}"


def folders() -> Iterator[Path]:
    yield from (p.parent for p in files() if p.name == "__init__.py" and p.parent != ROOT)


@pytest.mark.parametrize("folder", [str(p.relative_to(ROOT)) for p in folders()])
def test_no_circle_between_the_children_of(folder: str) -> None:
    inside = Path(folder).parts

    def child(parts: tuple[str, ...]) -> str:
        within = parts[: len(inside)] == inside and len(parts) > len(inside)
        return parts[len(inside)] if within else ""

    nodes = [p for p in files() if child(p.relative_to(ROOT).with_suffix("").parts)]
    found = circle(graph(nodes, child))
    assert not found, found


def test_imports_go_down_the_ranks() -> None:
    wrong = [
        f"{at} imports {there}"
        for here, below in graph(files(), lambda parts: main_node(parts).split("/")[0]).items()
        for there, at in below.items()
        if RANK[there] >= RANK[here]
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_have_one_user() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files()
        for name, line in imported(path)
        if ONLY_USER.get(name.split(".")[0], "") not in ("", path.relative_to(ROOT).parts[0])
    ]
    assert not wrong, "\n".join(wrong)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements inside a statement, at all depths; expressions contain none."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def test_no_imports_inside_functions() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} inside {function.name}"
        for path in files()
        for function in nodes_of(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in statements(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_is_ranked() -> None:
    ranked = {main_node(p.relative_to(ROOT).with_suffix("").parts).split("/")[0] for p in files()}
    assert ranked <= set(RANK), ranked - set(RANK)


PUBLIC = {
    "api", "errors", "events", "inlines", "results", "trials", "version", "views", "__init__",
}  # fmt: skip


def client_files() -> dict[str, list[Path]]:
    """Return the files that are clients of the library, including tests that run whole programs.

    Other tests belong to the module that they import.
    """
    tests = ROOT.parent / "tests"
    return {
        "cli": sorted((ROOT / "cli").glob("*.py")),
        "bench": sorted((ROOT.parent / "bench").glob("*.py")),
        "tests": [
            *(tests / "d").glob("*.py"),
            tests / "vm" / "command.py",
            tests / "test_api_docs.py",
        ],
    }


@pytest.mark.parametrize("client", ["cli", "bench", "tests"])
def test_clients_reach_no_deeper_than_the_library(client: str) -> None:
    """Commands, benchmarks and tests of whole programs import only the library, renderers, texts of
    numbers (core/units.py) and each other.

    tests/d calls the command itself.
    """
    besides = {"cli": {"cli", "render"}, "bench": {"bench"}, "tests": {"cli", "bench"}}[client]
    texts = "kinst.core.units."
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in client_files()[client]
        for name, line in imported(path)
        if name.split(".")[0] == "kinst"
        and not name.startswith(texts)
        and own(name)[0] not in PUBLIC | besides
    ]
    assert client_files()[client]
    assert not wrong, "\n".join(wrong)
