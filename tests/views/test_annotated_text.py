"""Annotations as text, against pages that were laid out by hand."""

from __future__ import annotations

import re
from dataclasses import replace

from kinst.views.annotated_text import Page, annotated_text, measured
from kinst.views.annotation import SourceSpot, beginning, fits
from tests.views.made_code import annotated

BY_ADDRESS = """\
made  fs/made.c:10  entered 10 times, executed 99 instructions in 4 of 4 blocks
count   share       instruction                              source
   10   10.1%   +0  push rbp                                 10 {
                    ┌ check() inlined                        12     if (check(a))
   10   10.1%   +4  │ test edi, edi                          check.h:5 return a != 0;
   10   10.1%   +8  │ je +32  taken 70.0%
               -- 1 ----------------------------------------
    3    3.0%  +12  mov eax, 1                               13         return helper();
    -          +16  call helper                              not planted: its bytes change at run time
    3    3.0%  +20  ret                                      17 }
               -- 2 from 0 (7), 2 (21) ---------------------
   28   28.3%  +32  dec edi                                  15     if (--a) goto again;
   28   28.3%  +36  jne +32  taken 75.0%
               -- 3 ----------------------------------------
    7    7.1%  +40  ret                                      17 }
"""  # noqa: E501
BY_SOURCE = """\
made  fs/made.c:10  entered 10 times, executed 99 instructions in 4 of 4 blocks
count   share  quantize(a..       instruction                              source
   10   10.1%                                                              10 {
   10   10.1%       1 █▁▄ 8   +0  push rbp
   10   20.2%                                                              12     if (check(a))
                                  ┌ check() inlined                        12     if (check(a))
   10   20.2%                                                              check.h:5 return a != 0;
   10   10.1%         1,234   +4  │ test edi, edi
   10   10.1%                 +8  │ je +32  taken 70.0%
    3    3.0%                                                              13         return helper();
    3    3.0%                +12  mov eax, 1
    -                        +16  call helper                              not planted: its bytes change at run time
   28   56.6%                                                              15     if (--a) goto again;
   28   28.3%                +32  dec edi
   28   28.3%                +36  jne +32  taken 75.0%
    7   10.1%                                                              17 }
    3    3.0%                +20  ret
    7    7.1%                +40  ret
"""  # noqa: E501


def test_by_address() -> None:
    assert annotated_text([annotated()], Page(110)) == BY_ADDRESS


def test_by_source_with_a_measure() -> None:
    page = Page(110, order="source")
    assert annotated_text([annotated("quantize(arg0)")], page) == BY_SOURCE


def test_colours_change_nothing_else() -> None:
    coloured = annotated_text([annotated()], Page(110, colours=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == BY_ADDRESS
    hot = next(line for line in coloured.splitlines() if "dec edi" in line)
    cold = next(line for line in coloured.splitlines() if "mov eax" in line)
    assert hot.startswith("\x1b[1;31m") and not cold.startswith("\x1b[1;31m")


def test_lines_fit_the_page() -> None:
    narrow = annotated_text([annotated()], Page(80)).splitlines()
    assert max(len(line) for line in narrow if "not planted" not in line) <= 80


def test_without_source_text() -> None:
    one = annotated()
    bare = type(one)(one.code, one.flow, one.reasons)
    text = annotated_text([bare], Page(110))
    assert "mov eax, 1                               fs/made.c:13\n" in text
    assert "test edi, edi                          include/check.h:5\n" in text


def test_a_function_whose_first_instructions_have_no_line() -> None:
    one = annotated()
    first, *rest = one.code.blocks
    bare = replace(first.instructions[0], place=None)
    blocks = (replace(first, instructions=(bare, *first.instructions[1:])), *rest)
    code = replace(one.code, blocks=blocks)
    assert beginning(code) == SourceSpot("fs/made.c", 12)
    assert annotated_text([replace(one, code=code)], Page(110)).startswith("made  fs/made.c:12  ")


def test_a_distribution_without_data_and_a_number() -> None:
    assert measured(()) == "" and measured(-5000) == "-5,000" and measured(None) == ""


def test_source_of_another_kernel_is_known_by_its_names() -> None:
    one = annotated()
    assert fits(one.sources, [one.code])
    shifted = {"fs/made.c": ["", *[""] * 20, *one.sources["fs/made.c"]]}
    assert not fits(shifted, [one.code])
    assert fits({}, [one.code])
