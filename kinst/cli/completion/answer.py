"""Answer to a shell that asks what can be inserted at the cursor.

    kinst --complete bash BREAKS LISTING LINE    LINE: the command line up to the cursor;
                                                 BREAKS: the value of bash's COMP_WORDBREAKS;
                                                 LISTING: 1 if bash shows the answer as a list, 0 if
                                                 it may insert a completion
    kinst --complete zsh CURRENT WORD...         CURRENT: the word at the cursor; WORD...: the words
                                                 before CURRENT

The first line of the answer is `files`, `folders` or `words`. After `files` or `folders` nothing
follows: the shell completes these itself. After `words`, bash gets a line for each completion.

zsh gets a number after `words`: how many characters at the start of CURRENT completions do not
replace. Then it gets a line for each completion, with three fields, separated by tabs: the
completion, its meaning, and 1 if a space can follow the completion.

Tested by tests/cli/test_completion.py and tests/cli/test_completion_shells.py.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from kinst.cli.completion.index import FunctionRow, NameIndex, summed
from kinst.cli.completion.line import TypedLine, split
from kinst.cli.completion.places import names_of, names_stamp, words_file, words_stamp
from kinst.cli.completion.program import cursor

MOST_NAMES = 200  # most names to offer; if there are more, common beginnings are offered
MOST_CODE = 1 << 16  # most bytes of a function to disassemble
DESCRIBED = {"-P": 1, "-m": 2, "-f": 3, "-n": 4}  # number of parts of the option's description
# Beginnings of the value names (in help texts) of options that take files and folders.
FILES, FOLDERS = ("FILE",), ("DIR", "FOLDER")


@dataclass(frozen=True, slots=True)
class Offer:
    """A completion that can be inserted.

    Attributes:
        text: replaces the current word from character Answer.kept on.
        help: meaning of the completion, for the user.
        whole: whether the completion completes the word, so that a space can follow.
    """

    text: str
    help: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Completions for a cursor position.

    Attributes:
        kind: "words" for `offers`; "files" or "folders" if the shell is to complete these.
        kept: number of characters at the start of the current word that no offer replaces.
        offers: the completions.
    """

    kind: str
    kept: int = 0
    offers: Sequence[Offer] = ()


NOTHING = Answer("words")


def answer(words: Sequence[str]) -> int:
    """Print the answer to a shell, and return the exit status. After an error print nothing and
    return 1.

    Args:
        words: the arguments after --complete.
    """
    try:
        shell, *rest = words
        text = _for_bash(*rest) if shell == "bash" else _for_zsh(rest[0], rest[1:])
    except Exception:  # a message would appear in the middle of the command line
        return 1
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    sys.stdout.write(text)
    return 0


def _for_bash(breaks: str, listing: str, text: str) -> str:
    line = split(text, breaks)
    found = Completer(line).answer()
    rows = [f"{found.kind}\n"]
    shown = listing == "1"
    start = "" if shown else line.current[line.replaced : found.kept]
    cut = 0 if shown else max(0, line.replaced - found.kept)
    several = len(found.offers) > 1
    width = max((len(one.text) for one in found.offers), default=0)
    for one in found.offers:
        value = start + one.text[cut:]
        about = f"  {'':{width - len(one.text)}}{one.help}" if one.help else ""
        if line.quote and not several:
            # bash closes the quotes after a single completion, so give it a second one.
            rows += [f"{value}\n", f"{value}{about or '  '}\n"]
        elif several:
            rows.append(f"{value}{about}\n")
        else:
            rows.append(f"{value}{' ' if one.whole else ''}\n")
    return "".join(rows)


def _for_zsh(current: str, words: Sequence[str]) -> str:
    found = Completer(TypedLine(tuple(words), current)).answer()
    rows = [f"{found.kind}\n{found.kept}\n"]
    rows += [f"{one.text}\t{one.help}\t{'1' if one.whole else ''}\n" for one in found.offers]
    return "".join(rows)


