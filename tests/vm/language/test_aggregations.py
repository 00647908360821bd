"""Aggregations of the sizes that a program asks for in known calls, against Python's own
arithmetic."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.vm.command import kinst

pytestmark = pytest.mark.vm

N = 20_000
SIZES = [1 + i * 7919 % 5000 for i in range(N)]  # tests/programs/sizes.c
ROW = re.compile(r"^ *((?:<|>=)? ?-?\d+) +\|[@ ]*(\d+) *$", re.M)
NAMES = ("quantize", "lquantize", "llquantize")


def rows(text: str) -> dict[str, int]:
    """Return the rows of a distribution that are not empty: label without spaces, count."""
    return {label.replace(" ", ""): int(count) for label, count in ROW.findall(text) if int(count)}


def spread(bucket: Callable[[int], str], values: Iterable[int]) -> dict[str, int]:
    return dict(Counter(bucket(value) for value in values))


def linear(value: int) -> str:
    """Return the rows of lquantize(x, 1000, 4000, 500)."""
    if value < 1000:
        return "<1000"
    return ">=4000" if value >= 4000 else str(1000 + (value - 1000) // 500 * 500)


def log_linear(value: int) -> str:
    """Return the rows of llquantize(x, 10, 1, 2, 10): from 10 to 999, in steps of 10 and then of
    100."""
    if value < 10:
        return "<10"
    if value >= 1000:
        return ">=1000"
    step = 10 if value < 100 else 100
    return str(value // step * step)


@pytest.mark.parametrize("way", ["jump", "trap"])
def test_every_function_on_known_sizes(
    read_function: str, guest_program: Callable[[str], Path], way: str
) -> None:
    """The program runs twice; /pid == $target/ must exclude the second run."""
    program = f"""
        kinst::{read_function}:0 /pid == $target/
        {{
            this_size = regs[R_RDX];
            @count = count(); @sum = sum(regs[R_RDX]); @min = min(regs[R_RDX]);
            @max = max(regs[R_RDX]); @avg = avg(regs[R_RDX]); @stddev = stddev(regs[R_RDX]);
            @mod[regs[R_RDX] % 7, execname] = count();
            @negative = sum(-(int64_t)regs[R_RDX]);
            @least = min(5 - (int64_t)regs[R_RDX]);
            @quantize = quantize(regs[R_RDX]);
            @lquantize = lquantize(regs[R_RDX], 1000, 4000, 500);
            @llquantize = llquantize(regs[R_RDX], 10, 1, 2, 10);
            @weighted = quantize(regs[R_RDX], 3);
        }}
        kinst::{read_function}:0 /pid == $target && regs[R_RDX] > 4990/ {{ @big = count(); }}
        kinst::{read_function}:0 /pid != $target && execname == "sizes"/ {{ @other = count(); }}
        END
        {{
            printa("count %@d\\n", @count); printa("sum %@d\\n", @sum);
            printa("min %@d\\n", @min); printa("max %@d\\n", @max); printa("avg %@d\\n", @avg);
            printa("stddev %@d\\n", @stddev); printa("mod %d %s %@d\\n", @mod);
            printa("negative %@d\\n", @negative); printa("least %@d\\n", @least);
            printa("big %@d\\n", @big); printa("other %@d\\n", @other);
            printa("=quantize\\n%@d\\n", @quantize); printa("=lquantize\\n%@d\\n", @lquantize);
            printa("=llquantize\\n%@d\\n", @llquantize);
            printa("=weighted\\n%@d\\n", @weighted);
        }}"""
    sizes = guest_program("sizes")
    done = kinst(
        "-q", "-x", f"plant={way}", "-n", program,
        "-c", f"sizes 10 & wait; exec sizes {N}", copy=[sizes],
    ).good()  # fmt: skip
    assert f"sizes {N}" in done.guest
    plain, *parts = re.split(r"^=(\w+)$", done.out, flags=re.M)
    found = dict(re.findall(r"^(\w+) (-?\d+)$", plain, re.M))
    mean, squares = sum(SIZES) // N, sum(s * s for s in SIZES) // N
    expected = {
        "count": N, "sum": sum(SIZES), "min": min(SIZES), "max": max(SIZES), "avg": mean,
        "stddev": math.isqrt(squares - mean * mean), "negative": -sum(SIZES),
        "least": 5 - max(SIZES), "big": sum(s > 4990 for s in SIZES), "other": 10,
    }  # fmt: skip
    assert {k: int(v) for k, v in found.items()} == expected
    mod = {int(k): int(v) for k, v in re.findall(r"^mod (\d) sizes (\d+)$", plain, re.M)}
    assert mod == Counter(s % 7 for s in SIZES)
    shown = {name: rows(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    powers = spread(lambda s: str(1 << s.bit_length() - 1), SIZES)
    assert shown["quantize"] == powers
    assert shown["weighted"] == {label: 3 * count for label, count in powers.items()}
    assert shown["lquantize"] == spread(linear, SIZES)
    assert shown["llquantize"] == spread(log_linear, SIZES)
