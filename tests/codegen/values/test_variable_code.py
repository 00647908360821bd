"""Variables of every type and scope, assigned and stepped: each value against the C compiler's."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.codegen.codegen_rig import RIGS, Rig
from tests.codegen.values.test_memory_stores import values
from tests.tiers import draws

TYPES = {
    "char": "signed char", "uint8_t": "unsigned char", "short": "short", "ushort_t":
    "unsigned short", "int": "int", "uint_t": "unsigned", "int64_t": "long",
    "uint64_t": "unsigned long",
}  # fmt: skip
# A variable's declaration for some type, and its name.
PLACES = (
    ("T g;", "g"), ("this T t;", "this->t"), ("self T s;", "self->s"), ("T f[3];", "f[2]"),
    ("this T h[4];", "this->h[1]"), ("self T u[2];", "self->u[1]"),
    ("T a[int];", "a[-5]"), ("T b[string, char];", 'b["key", 3]'),
    ("self T c[long];", "self->c[7]"), ("self T d[string];", 'self->d["k"]'),
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 7, 100, 127, 128, 255, 256, 1000, 32767, 65536, 2147483647)


def drawn(seed: int) -> tuple[str, list[str]]:
    """Return a type, and expressions on X, each of them long."""
    rng, found = random.Random(seed), []
    for _ in range(14):
        operator = rng.choice(("=", "+=", "-=", "*=", "|=", "&=", "^=", "<<=", ">>=", "++", "--"))
        number = rng.choice(NUMBERS) if operator not in ("<<=", ">>=") else rng.randrange(1, 7)
        if operator in ("++", "--"):
            found.append(rng.choice((f"(long)X{operator}", f"(long){operator}X")))
        else:
            found.append(f"(long)(X {operator} {rng.choice(('', '-')) * (number > 6)}{number})")
        found.append("(long)X")
    return list(TYPES)[seed % len(TYPES)], found


SEEDS = range(draws(1, 2) * len(TYPES))


@pytest.fixture(scope="module")
def said_by_c(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    folder: Path = tmp_path_factory.mktemp("variables")
    lines = []
    for seed in SEEDS:
        type_, expressions = drawn(seed)
        printed = " ".join(f'printf("%ld ", {one});' for one in expressions)
        lines.append(f'{{ {TYPES[type_]} X = 0; {printed} puts(""); }}')
    (folder / "a.c").write_text("#include <stdio.h>\nint main(void) {" + "\n".join(lines) + "}")
    subprocess.run(
        ["gcc", "-w", "-fwrapv", "-o", str(folder / "a"), str(folder / "a.c")], check=True
    )
    out = subprocess.run([str(folder / "a")], capture_output=True, text=True, check=True).stdout
    return [list(map(int, line.split())) for line in out.splitlines()]


@pytest.mark.drawn
@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_variable_is_what_c_makes_of_it(
    rig: type[Rig], seed: int, said_by_c: list[list[int]]
) -> None:
    type_, expressions = drawn(seed)
    for declared, name in random.Random(seed).sample(PLACES, 3):
        traced = " ".join(f"trace({one.replace('X', name)});" for one in expressions)
        found = values(rig, traced, declared.replace("T", type_))
        assert found == [0, *said_by_c[seed]], (declared, expressions)
