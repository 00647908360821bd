"""Parsing and checking of a command line happens once, and again only for changed parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kinst.core.probe import ProgramText
from kinst.dlang import typed
from kinst.dlang.check import checker
from kinst.dlang.walk import find
from kinst.isa import load
from kinst.session import parse
from kinst.session.check import with_programs
from kinst.session.compile import compile_request
from kinst.session.compiled import Compiled
from kinst.session.parse import parse_request
from kinst.session.request import Request

ISA = load("amd64")


@contextmanager
def counted(patch: pytest.MonkeyPatch, module: object, name: str) -> Iterator[list[str]]:
    """Count the calls of a function, each by its first argument."""
    calls: list[str] = []
    plain = getattr(module, name)

    def counting(*args: object, **options: object) -> object:
        calls.append(str(args[0]))
        return plain(*args, **options)

    with patch.context() as context:
        context.setattr(module, name, counting)
        yield calls


def request(*texts: str) -> Request:
    return Request(programs=tuple(ProgramText("n", text, "-n") for text in texts))


def values(compiled: Compiled) -> list[int]:
    return [constant.value for constant in find(compiled.program, typed.IntConst)]


def test_no_target_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("BEGIN { trace(1); }")
    before = compile_request(asked, ISA, 0)
    with counted(monkeypatch, parse, "parse_option") as parsed:
        programs = parse_request(asked, 4711, before=before.programs)
    assert not parsed
    with counted(monkeypatch, checker, "_checked") as checked:
        assert with_programs(asked, before, programs, ISA) is before
    assert not checked


def test_only_texts_with_target_are_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("BEGIN { trace(1); }", "END /pid == $target/ { trace(2); }")
    before = compile_request(asked, ISA, 0)
    with counted(monkeypatch, parse, "parse_option") as parsed:
        programs = parse_request(asked, 4711, before=before.programs)
    assert len(parsed) == 1
    after = with_programs(asked, before, programs, ISA)
    assert after.programs[0] is before.programs[0]
    assert values(before) == [1, 0, 2]
    assert values(after) == [1, 4711, 2]
    assert after.program == compile_request(asked, ISA, 4711).program


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("BEGIN { a[1] = 2; x = a[1]; }", 1),
        ("BEGIN { printa(@a); } END { @a[pid] = count(); @a[timestamp] = count(); }", 1),
        ('BEGIN { a["x"] = 2; a["long"] = 3; }', 2),  # its key is wider than the first one's
        ("BEGIN { a[1] = 2; } END { a[timestamp] = 3; }", 2),
    ],
)
def test_clauses_are_checked_once(text: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch, checker, "_checked") as checked:
        compile_request(request(text), ISA, 0)
    assert len(checked) == passes
