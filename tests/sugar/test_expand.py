"""kinst::F:entry|return in programs, printed as -d prints them."""

from __future__ import annotations

import pytest

from kinst.core.errors import DError
from kinst.core.inline import FunctionDie
from kinst.core.probe import Gap
from kinst.dlang.api import parse_text
from kinst.dlang.syntax.unparse import unparse
from kinst.sugar.expand import Sources, expand, has_sugar
from tests.fake_kernel import FakeIndex, FakeKernel, copy_of

# Names as in the development report's and the paper's examples.
KERNEL = FakeKernel(
    [
        ("cam_strvis", 0x1000, ["90"] * 30 + ["c3"]),
        ("cam_strvis_flag", 0x2000, ["90", "90", "c3"]),
        ("cam_iosched_get_trim", 0x3000, ["90"] * 20 + ["c3"]),
        ("early", 0x4000, ["85c0", "74 >out/8", "85db", "75 >out/8", "90", "out:", "c3"]),
        ("malloc", 0x5000, ["90", "c3"]),
        ("odd.isra.0", 0x6000, ["90", "c3"]),
    ]
)


def die(name: str, *ranges: tuple[int, int], inlined: bool = True) -> FunctionDie:
    return FunctionDie(name, 0, 0, "cam.c", 77, inlined, ranges)


INDEX = FakeIndex(
    [
        copy_of("cam_strvis_flag", 0x1019, (0x1019, 0x101B)),
        copy_of("cam_strvis_flag", 0x2000, (0x2000, 0x2002)),
        copy_of("has_more_trim", 0x300D, (0x300D, 0x300F)),
        copy_of("has_more_trim", 0x1005, (0x1005, 0x1005)),
        copy_of("leaver", 0x4000, (0x4000, 0x4009)),
        copy_of("ghost", 0x4000, (0x4000, 0x4000)),
        # One in the other, both ending at the same instruction.
        copy_of("again", 0x1001, (0x1001, 0x1006)),
        copy_of("again", 0x1003, (0x1003, 0x1006), within=("again",)),
    ],
    {
        "cam_strvis_flag": die("cam_strvis_flag", (0x2000, 0x2003)),
        "nowhere": die("nowhere"),
        "ghost": die("ghost"),
        "odd": die("odd", (0x6000, 0x6002), inlined=False),
    },
)


def after(text: str) -> str:
    return unparse(expand(parse_text(text, "t.d"), Sources(KERNEL, INDEX)).program)


def test_both_forms_as_in_development_report_6() -> None:
    assert after("kinst::cam_strvis_flag:entry") == (
        "kinst::cam_strvis:25,\nkinst::cam_strvis_flag:0,\nfbt::cam_strvis_flag:entry\n{\n}\n"
    )


def test_inline_and_plain_function_as_in_the_paper() -> None:
    text = 'kinst::has_more_trim:entry { printf("\\t%d\\t%s", pid, execname); exit(0); }'
    assert after(text) == (
        'kinst::cam_iosched_get_trim:13\n{\n\tprintf("\\t%d\\t%s", pid, execname);\n\texit(0);\n}\n'
    )
    assert after("kinst::malloc:entry { @ = count(); }") == (
        "fbt::malloc:entry\n{\n\t@ = count();\n}\n"
    )
    assert after("kinst::malloc:return {}") == "fbt::malloc:return\n{\n}\n"


def test_conditional_exits_have_clauses_of_their_own() -> None:
    assert after("kinst::leaver:return, BEGIN /pid == 1 || 0/ { x = 1; } END { y = 1; }") == (
        "kinst::early:8,\n:::BEGIN\n/pid == 1 || 0/\n{\n\tx = 1;\n}\n"
        "\nkinst::early:2\n/(regs[R_RFL] & 0x40) != 0 && (pid == 1 || 0)/\n{\n\tx = 1;\n}\n"
        "\nkinst::early:6\n/(regs[R_RFL] & 0x40) == 0 && (pid == 1 || 0)/\n{\n\tx = 1;\n}\n"
        "\n:::END\n{\n\ty = 1;\n}\n"
    )


