"""The import rule of docs/architecture.md: a module imports only from lower ranks."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "kinst"
RANK = {
    "core": 0, "dlang": 1, "isa": 1, "image": 1, "wire": 1, "providers": 2, "sugar": 2,
    "codegen": 2, "patch": 2, "consumer": 3, "kernels": 3, "systems": 3, "machines": 3,
    "session": 4, "render": 5, "cli": 6, "events": 0.5,
}  # fmt: skip
ONLY_USER = {
    "llvmlite": "codegen", "capstone": "isa", "ctypes": "wire", "socket": "wire",
    "elftools": "image", "numba": "image",
}  # fmt: skip


def layer(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def layer_rank(name: str) -> float:
    return RANK[name]


def imports(tree: ast.AST) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            assert node.module is not None
            found.append((node.module, node.lineno))
    return found


def modules() -> list[Path]:
    return [p for p in sorted(ROOT.rglob("*.py")) if p.parent != ROOT or p.name != "__init__.py"]


def test_imports_go_down_the_ranks() -> None:
    wrong = []
    for path in modules():
        if path.name in ("__init__.py", "__main__.py") and path.parent == ROOT:
            continue
        mine = layer(path)
        for name, line in imports(ast.parse(path.read_text())):
            parts = name.split(".")
            if parts[0] == "kinst" and len(parts) > 1:
                other = parts[1]
                if other == mine:
                    continue
                if layer_rank(other) >= layer_rank(mine):
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            elif parts[0] in ONLY_USER and ONLY_USER[parts[0]] != mine:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_imports_inside_functions() -> None:
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                wrong += [
                    f"{path.relative_to(ROOT)}:{line} imports {name} inside {node.name}"
                    for name, line in imports(node)
                ]
    assert not wrong, "\n".join(wrong)


def test_every_package_is_ranked() -> None:
    packages = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert packages <= set(RANK), packages - set(RANK)
