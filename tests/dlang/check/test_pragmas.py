"""#pragma D attributes, binding, depends_on, and line markers: those that libdtrace accepts and
refuses."""

from __future__ import annotations

import pytest

from kinst.dlang.api import parse_text
from kinst.dlang.syntax.unparse import unparse
from tests.dlang.dhelp import DError, compile_, error, tree

BODY = "\nint x; inline int y = 1; BEGIN { z = 1; }\n"


@pytest.mark.parametrize(
    "line",
    [
        "#pragma D attributes Evolving/Evolving/Common x",
        "#pragma D attributes Internal/Private/Unknown y",
        "#pragma D attributes stable/STANDARD/isa z",
        "#pragma D attributes Obsolete/External/CPU provider dtrace provider",
        "#pragma D attributes Unstable/Stable/Group provider dtrace args",
        '#pragma D binding "1.0" x',
        '#pragma D binding "1.6.3" y',
        '#pragma D binding "255.4095.4095" z',
        "#pragma D depends_on provider dtrace",
    ],
)
def test_accepted(line: str) -> None:
    """Before and after their subject."""
    plain = compile_(BODY)
    for text in (line + BODY, BODY + line + "\n"):
        found = compile_(text)
        assert [v.name for v in found.variables] == [v.name for v in plain.variables]
        printed = unparse(parse_text(text, "t.d"))
        (pragma,) = (i for i in parse_text(printed, "t.d").items if isinstance(i, tree.PragmaNode))
        assert " ".join((pragma.kind, *pragma.words)) in line


@pytest.mark.parametrize(
    ("line", "tag"),
    [
        ("attributes", "D_PRAGMA_MALFORM"),
        ("attributes Stable/Stable/Common", "D_PRAGMA_MALFORM"),
        ('attributes "Stable/Stable/Common" x', "D_PRAGMA_MALFORM"),
        ('attributes Stable/Stable/Common "x"', "D_PRAGMA_MALFORM"),
        ("attributes Stable/Stable/Common provider dtrace", "D_PRAGMA_MALFORM"),
        ("attributes Stable/Stable x", "D_PRAGMA_INVAL"),
        ("attributes Stable/Common/Stable x", "D_PRAGMA_INVAL"),
        ("attributes Good/Stable/Common x", "D_PRAGMA_INVAL"),
        ("attributes Stable/Stable/Common provider dtrace body", "D_PRAGMA_INVAL"),
        ("attributes Stable/Stable/Common provider nosuch name", "D_PRAGMA_UNUSED"),
        ("attributes Stable/Stable/Common nosuch", "D_PRAGMA_UNUSED"),
        ("attributes Stable/Stable/Common pid", "D_PRAGMA_SCOPE"),
        ("attributes Stable/Stable/Common printf", "D_PRAGMA_SCOPE"),
        ("binding", "D_PRAGMA_MALFORM"),
        ("binding 1.0 x", "D_PRAGMA_MALFORM"),
        ('binding "1.0"', "D_PRAGMA_MALFORM"),
        ('binding "one" x', "D_PRAGMA_INVAL"),
        ('binding "1" x', "D_PRAGMA_INVAL"),
        ('binding "256.0" x', "D_PRAGMA_INVAL"),
        ('binding "1.4096" x', "D_PRAGMA_INVAL"),
        ('binding "1.0" nosuch', "D_PRAGMA_UNUSED"),
        ('binding "1.0" pid', "D_PRAGMA_SCOPE"),
        ("depends_on", "D_PRAGMA_MALFORM"),
        ("depends_on provider", "D_PRAGMA_MALFORM"),
        ("depends_on kernel x", "D_PRAGMA_INVAL"),
        ("depends_on provider nosuch", "D_PRAGMA_DEPEND"),
        ("depends_on module nosuch", "D_PRAGMA_DEPEND"),
        ("depends_on library x.d", "D_PRAGMA_DEPEND"),
    ],
)
def test_refused(line: str, tag: str) -> None:
    found = error(f"\n#pragma D {line}{BODY}")
    assert (found.tag, found.span.line) == (tag, 2), found


@pytest.mark.parametrize(
    ("marker", "place"),
    [
        ('#line 70 "other.d"', "other.d:70"),
        ('# 70 "other.d"', "other.d:70"),
        ('# 70 "other.d" 1', "other.d:70"),
        ('#pragma line 70 "other.d"', "other.d:70"),
        ("#line 70", "t.d:70"),
        ("# 70", "t.d:70"),
    ],
)
def test_line_markers(marker: str, place: str) -> None:
    with pytest.raises(DError) as caught:
        compile_(f"BEGIN {{ trace(1); }}\n{marker}\nBEGIN {{ trace(nosuch); }}")
    assert str(caught.value.span) == f"{place}:15"


def test_a_malformed_line_marker() -> None:
    assert error("BEGIN { }\n#line x\n").tag == "D_PRAGMA_MALFORM"
