"""Any text gives a program or a DError, never another exception."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinst.codegen.subroutines import prototypes
from kinst.core.errors import DError, KinstError
from kinst.dlang.api import Environment, Macros, compile_text, parse_option, parse_text
from kinst.dlang.syntax.source import to_text
from kinst.dlang.syntax.unparse import unparse
from kinst.dlang.vocabulary.d_options import NAMES, Options
from kinst.providers import interfaces
from kinst.systems import of_host
from tests.dlang import d_mutations
from tests.dlang.d_mutations import in_parallel, search
from tests.dlang.syntax.test_parse import PRECEDENCE
from tests.dlang.syntax.test_parse import PROGRAMS as GOOD
from tests.dlang.test_errors import BODIES, PROGRAMS
from tests.tiers import draws

ENVIRONMENT = Environment(
    {"R_RAX": 14}, 256, providers=interfaces(), dialect=of_host().dialect, subroutines=prototypes()
)
# Without defaultargs a text that leaves $3 unused is refused before anything else is checked.
MACROS = Macros(("k", "12", "name", "a b"), {"pid": 5}, defaultargs=True)
_WORDS = (
    "BEGIN END kinst::f:1 tick-1s { } ( ) [ ] / , ; : = == + ++ - -- * & && | || ^ ^^ ! ~ ? << >>"
    ' <= += /= -> . @ @a @a[1] x y s p 0 1 017 0x1f 1u \'a\' "s" "%d" int char string uint64_t'
    " unsigned void long (int) (char*) (string) sizeof stringof trace printf printa exit count sum"
    " quantize lquantize clear trunc normalize pid execname arg0 regs R_RAX curthread self this"
    " $1 $$2 $3 $pid $9 /* */ #pragma\n \n \t // \\ ` % # if struct"
)
WORDS = _WORDS.split(" ")


def compiles_or_errs(text: str) -> None:
    try:
        program, _ = compile_text(text, "t.d", MACROS, ENVIRONMENT)
    except DError as error:
        assert error.span.line >= 1 and error.span.column >= 1
        assert error.tag.startswith("D_")
        error.caret()
        return
    unparse(program)


@settings(deadline=None)
@given(st.text(max_size=60))
@example("\x00")
@example("BEGIN { trace(\x00); }")
@example("\ud800 { }")
@example('BEGIN { trace("\ud800\udfff"); }')
@example("²:::{}")
@example("BEGIN { x = ²; }")
def test_any_text(text: str) -> None:
    compiles_or_errs(text)
    compiles_or_errs("BEGIN { " + text + " }")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    compiles_or_errs(to_text(data))


@settings(max_examples=draws(120, 400), deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_words(words: list[str]) -> None:
    compiles_or_errs(" ".join(words))
    compiles_or_errs("BEGIN { " + " ".join(words) + " }")


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(draws(6, 20)))
def test_mutated_programs(seed: int) -> None:
    """Programs of the other tests with characters dropped, doubled and exchanged."""
    chance = random.Random(seed)
    texts = [f"BEGIN {{ {b[0]} }}" for b in BODIES] + [p[0] for p in PROGRAMS] + GOOD
    texts += [f"BEGIN {{ {p[0]}; }}" for p in PRECEDENCE]
    for _ in range(100):
        text = list(chance.choice(texts)[:400])
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text)) if text else 0
            change = chance.randrange(3)
            if change == 0 and text:
                del text[at]
            elif change == 1:
                text.insert(at, chance.choice("(){}[]/*,;:@$\"'\\%#0x1a \n-+&|=<>!?.\x00"))
            else:
                other = chance.choice(texts)
                start = chance.randrange(len(other) + 1)
                text[at:at] = other[start : start + chance.randint(1, 20)]
        compiles_or_errs("".join(text))


LONG = draws(30_000, 100_000)  # deeper than any limit of the parser


@pytest.mark.drawn
@pytest.mark.parametrize(
    "text",
    [
        "(" * LONG,
        "(" * LONG + "1" + ")" * LONG,
        "[" * LONG,
        "a[" * LONG,
        "f(" * LONG,
        "{" * LONG,
        "-" * LONG,
        "- " * LONG + "1",
        "!" * LONG + "1",
        "*" * LONG + "p",
        "(int)" * LONG + "1",
        "(char " + "*" * LONG + ")1",
        "sizeof " * LONG + "1",
        "a=" * LONG + "1",
        "a?" * LONG + "1",
        "a?1:" * LONG + "1",
        "1+" * LONG + "1",
        "1," * LONG + "1",
        "x++;" * 20_000,
        "@a[" + "1," * 20_000 + "1] = count()",
        "a" * LONG,
        "9" * LONG,
        "0x" + "f" * LONG,
        "0" * LONG + "1",
        "'" + "a" * LONG + "'",
        '"' + "a" * LONG + '"',
        'printf("' + "%" * 100_001 + '")',
        'printf("' + "%d" * 20_000 + '")',
        'printf("%' + "9" * LONG + 'd", 1)',
        "/*" * LONG,
        "/* " + "x" * LONG,
        "#" * LONG,
        "\n#" * 20_000,
        "x" + ".y" * LONG,
        "x" + "->y" * LONG,
        "x" + "++" * LONG,
        "x" + "[1]" * LONG,
        "x" + "()" * LONG,
        "$" * LONG,
        "$" + "1" * LONG,
        "\x00" * LONG,
    ],
    ids=lambda t: t[:12].encode("unicode_escape").decode(),
)
def test_large_and_deep(text: str) -> None:
    compiles_or_errs("BEGIN { " + text + " }")
    compiles_or_errs("BEGIN / " + text + " / { }")
    compiles_or_errs(text)


def test_many_descriptions() -> None:
    text = ",".join(["kinst::f:1"] * 20_000) + "{}"
    assert len(parse_text(text, "t.d").clauses[0].descriptions) == 20_000
    compiles_or_errs(":" * 100_000)
    compiles_or_errs("BEGIN{}" * 5_000)


@settings(deadline=None)
@given(st.sampled_from("Pmfn"), st.text(max_size=30))
def test_any_option_text(option: str, text: str) -> None:
    for value in (text, text + " { trace(1) }", "a:" + text):
        with contextlib.suppress(DError):
            parse_option(option, value)


@settings(deadline=None)
@given(st.sampled_from(sorted(NAMES)) | st.text(max_size=10), st.none() | st.text(max_size=12))
@example("bufsize", "²")
@example("switchrate", "٣s")
@example("aggsortpos", "٣")
def test_any_option_value(name: str, value: str | None) -> None:
    with contextlib.suppress(KinstError):
        Options().with_option(name, value)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_macro_argument(text: str) -> None:
    for program in ("BEGIN { trace($1); }", "BEGIN { trace($$1); }", "kinst::$1:1 { }"):
        with contextlib.suppress(DError):
            compile_text(program, "t.d", Macros(("k", text)), ENVIRONMENT)


def test_mutations_of_the_conformance_suite() -> None:
    """The conformance suite, the manual and the examples, mutated; some down to machine code."""
    seed = random.SystemRandom().randrange(1 << 30) if os.environ.get("KINST_RANDOM") else 600
    assert search(seed, 600) == [], f"seed {seed}"


@pytest.mark.slow
def test_many_texts() -> None:
    """Compile KINST_FUZZ_COUNT texts (100,000 by default; 10,000,000 take 42 minutes of a CPU)."""
    count = int(os.environ.get("KINST_FUZZ_COUNT", "100000"))
    seed = random.SystemRandom().randrange(1 << 30)
    done, wrong = 0, []
    for texts, found in in_parallel(seed, count):
        done += texts
        wrong += found
        if done % max(1, count // 10) < texts:
            print(f"{done:,} texts of seed {seed}, wrong in {len(wrong)}", flush=True)
    assert wrong == [], f"seed {seed}"
    assert done == count


@pytest.mark.parametrize(
    ("what", "noticed"),
    [
        (lambda text: bytearray(300 << 20).count(1), "KiB of memory"),
        (lambda text: any(number for number in iter(int, 1)), "TooLongError"),
        (lambda text: {}[text], "KeyError"),
        (lambda text: None, ""),
    ],
    ids=["allocation", "hang", "traceback", "nothing"],
)
def test_what_goes_wrong_in_a_text_is_noticed(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[str], object], noticed: str
) -> None:
    monkeypatch.setattr(d_mutations, "compiles", what)
    monkeypatch.setattr(d_mutations, "LIMIT", 0.2)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as fresh:
        found = fresh.submit(d_mutations.try_one, "BEGIN", whole=False).result()
    assert bool(found) == bool(noticed) and noticed in found
