"""docs/messages.md has every message of kinst."""

from __future__ import annotations

import re

from tools.message_page import PAGE, found_messages, page


def test_the_page_of_messages_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "docs/messages.md is out of date: `make docs` renews it"


def test_messages_of_each_kind_are_found() -> None:
    """The list has a known message of each kind of statement that makes messages in the source."""
    found = {(one.kind, one.text) for messages in found_messages().values() for one in messages}
    kinds = {kind for kind, _ in found}
    assert {"KinstError", "DError", "TargetError", "UsageError", "AbsentError", "message"} <= kinds
    assert {"progress", "refusal", "message, with -v", "refused option"} <= kinds
    assert ("KinstError", "this machine is closed") in found
    assert ("UsageError", "{given} and {beside} both say which kernel") in found
    assert any(kind == "DError" and text.startswith("syntax error near") for kind, text in found)


def test_messages_are_one_line_that_says_something() -> None:
    for messages in found_messages().values():
        for one in messages:
            assert "\n" not in one.text + one.hint
            assert re.search("[a-z]", one.text), one
