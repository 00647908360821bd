"""The seams of docs/architecture.md: knowledge of one kind is in the folder of that kind alone.

Machines, systems, ISAs, providers and renderers are found by name and used through protocols.
These tests read the source.  Code outside the folder of a kind does not ask which member it has,
does not name a provider, and, outside kinst/systems/linux, has no word of Linux's internals.
kinst/kernels, which fetches Debian's Linux kernels, may have such words too.  Each rule is a
pattern; no rule has a list of exceptions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kinst.codegen.subroutines import prototypes
from kinst.dlang.vocabulary.builtins import VARIABLES
from kinst.image.elf import open_elf
from kinst.kernels.fetch import prepared
from tests.syntax_trees import nodes_of
from tests.tiers import EVERYTHING, FIRST, ISAS

ROOT = Path(__file__).resolve().parent.parent / "kinst"
LINUX = ROOT / "systems" / "linux"

KERNELS = ROOT / "kernels"
# Words of Linux's internals in code, texts and comments: structures, files, parameters, messages,
# names of parts.  Python's own names are excluded (socket.AF_UNIX is about the host's sockets),
# and English may say that a thread was preempted.
WORDS = re.compile(
    r"task_struct|mm_struct|pt_regs|dentry|vfsmount|thread_info|preempt_|PREEMPT|softirq|hardirq"
    r"|(?<!socket\.)\bAF_[A-Z]|\btty(?:S|AMA)\d|\bftrace|current_task|kallsyms|jump_label"
    r"|static_call|printk|kernel_nofault|user_nofault|\binitramfs|\brdinit|\bkpti\b|\bmem=\{"
    r"|MAX_ERRNO|PATH_MAX|TASK_COMM|kernel panic - not|Kernel panic|Oops|soft lockup"
)
_IDENTIFIER = re.compile(r"_*[A-Za-z]\w*\Z", re.ASCII)
_NAMED = 2  # symbol types up to this one are code and data, later ones sections and files


Nodes = tuple[ast.AST, ...]


@dataclass(frozen=True)
class Source:
    """One parsed module of kinst.

    Attributes:
        nodes: all nodes of its syntax tree.
    """

    path: Path
    nodes: Nodes

    def at(self, node: ast.AST) -> str:
        line = getattr(node, "lineno", 0)
        return f"{self.path.relative_to(ROOT.parent)}:{line}"

    def within(self, folder: Path) -> bool:
        return self.path.is_relative_to(folder)


@cache
def sources() -> tuple[Source, ...]:
    paths = sorted(ROOT.rglob("*.py"))
    return tuple(Source(p, nodes_of(p)) for p in paths)


def modules_of(kind: str) -> frozenset[str]:
    """Return the names of the members of kinst/KIND: a file or a folder each."""
    folder = ROOT / kind
    entries = [p for p in folder.iterdir() if p.is_dir() or p.suffix == ".py"]
    return frozenset(p.stem for p in entries if not p.stem.startswith("_"))


def last_name(node: ast.expr) -> str:
    """Return `Vm` for `Vm` and for `vm.Vm`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def origins(nodes: Nodes) -> dict[str, str]:
    """Return the full name of each name that a module imports."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.asname or a.name: a.name for a in node.names}
    return found


def origin(node: ast.expr, imported: dict[str, str]) -> str:
    """Return the full name of an expression's object, "" if the object was not imported."""
    if isinstance(node, ast.Attribute):
        of = origin(node.value, imported)
        return f"{of}.{node.attr}" if of else ""
    return imported.get(node.id, "") if isinstance(node, ast.Name) else ""


def alternatives(node: ast.expr) -> list[ast.expr]:
    """Return the classes of `C`, `(C, D)` and `C | D`."""
    if isinstance(node, ast.Tuple):
        return [part for one in node.elts for part in alternatives(one)]
    if isinstance(node, ast.BinOp):
        return [*alternatives(node.left), *alternatives(node.right)]
    return [node]


def classes_asked_for(nodes: Nodes) -> Iterator[tuple[ast.AST, str]]:
    """Return (where, class) of isinstance(), issubclass(), `type(x) is C` and class patterns.

    An imported class has its full name, any other its plain name.
    """
    imported = origins(nodes)
    for node in nodes:
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and last_name(node.func) in ("isinstance", "issubclass"):
            asked = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Call)
            and last_name(node.left.func) == "type"
        ):
            asked = node.comparators
        for one in asked:
            for part in alternatives(one):
                yield node, origin(part, imported) or last_name(part)


def texts_decided_on(nodes: Nodes) -> Iterator[tuple[ast.AST, str]]:
    """Return (where, text) of string constants that code decides by.

    These are keys of dictionaries, operands of comparisons (also inside a tuple, list or set),
    values of match, and subscripts.
    """
    for node in nodes:
        parts: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Del):
            parts = [node.slice]
        for part in parts:
            for one in getattr(part, "elts", [part]):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield node, one.value


