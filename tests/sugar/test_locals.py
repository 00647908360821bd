"""locals->NAME in the syntax tree: clauses split by the places of variables, refusals and their
messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kinst.core.dtypes import INT, UINT64, ArrayType, DType, Member, PointerType, StructType
from kinst.core.errors import DError, KinstError
from kinst.core.locals import Local, LocalPiece
from kinst.core.probe import ProbePattern
from kinst.dlang.api import parse_text
from kinst.dlang.syntax.unparse import unparse
from kinst.sugar.locals import Expansion, MatchedInstruction, expand_locals, has_locals, provisional


class Members:
    def members(self, struct: StructType) -> Sequence[Member]:
        return (Member("a", INT, 0), Member("b", INT, 32))


class Quarters:
    def members(self, struct: StructType) -> Sequence[Member]:
        return tuple(Member(name, INT, 32 * k) for k, name in enumerate("abcd"))


PAIR = StructType("struct", "pair", 8, "test 1", Members())
RBX = "regs[R_RBX]"
# Places of n at each offset of f; p is a pair in two registers, m one in memory.
N = {0: "regs[R_RDI]", 4: RBX, 8: RBX, 12: ""}


def find(place: MatchedInstruction, name: str, inlined: str) -> Local:
    if inlined == "copy":
        return Local(name, INT, "copy", (LocalPiece("value", "regs[R_RCX]"),))
    if name == "n":
        text = N[place.address]
        pieces = (LocalPiece("value", text),) if text else ()
        return Local("n", INT, "f", pieces, "" if text else "it is optimised out")
    made: Mapping[str, tuple[DType, tuple[LocalPiece, ...]]] = {
        "p": (PAIR, (LocalPiece("value", RBX, 4), LocalPiece("", "", 4))),
        "q": (PAIR, (LocalPiece("value", RBX),)),
        "m": (PAIR, (LocalPiece("memory", "(regs[R_RSP] + 8)"),)),
        "to": (PointerType(PAIR), (LocalPiece("value", RBX),)),
        "row": (ArrayType(INT, 4), (LocalPiece("value", RBX),)),
        "two": (
            UINT64,
            (LocalPiece("value", RBX, 4), LocalPiece("memory", "(regs[R_RSP] + 4)", 4)),
        ),
        # Its first quarter is in a register, the rest in memory.
        "split": (
            StructType("struct", "pair", 16, "test 1", Quarters()),
            (LocalPiece("value", RBX, 4), LocalPiece("memory", "regs[R_RSP]", 12)),
        ),
    }
    if name not in made:
        raise KinstError(f"no local variable {name} at {place.text}", "there are n, p")
    type_, pieces = made[name]
    return Local(name, type_, "f", pieces)


def places(pattern: ProbePattern) -> Sequence[MatchedInstruction]:
    if pattern.provider == "fbt":
        return [MatchedInstruction(pattern, at, f"f+{at}", True) for at in (4, 8)]
    offsets = [int(pattern.name)] if pattern.name else sorted(N)
    return [
        MatchedInstruction(ProbePattern("kinst", "", "f", str(at)), at, f"f+{at}", False)
        for at in offsets
    ]


def nearest(place: MatchedInstruction, name: str, inlined: str) -> str:
    return "the nearest instruction where it lives is +8"


def names_at(place: MatchedInstruction, inlined: str) -> Sequence[str]:
    return ["i"] if inlined == "copy" else ["n", "m", "p"]


def expanded(text: str) -> Expansion:
    return expand_locals(parse_text(text, "t.d"), places, find, nearest, names_at)


def shown(text: str) -> str:
    return unparse(expanded(text).program)


def test_a_value_in_a_register() -> None:
    text = "kinst::f:0 /locals->n > 1/ { trace(locals->n); }"
    assert has_locals(parse_text(text, "t.d"))
    assert "/(int)regs[R_RDI] > 1/\n{\n\ttrace((int)regs[R_RDI]);\n}" in shown(text)


def test_a_clause_is_split_by_place() -> None:
    """One clause for each way to read it, with all instructions of that way; the rest is
    reported."""
    found = expanded("kinst::f: { @[locals->n] = count(); }")
    clauses = found.program.clauses
    assert [[d.pattern.name for d in c.descriptions] for c in clauses] == [["0"], ["4", "8"]]
    (note,) = found.notes
    assert note.startswith("1 of 4 instructions are left out: n is not known there (f+12: ")


def test_clauses_without_locals_stay() -> None:
    text = "kinst::f: { trace(arg0); }"
    assert not has_locals(parse_text(text, "t.d"))
    assert shown(text) == unparse(parse_text(text, "t.d"))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("locals->m.b", "(*(struct pair *)(regs[R_RSP] + 8)).b"),
        ("locals->to->b", "((struct pair *)regs[R_RBX])->b"),
        ("locals->p.a", "(int)regs[R_RBX]"),
        ("locals->q.b", "(int)(regs[R_RBX] >> 32)"),
        ("&locals->m", "&*(struct pair *)(regs[R_RSP] + 8)"),
    ],
)
def test_members(expression: str, text: str) -> None:
    assert f"x = {text};" in shown(f"kinst::f:4 {{ x = {expression}; }}")


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("a", "(int)regs[R_RBX]"),
        ("b", "*(int *)regs[R_RSP]"),
        ("c", "*(int *)(regs[R_RSP] + 4)"),
        ("d", "*(int *)(regs[R_RSP] + 8)"),
    ],
)
def test_members_of_a_structure_of_which_a_part_is_in_memory(member: str, text: str) -> None:
    assert f"x = {text};" in shown(f"kinst::f:4 {{ x = locals->split.{member}; }}")


def test_two_pieces_make_one_value() -> None:
    value = shown("kinst::f:4 { x = locals->two; }")
    assert "regs[R_RBX] & 0xffffffffull" in value and "<< 32" in value


def test_an_inline_copys_own() -> None:
    program = parse_text("kinst::f:4 { trace(locals->n); }", "t.d")
    (clause,) = program.clauses
    described = type(clause.descriptions[0])(
        clause.descriptions[0].pattern, clause.descriptions[0].span, "copy"
    )
    item = type(clause)(clause.span, (described,), clause.predicate, clause.statements)
    found = expand_locals(type(program)((item,)), places, find, nearest, names_at)
    assert "trace((int)regs[R_RCX]);" in unparse(found.program)


@pytest.mark.parametrize(
    ("text", "tag", "message", "hint"),
    [
        ("kinst::f:12 { x = locals->n; }", "D_UNKNOWN", "cannot be read at f+12: it is opt",
         "the nearest instruction where it lives is +8"),
        ("kinst::f:4 { x = locals->z; }", "D_IDENT_UNDEF", "no local variable z at f+4",
         "there are n, p"),
        ("kinst::f:4 { x = locals->p.b; }", "D_UNKNOWN", "p.b is optimised out", "nearest"),
        ("kinst::f:4 { x = locals->p.c; }", "D_UNKNOWN", "c is not a member of", "nearest"),
        ("kinst::f:4 { x = locals->n.c; }", "D_UNKNOWN", "n is not a structure", "nearest"),
        ("kinst::f:4 { x = locals->p; }", "D_UNKNOWN", "not in memory, but in registers",
         "its members can be read"),
        ("kinst::f:4 { x = locals->row; }", "D_UNKNOWN", "only from memory", "nearest"),
    ],
)  # fmt: skip
def test_refusals(text: str, tag: str, message: str, hint: str) -> None:
    with pytest.raises(DError) as caught:
        expanded(text)
    error = caught.value
    assert (error.tag, message in error.message, hint in error.hint) == (tag, True, True), error
    # The caret is under locals->NAME.
    assert error.caret().splitlines()[1].index("^") == text.index("locals->")


def test_probes_of_several_places() -> None:
    """An fbt probe cannot be split: its places must agree."""
    same = shown("fbt::f:return { trace(locals->n); }")
    assert same.count("fbt::f:return") == 1 and "trace((int)regs[R_RBX]);" in same
    N[8] = "regs[R_R12]"
    try:
        with pytest.raises(
            DError, match="at its instructions the variables are in different registers"
        ):
            expanded("fbt::f:return { trace(locals->n); }")
    finally:
        N[8] = RBX


def test_types_before_places_are_known() -> None:
    def type_of(pattern: ProbePattern, name: str) -> DType | None:
        return INT if name == "n" else None

    text = "kinst::f: { x = locals->n; }"
    assert "x = *(int *)0;" in unparse(provisional(parse_text(text, "t.d"), type_of))
    with pytest.raises(DError) as caught:
        provisional(parse_text("kinst::f: { x = locals->z; }", "t.d"), type_of)
    assert (caught.value.tag, caught.value.hint) == ("D_IDENT_UNDEF", "")
    with pytest.raises(DError) as caught:
        provisional(parse_text("kinst::f*:0 { x = locals->z; }", "t.d"), type_of)
    assert "names one function" in caught.value.hint


def test_all_of_them() -> None:
    """Each has its own print(); if one is not available, the reason."""
    assert has_locals(parse_text("kinst::f: { print(locals); }", "t.d"))
    known, unknown = (shown(f"kinst::f:{at} {{ print(locals); exit(0); }}") for at in (8, 12))
    prints = """
	printf("m = ");
	print(*(struct pair *)(regs[R_RSP] + 8));
	printf("p: p is not in memory, but in registers\\n");
	exit(0);
}
"""
    assert known.endswith('\n\tprintf("n = ");\n\tprint((int)regs[R_RBX]);' + prints)
    assert unknown.endswith('\n\tprintf("n: it is optimised out\\n");' + prints)


def test_all_of_them_before_the_instructions_are_known() -> None:
    text = parse_text("kinst::f: { print(locals); }", "t.d")
    found = provisional(text, lambda *_: None, lambda pattern: ["n"])
    assert not has_locals(found)
    with pytest.raises(DError, match="kinst::f: has no local variables"):
        provisional(text, lambda *_: None)