class Completer:
    """Finder of the completions for one command line."""

    def __init__(self, line: TypedLine) -> None:
        self._line = line
        self._words = self._known_words()
        before = line.words[1:]
        self._command = before[0] if before and before[0] in self._words["commands"] else ""
        self._options: dict[str, dict[str, Any]] = {}
        own = self._words["commands"][self._command]["options"] if self._command else []
        for one in (*own, *self._words["options"]):
            self._options.setdefault(one["name"], one)
        self._given = dict(self._values(before))

    @staticmethod
    def _known_words() -> dict[str, Any]:
        path, stamp = words_file(), words_stamp()
        try:
            known = summed(path.read_bytes())
            if known["stamp"] == stamp:
                return known
        except (OSError, ValueError, KeyError):
            pass
        made: dict[str, Any] = _prepare().save_words(path, stamp)
        return made

    def _takes(self, name: str) -> str:
        return str(self._options[name]["takes"]) if name in self._options else ""

    def _takes_next(self, name: str) -> bool:
        """Return whether the word after an option is the option's value."""
        return bool(self._takes(name)) and not self._options[name]["optional"]

    def _values(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (option, value) for each option with a value among these words."""
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=")
            if equals and word.startswith("--"):
                yield name, value
            elif self._takes_next(word):
                yield word, next(left, "")

    def answer(self) -> Answer:
        """Return what can be inserted at the cursor."""
        current, before = self._line.current, self._line.words
        name, equals, value = current.partition("=")
        if equals and current.startswith("--"):
            return self._after(self._value(name, value), len(name) + 1)
        if len(before) > 1 and self._takes_next(before[-1]):
            return self._value(before[-1], current)
        if current[:2] in DESCRIBED and len(current) > 2:
            return self._after(self._value(current[:2], current[2:]), 2)
        if current.startswith("-"):
            return Answer("words", 0, [self._option(one) for one in self._options.values()
                                       if one["name"].startswith(current)])  # fmt: skip
        if len(before) == 1:
            known = self._words["commands"].items()
            found = [Offer(n, one["help"], True) for n, one in known if n.startswith(current)]
            return Answer("words", 0, found)
        return Answer("files") if self._command else NOTHING

    @staticmethod
    def _after(found: Answer, start: int) -> Answer:
        return Answer(found.kind, found.kept + start, found.offers)

    def _option(self, one: Mapping[str, Any]) -> Offer:
        long = one["name"].startswith("--") and one["takes"] and not one["optional"]
        return Offer(one["name"] + "=" * bool(long), one["help"], not long)

    # Values of options

    def _value(self, option: str, value: str) -> Answer:
        if option in DESCRIBED:
            return self._program(value, DESCRIBED[option])
        if option == "-x":
            names = self._words["d_options"]
            return _offers([Offer(n) for n in names if n.startswith(value)])
        known = self._words["values"].get(option)
        if option == "--vm":
            known = _isas()
        elif option == "--module":
            known = (self._names.about["modules"] if self._names else ()) if value else ()
        if known is not None:
            return _offers([Offer(n, "", True) for n in known if n.startswith(value)])
        if option == "--kernel" and "/" not in value:
            found = [n for n in ("list", *self._kernels()) if n.startswith(value)]
            if found:
                return _offers([Offer(n, "", True) for n in found])
        if option in ("--root", "--rw", "--build"):
            return Answer("folders")
        takes = self._takes(option)
        if takes.startswith(FOLDERS):
            return Answer("folders")
        files = takes.startswith(FILES) or option in ("-s", "-I", "--kernel", "--attach", "-c")
        return Answer("files") if files else NOTHING

    def _isa(self) -> str:
        return self._given.get("--vm", "") or "amd64"

    def _kernels(self) -> list[str]:
        """Return the releases of the fetched kernels, for the ISA that the command line chooses."""
        folder = words_file().parents[1] / "kernels" / self._isa()
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    # Programs

    def _program(self, text: str, parts: int) -> Answer:
        at = cursor(text)
        kept = len(text) - len(at.typed)
        if not at.described:
            return self._after(self._expression(at.typed), kept) if at.typed else NOTHING
        return self._after(self._description(at.typed, parts), kept)

    def _expression(self, typed: str) -> Answer:
        words: dict[str, str] = dict(self._words["words"])
        if typed.startswith("R_") and self._names:
            words.update(dict.fromkeys(self._names.about["registers"], "register, in regs[]"))
        return _offers([Offer(n, words[n]) for n in sorted(words) if n.startswith(typed)])

    def _description(self, typed: str, parts: int) -> Answer:
        *before, last = typed.split(":")
        start = len(typed) - len(last)
        if not before:
            return self._first(last, parts)
        if before[0] not in self._words["of_kernel"]:
            fixed = [n for n in self._words["probes"] if n.startswith(typed)]
            return _offers([Offer(n[start:], "", True) for n in fixed], start)
        if len(before) == 1 and parts > 1:
            names = ["vmlinux", *(self._names.about["modules"] if last and self._names else ())]
            found = [Offer(f"{n}:", "module") for n in names if n.startswith(last)]
        elif len(before) == 2 and parts > 2:
            found = self._functions(before[0], last)
        elif len(before) == 3 and parts > 3:
            found = list(self._places(before[0], before[2], last))
        else:
            return NOTHING
        return _offers(found, start)

    def _first(self, typed: str, parts: int) -> Answer:
        of_kernel = self._words["of_kernel"]
        found = []
        for name, usage in self._words["providers"].items():
            rest = "" if parts == 1 else "::" if name in of_kernel else ":"
            if name.startswith(typed):
                found.append(Offer(name + rest, usage))
        if parts == 4:
            alone = (n.rpartition(":")[2] for n in self._words["probes"])
            found += [Offer(n) for n in dict.fromkeys(alone) if typed and n.startswith(typed)]
        return _offers(found)

    def _functions(self, provider: str, typed: str) -> list[Offer]:
        if self._names is None:
            return []
        kinds = "fib" if provider in self._words["by_offset"] else "fb"
        names = self._names.names(typed, kinds)
        if len(names) <= MOST_NAMES:
            rows = (row for row in self._names.begin_with(typed) if row.kind in kinds)
            return [Offer(f"{row.name}:", _said(row)) for row in rows]
        # Offer beginnings of names: up to the end of the next word ("_" or "." ends a word).
        stem_of = re.compile(rf".{{{len(typed)}}}[^_.]*[_.]*").match
        counts = Counter(found.group() for found in map(stem_of, names) if found)
        if len(counts) > MOST_NAMES:
            counts = Counter(name[: len(typed) + 1] for name in names)
        stems = [(s, n) for s, n in counts.items() if n > 1 or len(counts) <= MOST_NAMES]
        return [Offer(stem, f"{n} functions") for stem, n in stems]

    def _places(self, provider: str, function: str, typed: str) -> Iterator[Offer]:
        row = self._names.find(function) if self._names else None
        if row is None:
            return
        for name, what in (("entry", "where it begins"), ("return", "where it is left")):
            if name.startswith(typed):
                yield Offer(name, what, True)
        if (
            provider in self._words["by_offset"]
            and row.size
            and not typed.startswith(("e", "r", "@"))
        ):
            for offset, text in self._disassembled(row):
                if str(offset).startswith(typed):
                    yield Offer(str(offset), text, True)

    def _disassembled(self, row: FunctionRow) -> Iterator[tuple[int, str]]:
        assert self._names is not None
        about = self._names.about
        if not about["disassembly"]:
            return iter(())
        with open(about["debug"], "rb") as file:
            code = os.pread(file.fileno(), min(row.size, MOST_CODE), row.offset)
        plain = import_module("kinst.isa._plain")
        rules = {n: tuple(v) if isinstance(v, list) else v for n, v in about["disassembly"].items()}
        rows: Iterator[tuple[int, str]] = plain.disassemble(
            plain.PlainDisassembly(**rules), code, row.address
        )
        return rows

    # The kernel's index

    @property
    def _names(self) -> NameIndex | None:
        """Index of the names of the kernel that the command line chooses; None if the kernel's
        files are not on this host."""
        if not hasattr(self, "_found"):
            self._found = self._open_names()
        return self._found

    def _open_names(self) -> NameIndex | None:
        path, made_of = names_of(self._given)
        return _fresh(path) or (_fresh(path) if _prepare().save_names(path, *made_of) else None)


def _fresh(path: Path) -> NameIndex | None:
    """Return the index in a file; None if it does not exist, is damaged, or was made from a file
    that has changed."""
    try:
        index = NameIndex(path)
        about = index.about
        made_of = Path(about["debug"]), about["isa"], about["inlined"]
        fresh = about["stamp"] == names_stamp(*made_of)
    except (OSError, ValueError, KeyError):
        return None
    return index if fresh else None


def _prepare() -> Any:
    """Return the module that makes words and indexes. It is imported only here, because it loads
    all of kinst."""
    return import_module("kinst.cli.completion.prepare")


def _offers(found: Sequence[Offer], kept: int = 0) -> Answer:
    return Answer("words", kept, found)


def _said(row: FunctionRow) -> str:
    if row.kind == "i":
        return "inlined"
    return f"{row.size} bytes" + (", inlined too" if row.kind == "b" else "")


def _isas() -> Sequence[str]:
    """Return the names of the instruction sets for which kinst can fetch a Debian kernel."""
    folder = Path(__file__).parents[2] / "isa"
    return sorted(path.parent.name for path in folder.glob("*/debian.py"))
