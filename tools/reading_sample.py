"""Texts to be read without the code: docstrings, messages and paragraphs of the documents.

    python -m tools.reading_sample 101                 a random sample, with this seed
    python -m tools.reading_sample kinst/sugar ...     all docstrings of these folders

Somebody who has not written the texts says of each what it means, and marks those that had to be
read a second time.

Tested by tests/tools/test_reading_sample.py.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCSTRINGS, MESSAGES, PARAGRAPHS = 100, 30, 10
_LEAST_WORDS = 15  # of a paragraph
_WRITTEN_BY_TOOLS = ("messages.md",)


def docstrings(folder: Path) -> Iterator[str]:
    """Yield all docstrings of a folder's modules, each with its place and what it belongs to."""
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = ast.get_docstring(node)
            if text:
                line = getattr(node, "lineno", 1)
                place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                yield f"{place}:{line}  {_owner(node)}\n{text}"


def _owner(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """Return the name of a docstring's owner; for a function, with its parameters."""
    match node:
        case ast.FunctionDef():
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"def {node.name}({ast.unparse(node.args)}){result}"
        case ast.ClassDef():
            return f"class {node.name}"
    return "module"


def messages(page: Path) -> Iterator[str]:
    """Yield the messages of docs/messages.md, each with the place that it comes from."""
    for entry in re.split(r"\n(?=- )", page.read_text(encoding="utf-8")):
        if entry.startswith("- "):
            yield entry.partition("\n\n")[0]


def paragraphs(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of a folder's documents, each with its file; no tables and examples."""
    for path in sorted(folder.glob("*.md")):
        if path.name in _WRITTEN_BY_TOOLS:
            continue
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph[:1].isalpha() and len(paragraph.split()) >= _LEAST_WORDS:
                yield f"{path.name}\n{paragraph.strip()}"


def sample(seed: int) -> Iterator[str]:
    """Yield the numbered texts of a random sample."""
    draw = random.Random(seed)
    kinds = (
        ("D", DOCSTRINGS, list(docstrings(ROOT / "kinst"))),
        ("M", MESSAGES, list(messages(ROOT / "docs/messages.md"))),
        ("P", PARAGRAPHS, list(paragraphs(ROOT / "docs"))),
    )
    for kind, count, texts in kinds:
        for number, text in enumerate(draw.sample(texts, count), 1):
            yield f"{kind}{number} {text}"


def main(words: list[str]) -> None:
    if len(words) == 1 and words[0].isdigit():
        texts = sample(int(words[0]))
    else:
        texts = (text for word in words for text in docstrings(ROOT / word))
    print("\n\n----\n".join(texts))


if __name__ == "__main__":
    main(sys.argv[1:])
