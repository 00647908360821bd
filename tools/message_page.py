"""Write docs/messages.md, the list of all messages of kinst, from kinst's source.

    message_page.py           write the file
    message_page.py --check   exit with status 1 if the file is outdated

An error is a call of KinstError or a subclass. A message is a call that hands text to say(),
progress() and the like, or makes a Message. A refusal is a call of Refused. A function that passes
one of its parameters to such a call as the text counts as well.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/messages.md"
BASE = "KinstError"
SPEAKERS = {
    "say": "message", "_say": "message", "detail": "message, with -v", "leave_out": "message",
    "Message": "message", "progress": "progress", "_progress": "progress", "Refused": "refusal",
}  # fmt: skip
MOST = 110  # most characters of a condition to show

HEAD = """\
# Messages

Every message of kinst, by the module that it comes from: its text, its hint in parentheses, and
when it appears. `{...}` stands for a value. An error ends the command with status 1, a `UsageError`
with 2, a `GoneError` with the status of what ended the guest; a `DError` names the place in the D
program. A refusal is why an instruction is not planted, as `kinst -l -v` shows it.

This page is written by `make docs` from the source.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class FoundMessage:
    """A message that the source contains."""

    kind: str
    text: str
    hint: str
    place: str
    condition: str

    def line(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        when = f", {self.condition}" if self.condition else ""
        return f"- {self.kind}: **{self.text}**{hint}  \n  `{self.place}`{when}\n"


@dataclass(frozen=True)
class Wrapper:
    """A function that makes a message from one of its parameters.

    Attributes:
        kind: kind of the message.
        position: position of the text among the arguments of a call.
        parameter: name of the parameter with the text.
    """

    kind: str
    position: int
    parameter: str


def error_names(trees: Mapping[Path, ast.Module]) -> frozenset[str]:
    """Return the names of KinstError and its subclasses, which are classes of modules."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    names = {BASE}
    while more := {name for name, of in bases.items() if of & names} - names:
        names |= more
    return frozenset(names)


def name_of(function: ast.expr) -> str:
    """Return the last part of a called name: "say" for report.say."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument of a call; None if the call does not give it.

    Args:
        call: the call.
        position: index among the positional arguments.
        name: name of the parameter.
    """
    if position < len(call.args):
        return call.args[position]
    return next((word.value for word in call.keywords if word.arg == name), None)


class Reader:
    """Finder of the messages in one module."""

    def __init__(self, tree: ast.Module, errors: frozenset[str]) -> None:
        self._errors = errors
        self._parents: dict[ast.AST, ast.AST] = {}
        self._calls: list[ast.Call] = []
        nodes: list[ast.AST] = [tree]
        for node in nodes:  # the list grows, as in ast.walk()
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
                nodes.append(child)
            if isinstance(node, ast.Call):
                self._calls.append(node)
        self._wrappers = dict(self._find_wrappers())

    def messages(self) -> Iterator[FoundMessage]:
        """Yield the messages in the order of the source."""
        for call in sorted(self._calls, key=lambda node: (node.lineno, node.col_offset)):
            kind, text, hint = self._of_call(call)
            if text is not None and self._is_text(text, call):
                for one in self._texts(text, call):
                    hints = self._texts(hint, call) if hint is not None else []
                    said = " | ".join(filter(None, hints))
                    place, condition = self._place(call), self._condition(call)
                    yield FoundMessage(kind, _plain(one), _plain(said), place, condition)

    def _of_call(self, call: ast.Call) -> tuple[str, ast.expr | None, ast.expr | None]:
        """Return the kind, the text and the hint of the message that a call makes; the text is None
        if the call makes no message."""
        name = name_of(call.func)
        if name in self._errors:
            hinted = 3 if "DError" in name else 1
            return name, argument(call, 0, "message"), argument(call, hinted, "hint")
        if name == "Rule":
            return "UsageError", argument(call, 1, "message"), argument(call, 2, "hint")
        if name == "Option":
            return "refused option", argument(call, len(call.args), "refused"), None
        if name in SPEAKERS:
            return SPEAKERS[name], argument(call, 0, "text"), None
        if name in self._wrappers:
            wrapper = self._wrappers[name]
            text = argument(call, wrapper.position, wrapper.parameter)
            return wrapper.kind, text, argument(call, len(call.args), "hint")
        return "", None, None

    def _find_wrappers(self) -> Iterator[tuple[str, Wrapper]]:
        for call in self._calls:
            name = name_of(call.func)
            if name not in self._errors and name not in SPEAKERS:
                continue
            text, function = argument(call, 0, "message"), self._function(call)
            if isinstance(text, ast.Name) and function is not None:
                names = [one.arg for one in function.args.args]
                if text.id in names:
                    position = names.index(text.id) - (names[0] == "self")
                    kind = SPEAKERS.get(name, name)
                    yield function.name, Wrapper(kind, position, text.id)

    def _function(self, node: ast.AST) -> Function | None:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, Function):
                return node
        return None

    def _is_text(self, node: ast.expr, call: ast.Call) -> bool:
        """Return whether an expression contains words, rather than only values."""
        return any(any(c.isalpha() for c in _words(one)) for one in self._texts(node, call))

    def _texts(self, node: ast.expr, call: ast.Call) -> list[str]:
        """Return the texts that an expression may yield, with values as {EXPRESSION}."""
        if isinstance(node, ast.Constant):
            return [str(node.value)] if isinstance(node.value, str) else [""]
        if isinstance(node, ast.JoinedStr):
            return ["".join(self._part(part) for part in node.values)]
        if isinstance(node, ast.IfExp):
            return [*self._texts(node.body, call), *self._texts(node.orelse, call)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            pairs = [(a, b) for a in self._texts(node.left, call)
                     for b in self._texts(node.right, call)]  # fmt: skip
            return [a + b for a, b in pairs]
        if isinstance(node, ast.Name):
            values = list(self._assigned(node.id, call))
            texts = ast.Constant | ast.JoinedStr | ast.IfExp
            if values and all(isinstance(value, texts) for value in values):
                return [text for value in values for text in self._texts(value, call)]
        return [f"{{{ast.unparse(node)}}}"]

    @staticmethod
    def _part(part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        match part.value:  # a number with its noun: kinst.core.units.counted()
            case ast.Call(ast.Name("counted"), [number, ast.Constant(str(one)), *several]):
                nouns = [ast.literal_eval(node) for node in several] or [f"{one}s"]
                return f"{{{ast.unparse(number)}}} {nouns[0]}"
        return f"{{{ast.unparse(part.value)}}}"

    def _assigned(self, name: str, call: ast.Call) -> Iterator[ast.expr]:
        """Yield the values that a local variable may have at a call: that of the last assignment
        before the call and, if the assignment is in an `if` statement, those that the statement
        assigns otherwise."""
        function = self._function(call)
        before = [
            node
            for node in (ast.walk(function) if function is not None else ())
            if isinstance(node, ast.Assign) and node.lineno < call.lineno
            and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
        ]  # fmt: skip
        if before:
            last = max(before, key=lambda node: node.lineno)
            parent = self._parents[last]
            for node in before:
                joined = isinstance(parent, ast.If) and self._parents[node] is parent
                if node is last or joined:
                    yield node.value

    def _place(self, node: ast.AST) -> str:
        names: list[str] = []
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.ClassDef | Function):
                names.insert(0, node.name)
        return ".".join(names) or "module"

    def _condition(self, node: ast.AST) -> str:
        """Return the innermost condition under which a call is reached."""
        while node in self._parents:
            child, node = node, self._parents[node]
            if isinstance(node, ast.If | ast.IfExp):
                body = node.body if isinstance(node.body, list) else [node.body]
                if child is not node.test:
                    return f"{'if' if child in body else 'unless'} `{_short(node.test)}`"
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                return f"on `{_short(node.type)}`"
            if isinstance(node, Function):
                return ""
        return ""


def _words(text: str) -> str:
    """Return the words of a message, without its values."""
    out, depth = "", 0
    for c in text:
        depth += (c == "{") - (c == "}")
        out += c if not depth and c != "}" else ""
    return out


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("*", r"\*").replace("<", r"\<").replace("|", r"\|")


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= MOST else f"{text[: MOST - 3]}..."


def found_messages() -> dict[str, list[FoundMessage]]:
    """Return the messages of each module, by the module's path relative to the repository."""
    paths = sorted((ROOT / "kinst").rglob("*.py"))
    collects = gc.isenabled()
    gc.disable()  # the nodes all survive: looking through them again and again costs two seconds
    trees = {path: ast.parse(path.read_text()) for path in paths}
    if collects:
        gc.enable()
    errors = error_names(trees)
    found = {
        path.relative_to(ROOT).as_posix(): list(dict.fromkeys(Reader(tree, errors).messages()))
        for path, tree in trees.items()
    }
    return {path: messages for path, messages in found.items() if messages}


def page(found: Mapping[str, Sequence[FoundMessage]]) -> str:
    """Return the text of docs/messages.md, which lists the found messages of each module."""
    parts: list[str] = [HEAD]
    for path, messages in found.items():
        parts.append(f"\n## {path}\n\n" + "".join(message.line() for message in messages))
    return "".join(parts)


def main(words: Sequence[str]) -> int:
    if "--check" in words:
        return int(not PAGE.exists() or PAGE.read_text() != page(found_messages()))
    PAGE.write_text(page(found_messages()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