def test_one_instruction_that_ends_two_copies_fires_twice() -> None:
    assert after("kinst::again:return") == (
        "kinst::cam_strvis:5\n{\n}\n\nkinst::cam_strvis:5\n{\n}\n"
    )


def test_copies_that_bytes_hide_which_do_not_decode_are_left_out_and_told() -> None:
    """The bytes of cam_strvis from +3 on do not decode; entries before them stay, returns do
    not."""
    kernel = FakeKernel(KERNEL.sources)
    (function,) = kernel.find("", "cam_strvis")
    gap = Gap(function, 3, 28, "why")
    kernel.gaps = lambda functions: [gap] if function in functions else []  # type: ignore[method-assign]
    index = FakeIndex([
        copy_of("again", 0x1001, (0x1001, 0x1003)),
        copy_of("again", 0x1009, (0x1009, 0x100C)),
    ], {})  # fmt: skip
    for name, left, count in (("entry", "kinst::cam_strvis:1", 1), ("return", "", 2)):
        clause = f"kinst::again:{name}, BEGIN {{}}"
        found = expand(parse_text(clause, "t.d"), Sources(kernel, index), zero=True)
        assert (left in unparse(found.program)) and (
            "cam_strvis" in unparse(found.program)
        ) == bool(left)
        (loss,) = found.losses
        assert f"{count} of 2 inlined copies are left out" in loss and "cam_strvis+3 to +31" in loss


def test_what_expansion_gives_is_d() -> None:
    text = after("kinst::leaver:return, kinst::leaver:entry /pid/ { @[probename] = count(); }")
    assert unparse(parse_text(text, "again.d")) == text


def test_globs_and_modules() -> None:
    assert after("kinst::cam_strvis*:entry") == (
        "fbt::cam_strvis:entry,\nkinst::cam_strvis:25,\nkinst::cam_strvis_flag:0,\n"
        "fbt::cam_strvis_flag:entry\n{\n}\n"
    )
    assert after("kinst:vmlinux:has_more_trim:entry") == (
        "kinst:vmlinux:cam_iosched_get_trim:13\n{\n}\n"
    )
    assert after("kinst::odd:entry") == "fbt::odd.isra.0:entry\n{\n}\n"


@pytest.mark.parametrize("text", ["kinst::malloc:", "kinst::malloc:1", "kinst:::entry", "BEGIN"])
def test_what_is_not_expanded(text: str) -> None:
    assert not has_sugar(parse_text(text, "t.d"))
    assert after(text) == unparse(parse_text(text, "t.d"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nowhere", "nowhere is an inline function of which this kernel has no copy"
                    " (it is declared at cam.c:77)"),
        ("ghost", "no copy of ghost can be traced: 1 without code (it is declared at cam.c:77)"),
        ("has_more_trin", 'no function named "has_more_trin" (did you mean has_more_trim?)'),
    ],
)  # fmt: skip
def test_errors_have_their_place(function: str, message: str) -> None:
    with pytest.raises(DError) as caught:
        after(f"BEGIN {{}}\nkinst::{function}:entry {{}}")
    assert str(caught.value) == message
    assert (caught.value.span.line, caught.value.span.column) == (2, 1)


def test_what_is_said_of_the_copies() -> None:
    found = expand(parse_text("kinst::again:return,kinst::has_more_trim:entry", "t.d"),
                   Sources(KERNEL, INDEX))  # fmt: skip
    assert found.notes == (
        "kinst::again:return: 2 inlined copies: 1 inside other inlined functions",
        "kinst::has_more_trim:entry: 2 inlined copies: 1 without code left out",
    )
    # Copies that are not traced are reported without -v, too.
    assert found.losses == (
        "kinst::has_more_trim:entry: 1 of 2 inlined copies is left out: 1 without code",
    )


