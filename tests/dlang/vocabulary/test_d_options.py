"""The option table."""

from __future__ import annotations

import dataclasses

import pytest

from kinst.core.errors import KinstError
from kinst.dlang.vocabulary.d_options import NAMES, Options


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bufsize", "8m", 8 * 1024 * 1024),
        ("bufsize", "512", 512),
        ("bufsize", "64K", 65536),
        ("bufsize", "0x1000", 4096),
        ("aggsize", "1g", 1 << 30),
        ("aggsize", "2T", 2 << 40),
        ("strsize", "1k", 1024),
        ("switchrate", "10hz", 100_000_000),
        ("switchrate", "5", 5),
        ("switchrate", "5ns", 5),
        ("switchrate", "0hz", 0),
        ("statusrate", "0", 0),
        ("statusrate", "0x10us", 16_000),
        ("cleanrate", "0", 10**9),
        ("bufsize", "0", 0),
        ("dynvarsize", "0", 0),
        ("switchrate", "20us", 20_000),
        ("aggrate", "100ms", 100_000_000),
        ("aggrate", "100msec", 100_000_000),
        ("aggrate", "2s", 2_000_000_000),
        ("aggrate", "2sec", 2_000_000_000),
        ("statusrate", "1m", 60_000_000_000),
        ("statusrate", "1min", 60_000_000_000),
        ("statusrate", "1h", 3600 * 10**9),
        ("statusrate", "1D", 86400 * 10**9),
        ("quiet", None, True),
        ("quiet", "1", True),
        ("quiet", "off", False),
        ("aggsortrev", None, True),
        ("aggsortkey", "yes", True),
        ("aggsortpos", "2", 2),
        ("aggsortkeypos", "0", 0),
        ("jstackframes", "10", 10),
        ("evaltime", "main", "main"),
        ("zdefs", None, True),
        ("errtags", None, True),
        ("destructive", None, True),
        ("defaultargs", None, True),
        ("bufpolicy", "switch", "switch"),
        ("bufresize", "auto", "auto"),
        ("flowindent", "off", False),
    ],
)
def test_values(name: str, text: str | None, expected: object) -> None:
    changed = Options().with_option(name, text)
    assert getattr(changed, name) == expected
    for field in dataclasses.fields(Options):
        if field.name != name:
            assert getattr(changed, field.name) == getattr(Options(), field.name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bufsize", None), ("bufsize", ""), ("bufsize", "x"), ("strsize", "0"),
        ("bufsize", "-1"), ("bufsize", "1q"), ("bufsize", "1mb"), ("bufsize", "9999999999t"),
        ("bufsize", "9" * 5000), ("strsize", "4g"), ("switchrate", None), ("switchrate", "0x"),
        ("switchrate", "1 s"), ("switchrate", "-1"), ("switchrate", "1fortnight"),
        ("quiet", "maybe"), ("aggsortpos", "-1"), ("aggsortpos", None), ("aggsortpos", "1x"),
        ("bufpolicy", "nope"), ("bufpolicy", None), ("evaltime", "never"),
    ],
)  # fmt: skip
def test_bad_values(name: str, text: str | None) -> None:
    with pytest.raises(KinstError, match=f"'{name}'") as found:
        Options().with_option(name, text)
    assert found.value.hint


def test_unknown_options_are_refused() -> None:
    for name in ("nope", "", "ustackstrsize", "grabanon", "x" * 5000):
        with pytest.raises(KinstError, match="unknown option"):
            Options().with_option(name, None)
    with pytest.raises(KinstError, match="did you mean bufsize"):
        Options().with_option("bufsiz", "1m")


def test_the_options_of_dynamic_variables() -> None:
    options = Options().with_option("dynvarsize", "4m").with_option("cleanrate", "50hz")
    assert (options.dynvarsize, options.cleanrate) == (4 << 20, 20_000_000)


def test_the_options_of_buffers_and_speculations() -> None:
    options = Options().with_option("bufpolicy", "ring").with_option("nspec", "5")
    options = options.with_option("specsize", "1k").with_option("cleanrate", "1s")
    assert (options.bufpolicy, options.nspec, options.specsize) == ("ring", 5, 1024)
    for name, value in (("nspec", "256"), ("bufpolicy", "both"), ("stackframes", "0")):
        with pytest.raises(KinstError, match="invalid value"):
            Options().with_option(name, value)


def test_the_table_is_the_dataclass() -> None:
    assert {f.name for f in dataclasses.fields(Options)} == NAMES
    assert (Options().bufsize, Options().aggsize, Options().strsize) == (4 << 20, 4 << 20, 256)
    assert (Options().switchrate, Options().aggrate) == (10**9, 10**9)
