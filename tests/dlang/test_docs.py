"""docs/d.md matches the code: its examples compile, its tables are the tables."""

from __future__ import annotations

import re

import pytest

from kinst.codegen.subroutines import prototypes
from kinst.core.errors import DError
from kinst.dlang.api import Environment, compile_text
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.d_options import NAMES
from kinst.dlang.vocabulary.type_names import TYPEDEFS
from kinst.providers import interfaces
from kinst.systems import of_host
from tests import ROOT

TEXT = (ROOT / "docs/d.md").read_text()
BLOCKS = re.findall(r"^```d(?: error (\w+))?\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
ENVIRONMENT = Environment(
    {"R_RAX": 14, "R_RDI": 8, "R_RSI": 9, "R_RDX": 12},
    256,
    providers=interfaces(),
    dialect=of_host().dialect,
    subroutines=prototypes(),
)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize(("tag", "text"), BLOCKS)
def test_examples(tag: str, text: str) -> None:
    if not tag:
        compile_text(text, "d.md", None, ENVIRONMENT, script=True)
        return
    with pytest.raises(DError) as found:
        compile_text(text, "d.md", None, ENVIRONMENT, script=True)
    assert found.value.tag == tag


def test_the_table_of_builtins() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", TEXT, re.MULTILINE))
    known = {n: str(v.type) for n, v in builtins.VARIABLES.items() if not n.startswith("arg")}
    assert rows == known


def test_every_option_and_type_is_named() -> None:
    options = set(re.findall(r"[a-z]+", TEXT.split("## Options")[1].split("## ")[0]))
    assert options >= NAMES
    assert {"u8", "u64", "size_t", "pid_t", "bool"} <= TYPEDEFS


def test_every_function_and_action_is_named() -> None:
    for name in builtins.CALLABLE:
        assert f"{name}(" in TEXT