def test_what_is_said_of_copies_that_are_moved_shared_or_lost() -> None:
    """Two copies begin at the same instruction and continue in f.cold, and one has no code."""
    kernel = FakeKernel(
        [
            ("f", 0x1000, ["90", "90", "0f84 >0x5000/32", "90", "c3"]),
            ("f.cold", 0x5000, ["90", "e9 >0x1008/32"]),
        ]
    )
    parts = (0x1001, 0x1008), (0x5000, 0x5001)
    index = FakeIndex(
        [
            copy_of("moved", 0x1001, *parts),
            copy_of("moved", 0x1001, *parts),
            copy_of("moved", 0x9000, (0x9000, 0x9002)),
            copy_of("whole", 0x1001, (0x1001, 0x1008)),
        ],
        {},
    )
    program = parse_text("kinst::moved:entry, kinst::whole:entry", "t.d")
    found = expand(program, Sources(kernel, index))
    assert found.losses == (
        "kinst::moved:entry: 1 of 3 inlined copies is left out: 1 outside of every function, or"
        " rewritten",
    )
    assert found.notes == (
        "kinst::moved:entry: 3 inlined copies: 1 sharing another's entry,"
        " 1 split into .cold parts, 1 outside of every function or rewritten, left out",
        "kinst::whole:entry: 1 inlined copy",
    )


def test_what_is_said_of_places_that_cannot_be_planted() -> None:
    """The entry's first instruction, and the copy's last one."""
    kernel = FakeKernel([("f", 0x1000, ["90", "90", "90", "90", "90", "c3"])])
    kernel.forbidden = {0x1001, 0x1004}
    index = FakeIndex([copy_of("g", 0x1001, (0x1001, 0x1005))])
    found = expand(parse_text("kinst::g:entry, kinst::g:return", "t.d"), Sources(kernel, index))
    (clause,) = found.program.clauses
    assert [str(d.pattern) for d in clause.descriptions] == ["kinst::f:2", "kinst::f:3"]
    assert found.notes == (
        "kinst::g:entry: 1 inlined copy: 1 traced beside what cannot be planted",
        "kinst::g:return: 1 inlined copy: 1 traced beside what cannot be planted",
    )


def test_copies_in_functions_that_may_not_be_planted_are_told_with_the_reason() -> None:
    """For example, if the kernel has freed the functions: alone, and beside other copies."""
    kernel = FakeKernel([
        ("f", 0x1000, ["90", "90", "c3"]), ("other", 0x2000, ["90", "90", "c3"]),
        ("more", 0x3000, ["90", "90", "c3"]), ("traced", 0x4000, ["90", "90", "c3"]),
    ])  # fmt: skip
    kernel.forbidden = {*range(0x1000, 0x3003)}
    kernel.refusals = {"f": "it is init code", "other": "it is init code"}
    copies = [copy_of("g", at, (at, at + 2)) for at in (0x1000, 0x2000)]
    program = parse_text("kinst::g:entry", "t.d")
    index = FakeIndex(copies, {"g": FunctionDie("g", 1, 0, "g.c", 5, True, ())})
    with pytest.raises(DError) as caught:
        expand(program, Sources(kernel, index))
    assert caught.value.message == (
        "no copy of g can be traced: 2 inlined copies are in code that cannot be planted: it is"
        " init code"
    )
    index = FakeIndex([*copies, *(copy_of("g", at, (at, at + 2)) for at in (0x3000, 0x4000))])
    kernel.forbidden = {*range(0x1000, 0x4000)}
    found = expand(program, Sources(kernel, index))
    told = "3 whose entry cannot be planted (2: it is init code)"
    assert found.losses == (f"kinst::g:entry: 3 of 4 inlined copies are left out: {told}",)
    assert found.notes == (f"kinst::g:entry: 4 inlined copies: {told}, left out",)