def not_whole(nodes: Nodes) -> frozenset[int]:
    """Return the id() of the nodes of docstrings and of the constant parts of f-strings."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.append(id(first.value))
        elif isinstance(node, ast.JoinedStr):
            found += [id(part) for part in node.values]
    return frozenset(found)


def texts(nodes: Nodes) -> Iterator[tuple[ast.AST, str]]:
    """Return (where, text) of every string or bytes constant except docstrings and parts of
    f-strings."""
    passed_over = not_whole(nodes)
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in passed_over:
            if isinstance(node.value, str):
                yield node, node.value
            elif isinstance(node.value, bytes):
                yield node, node.value.decode("latin1")


@cache
def linux_symbols() -> frozenset[str]:
    """Return the names of all code and data in the kernels that this run has."""
    names: set[str] = set()
    for isa in sorted(modules_of("isa")) if EVERYTHING else (FIRST,):
        kernel = prepared(isa)
        if kernel is None:
            pytest.fail(f"no {isa} kernel is there to test with: run `make setup`")
        symbols = open_elf(kernel.debug).symbols
        rows = np.flatnonzero((symbols.kind <= _NAMED) & (symbols.section != 0))
        names.update(symbols.names_of(rows))
    return frozenset(names)


def known_to_others(nodes: Nodes) -> frozenset[int]:
    """Return the id() of texts that are QEMU monitor commands, some of which are symbols of Linux
    too."""
    return frozenset(
        id(node.args[0])
        for node in nodes
        if isinstance(node, ast.Call) and last_name(node.func) == "execute" and node.args
    )


def imported_by(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return full names of the modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


def is_linux(source: Source) -> bool:
    return source.within(LINUX) or source.within(KERNELS)


def looks_like_a_symbol(text: str) -> bool:
    """Return whether a text is an identifier but no plain word.

    Many words of D, options and Python are also names of kernel functions (panic, strlen, root).
    """
    return "_" in text and _IDENTIFIER.match(text) is not None


def same_member(name: str, source: Source) -> bool:
    """Return whether a class belongs to the machine (or system) whose source this is."""
    own = (source.path.relative_to(ROOT).with_suffix("")).parts
    return name.split(".")[1:3] == list(own[:2])


def show(found: list[str]) -> str:
    return "\n".join(["", *found])


def test_nothing_asks_what_kind_of_machine_or_system_it_has() -> None:
    kinds = ("kinst.machines.", "kinst.systems.")
    found = [
        f"{source.at(node)} asks whether something is a {name}"
        for source in sources()
        for node, name in classes_asked_for(source.nodes)
        if name.startswith(kinds) and not same_member(name, source)
    ]
    assert not found, show(found)


def test_only_the_isa_folder_decides_by_the_name_of_an_isa() -> None:
    isas = modules_of("isa")
    assert isas == set(ISAS)
    found = [
        f"{source.at(node)} decides by {name!r}"
        for source in sources()
        if not source.within(ROOT / "isa")
        for node, name in texts_decided_on(source.nodes)
        if name in isas
    ]
    assert not found, show(found)


@pytest.mark.parametrize("kind", ["machines", "systems", "providers", "render"])
def test_only_its_own_folder_decides_by_a_name_of(kind: str) -> None:
    if not (ROOT / kind).is_dir():
        pytest.fail(f"there is no kinst/{kind}")
    names = modules_of(kind)
    assert names
    if kind == "render":
        names -= modules_of("providers")  # dtrace is a renderer and a provider: report it once
    if kind == "providers":
        names -= {*VARIABLES}  # pid is a variable of D, too
    found = [
        f"{source.at(node)} decides by {name!r}, the name of one of kinst/{kind}"
        for source in sources()
        if not source.within(ROOT / kind)
        for node, name in texts_decided_on(source.nodes)
        if name in names
    ]
    assert not found, show(found)


@pytest.mark.drawn
def test_only_the_linux_system_names_symbols_of_linux() -> None:
    """D's subroutines and QEMU's monitor commands are no symbols, even if Linux has functions so
    named."""
    symbols = linux_symbols()
    named = {
        text
        for source in sources()
        if source.within(LINUX)
        for _, text in texts(source.nodes)
        if looks_like_a_symbol(text) and text in symbols
    }
    assert len(named) > 10, "kinst/systems/linux names no symbols: is the test still looking?"
    found = []
    for source in sources():
        commands = frozenset() if is_linux(source) else known_to_others(source.nodes)
        found += [
            f"{source.at(node)} names {text!r}"
            for node, text in texts(source.nodes)
            if not is_linux(source) and id(node) not in commands
            if looks_like_a_symbol(text) and text in symbols and text not in prototypes()
        ]
    assert not found, show(found)


def test_only_the_linux_system_knows_words_of_linux() -> None:
    found, known = [], set[str]()
    for path in sorted(p for p in ROOT.rglob("*") if p.suffix in (".py", ".d", ".sh")):
        own = path.is_relative_to(LINUX) or path.is_relative_to(KERNELS)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = WORDS.findall(line)
            known.update(words if own else ())
            if words and not own:
                found.append(f"{path.relative_to(ROOT.parent)}:{number} knows {', '.join(words)}")
    assert len(known) > 10, "kinst/systems/linux knows no word of Linux: is the test still looking?"
    assert not found, show(found)


def test_no_system_is_named_outside_its_folder() -> None:
    """No import names a system: it is found from the image, or is the host's."""
    found = [
        f"{source.at(node)} imports {name}"
        for source in sources()
        if not source.within(ROOT / "systems")
        for node in source.nodes
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in imported_by(node)
        if name.startswith("kinst.systems.")
    ]
    assert not found, show(found)


def test_only_providers_name_providers() -> None:
    """Descriptions and names of probes are made from names that the providers give."""
    names = modules_of("providers")
    found = [
        f"{source.at(node)} makes a probe of {argument.value!r}"
        for source in sources()
        if not source.within(ROOT / "providers")
        for node in source.nodes
        if isinstance(node, ast.Call) and last_name(node.func) in ("ProbePattern", "ProbeName")
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant) and argument.value in names
    ]
    assert not found, show(found)
    imported = [
        f"{source.at(node)} imports {node.module}"
        for source in sources()
        if not source.within(ROOT / "providers")
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kinst.providers.")
    ]
    assert not imported, show(imported)
