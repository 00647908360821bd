"""Commands that the documents show, with the output that they show below them.

A document is a page of Markdown, a man page, or the --help text of a command. Its blocks are:
- on a page of Markdown: each block of code without a language or with `console` or `sh`,
- in a man page: each display (.Bd -literal) and each line .Dl,
- in a help text: the indented lines that begin with `kinst`.

Only blocks with a command of this project count. In a block with lines that begin with "$ ", these
are the commands, and the lines below each one are its output. Otherwise every line is a command.

Tested by tests/test_page_examples.py and tests/vm/language/test_page_examples.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kinst.cli.commands import command
from kinst.cli.commands import commands as command_names
from kinst.cli.options import help_text

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "$ "
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
_DISPLAY = re.compile(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed$|^\.Dl ([^\n]*)$", re.M | re.S)
_OURS = re.compile(r"(?:^|[\n;(|] *|\bdo |\bsudo )(?:kinst|inlinecall) ")


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A command that a document shows.

    Attributes:
        text: the command, for a shell; it may have several lines.
        output: the output that the document shows below it; None if it shows none.
    """

    text: str
    output: str | None


@dataclass(frozen=True, slots=True)
class PageExample:
    """A block of commands that a document shows, to be typed one after another in one shell.

    Attributes:
        document: path of the document below the top folder, or the help command.
        number: the block's number among all blocks of the document, from 1.
    """

    document: str
    number: int
    commands: tuple[PageCommand, ...]

    def __str__(self) -> str:
        return f"{self.document} {self.number}"

    @property
    def text(self) -> str:
        """All commands, for a shell."""
        return "\n".join(one.text for one in self.commands)


def joined_lines(lines: list[str]) -> list[str]:
    """Return shell commands, each with its lines joined by newlines: a command goes on after a
    backslash at the end of a line, and while a quote is open."""
    commands: list[str] = []
    is_open = False
    for line in lines:
        if is_open:
            commands[-1] += f"\n{line}"
        elif line.strip():
            commands.append(line)
        else:
            continue
        try:
            shlex.split(commands[-1], comments=True)
            is_open = line.endswith("\\")
        except ValueError:  # a quote is open, or nothing follows the backslash
            is_open = True
    return commands


def typed_commands(block: str) -> list[PageCommand]:
    """Return the commands of a block of text with their output. Lines before the first "$ " are
    left out."""
    commands: list[PageCommand] = []
    lines = block.splitlines()
    while lines:
        line = lines.pop(0)
        if line.startswith(PROMPT):
            text = line.removeprefix(PROMPT)
            while lines and len(joined_lines([*text.split("\n"), lines[0]])) == 1:
                text += f"\n{lines.pop(0)}"
            commands.append(PageCommand(text, ""))
        elif commands:
            commands[-1] = PageCommand(commands[-1].text, f"{commands[-1].output}{line}\n")
    return commands


def commands_of(block: str) -> tuple[PageCommand, ...]:
    """Return the commands of a block. If the block has lines that begin with "$ ", only these are
    commands; otherwise each line is a command.
    """
    if re.search(r"^\$ ", block, re.M):
        return tuple(typed_commands(block))
    return tuple(PageCommand(text, None) for text in joined_lines(block.splitlines()))


def _of_blocks(document: str, blocks: list[str]) -> Iterator[PageExample]:
    for number, block in enumerate(blocks, start=1):
        if _OURS.search(block.replace(PROMPT, "")):
            yield PageExample(document, number, commands_of(block))


def blocks_of_page(text: str) -> list[str]:
    """Return the blocks of a page of Markdown that may have commands."""
    return [body for language, body in _FENCE.findall(text) if language in ("", "console", "sh")]


def blocks_of_man_page(text: str) -> list[str]:
    """Return the displays of a man page, as a reader sees them."""
    blocks = [display or line for display, line in _DISPLAY.findall(text)]
    return [re.sub(r"^\\&", "", block, flags=re.M).replace(r"\e", "\\") for block in blocks]


def blocks_of_help(text: str) -> list[str]:
    """Return the example commands of a help text, as one block; [] if there are none."""
    lines = re.findall(r"^  (kinst .*(?:\n {6,}.*)*)", text, re.M)
    return ["\n".join(lines)] if lines else []


def page_examples() -> list[PageExample]:
    """Return the examples of all documents, in the documents' order."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
    found: list[PageExample] = []
    for page in [*pages, ROOT / "examples/README.md"]:
        found += _of_blocks(str(page.relative_to(ROOT)), blocks_of_page(page.read_text()))
    for page in sorted(ROOT.glob("docs/*.[1-9]")):
        found += _of_blocks(str(page.relative_to(ROOT)), blocks_of_man_page(page.read_text()))
    helps = {f"kinst {name} --help": command(name).HELP for name in command_names()}
    for name, text in {"kinst --help": help_text(), **helps}.items():
        found += _of_blocks(name, blocks_of_help(text))
    return found
