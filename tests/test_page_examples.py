"""Commands of documents, from texts that are written out here."""

from __future__ import annotations

from tools.page_examples import (
    PageCommand,
    blocks_of_help,
    blocks_of_man_page,
    blocks_of_page,
    commands_of,
    page_examples,
)


def test_commands_of_a_session_have_their_output() -> None:
    block = "before\n$ one 'a\nb' \\\n    more\nx\n\ny\n$ two\n"
    assert commands_of(block) == (
        PageCommand("one 'a\nb' \\\n    more", "x\n\ny\n"),
        PageCommand("two", ""),
    )


def test_without_a_prompt_every_line_is_a_command() -> None:
    block = "kinst -n 'BEGIN\n{ }'   # isn't it\n\nkinst -l\n"
    assert commands_of(block) == (
        PageCommand("kinst -n 'BEGIN\n{ }'   # isn't it", None),
        PageCommand("kinst -l", None),
    )


def test_blocks_of_documents() -> None:
    languages = ["sh", "d", "", "d error D_X", "console"]
    page = "text\n".join(f"```{name}\n{name} 1\n```\n" for name in languages)
    assert blocks_of_page(page) == ["sh 1\n", " 1\n", "console 1\n"]
    man = ".Dl kinst -l\n.Bd -literal -offset indent\n$ kinst x \\e\n  y\n\\&...\n.Ed\n"
    assert blocks_of_man_page(man) == ["kinst -l", "$ kinst x \\\n  y\n...\n"]
    shown = (
        "usage: kinst x\n\nWhat?\n  kinst x \\\n      y\nAnd?\n  kinst z 'a\n          b'\n"
        "\n  -n X  a\n"
    )
    assert [one.text for one in commands_of(blocks_of_help(shown)[0])] == [
        "kinst x \\\n      y",
        "kinst z 'a\n          b'",
    ]


def test_each_kind_of_document_has_examples() -> None:
    documents = {one.document for one in page_examples()}
    assert {"README.md", "docs/views.md", "docs/kinst.1", "kinst --help", "kinst top --help"} <= (
        documents
    )
