"""docs/messages.md has every message of kinst."""

from __future__ import annotations

import re

import pytest

from tools.message_page import PAGE, FoundMessage, found_messages, page

Messages = dict[str, list[FoundMessage]]


@pytest.fixture(scope="module")
def messages() -> Messages:
    return found_messages()


def test_the_page_of_messages_is_up_to_date(messages: Messages) -> None:
    assert PAGE.read_text() == page(messages), (
        "docs/messages.md is out of date: `make docs` renews it"
    )


def test_messages_of_each_kind_are_found(messages: Messages) -> None:
    """The list has a known message of each kind of statement that makes messages in the source."""
    found = {(one.kind, one.text) for module in messages.values() for one in module}
    kinds = {kind for kind, _ in found}
    assert {"KinstError", "DError", "TargetError", "UsageError", "AbsentError", "message"} <= kinds
    assert {"progress", "refusal", "message, with -v", "refused option"} <= kinds
    assert ("KinstError", "this machine is closed") in found
    assert ("UsageError", "{given} and {beside} both say which kernel") in found
    assert any(kind == "DError" and text.startswith("syntax error near") for kind, text in found)


def test_messages_are_one_line_that_says_something(messages: Messages) -> None:
    for module in messages.values():
        for one in module:
            assert "\n" not in one.text + one.hint
            assert re.search("[a-z]", one.text), one
