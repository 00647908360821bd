"""Predicates that exclude processes are added to probes of the kernel, and to no others."""

from __future__ import annotations

from kinst.dlang.api import parse_option
from kinst.dlang.syntax.unparse import unparse
from kinst.session.whose import in_command, not_in_process

PROGRAM = """
BEGIN, kinst::f:0 { trace(1); }
tick-1s { trace(2); }
profile-99 { trace(3); }
fbt::g:entry /arg0 || arg1/ { trace(4); }
"""


def compact(text: str) -> str:
    return " ".join(text.split())


def test_the_command_and_its_descendants() -> None:
    found = compact(unparse(in_command(parse_option("n", PROGRAM), 7)))
    assert found == compact("""
        :::BEGIN { trace(1); }
        kinst::f:0 /progenyof(7)/ { trace(1); }
        :::tick-1s { trace(2); }
        :::profile-99 /progenyof(7)/ { trace(3); }
        fbt::g:entry /progenyof(7) && (arg0 || arg1)/ { trace(4); }
    """)


def test_without_one_process() -> None:
    found = compact(unparse(not_in_process(parse_option("n", "kinst::f:0 /arg0/ { }"), 9)))
    assert found == "kinst::f:0 /pid != 9 && arg0/ { }"
