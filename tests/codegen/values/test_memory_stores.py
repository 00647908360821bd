"""Stores to members of structures, including bit-fields, against the C compiler's; and stores to
memory that must not be written."""

from __future__ import annotations

import random
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.core import layout as lay
from tests.codegen.codegen_rig import RIGS, HostRig, Rig
from tests.codegen.subroutines_rig import compiled

SIZES = {"char": 8, "short": 16, "int": 32, "long": 64}
ERROR = "dtrace:::ERROR { trace(arg4); trace(arg5); }"
SEEDS = 8
# A structure in each kind of variable: its declaration, and its name.
PLACES = (("struct s x;", "x"), ("this struct s y;", "this->y"),
          ("struct s z[string, int];", 'z["key", 2]'))  # fmt: skip


@dataclass(frozen=True)
class Stores:
    """Declarations of a structure's members, and expressions on them; AT stands for the
    structure."""

    declared: str
    expressions: tuple[str, ...]


def random_stores(rng: random.Random) -> Stores:
    members = []
    for k in range(rng.randrange(2, 6)):
        kind = rng.choice(list(SIZES))
        bits = f" : {rng.randrange(1, SIZES[kind] + 1)}" if rng.random() < 0.6 else ""
        members.append((f"m{k}", f"{rng.choice(('signed', 'unsigned'))} {kind} m{k}{bits};"))
    expressions = []
    for _ in range(8):
        name = f"AT.{rng.choice(members)[0]}"
        number = rng.choice((rng.getrandbits(6), rng.getrandbits(31), 1, 0))
        if rng.random() < 0.7:
            operator = rng.choice(("=", "+=", "-=", "|=", "^=", "&=", "*="))
            expressions.append(f"(long)({name} {operator} {number})")
        else:
            expressions.append(
                f"(long)({rng.choice((name + '++', name + '--', '++' + name, '--' + name))})"
            )
    expressions += [f"(long)AT.{name}" for name, _ in members]
    expressions.append("(long)sizeof (struct s)")
    return Stores(" ".join(text for _, text in members), tuple(expressions))


@pytest.fixture(scope="module")
def said_by_c(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Stores, list[int]]]:
    """Return the value of each expression in C, one after the other."""
    folder: Path = tmp_path_factory.mktemp("stores")
    drawn = [random_stores(random.Random(seed)) for seed in range(SEEDS)]
    functions = []
    for k, one in enumerate(drawn):
        lines = [f'printf("%ld ", {e.replace("AT", "at")});' for e in one.expressions]
        body = f"struct s {{ {one.declared} }} at; memset(&at, 0, sizeof at); {' '.join(lines)}"
        functions.append(f'void f{k}(void) {{ {body} puts(""); }}')
    calls = " ".join(f"f{k}();" for k in range(SEEDS))
    text = "\n".join(["#include <stdio.h>", "#include <string.h>", *functions,
                      f"int main(void) {{ {calls} }}"])  # fmt: skip
    (folder / "a.c").write_text(text)
    subprocess.run(
        ["gcc", "-w", "-fwrapv", "-o", str(folder / "a"), str(folder / "a.c")], check=True
    )
    out = subprocess.run([str(folder / "a")], capture_output=True, text=True, check=True).stdout
    return [(one, list(map(int, line.split())))
            for one, line in zip(drawn, out.splitlines(), strict=True)]  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("rig", RIGS)
def test_members_are_what_c_makes_of_them(
    rig: type[Rig], seed: int, said_by_c: list[tuple[Stores, list[int]]]
) -> None:
    """A few stores one after the other; the value of each, and all members at the end."""
    stores, expected = said_by_c[seed]
    variable, place = PLACES[seed % 3]
    traced = " ".join(f"trace({one.replace('AT', place)});" for one in stores.expressions)
    found = values(rig, traced, f"struct s {{ {stores.declared} }}; {variable}")
    assert found == [0, *expected], stores


def values(rig: type[Rig], text: str, declared: str = "") -> list[int]:
    """Return the clause of the record, and the values that it traced."""
    program = compiled(f"{declared} kinst::f:0 {{ {text} }} {ERROR}")
    run = rig(program, {7: (0,)}, error=(1,), strsize=64)
    run.fire(7)
    (record,) = run.records(run.slot)
    places = [one for fields in run.layout.clauses[record.clause].fields for one in fields]
    raw = [record.raw[one.offset :][: one.size] for one in places]
    return [record.clause, *(int.from_bytes(one, "little", signed=True) for one in raw)]


@pytest.mark.parametrize("rig", RIGS)
def test_memory_of_the_clause(rig: type[Rig]) -> None:
    """An allocation may be written wholly, and no byte around it."""
    assert values(rig, "this->p = (int *)alloca(8); this->p[1] = -7; *this->p = 3;"
                       "trace((int)this->p[0]); trace((int)this->p[1]);") == [0, 3, -7]  # fmt: skip
    text = "this->p = (char *)alloca(8); *(long *)this->p = -1; this->p[7] = 2;"
    expected = int.from_bytes(b"\xff" * 7 + b"\2", "little")
    assert values(rig, f"{text} trace(*(long *)this->p);") == [0, expected]


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize(
    "bad",
    [
        "*(long *)0x1000 = 1;",
        "this->p = (long *)alloca(8); this->p[4096] = 1;",
        "this->p = (long *)alloca(8); *(this->p - 100000) = 1;",
        "*(char *)regs[R_1] = 5;",
    ],
)
def test_nothing_else_is_written(rig: type[Rig], bad: str) -> None:
    clause, kind, _ = values(rig, f"{bad} trace(1);")
    assert (clause, kind) == (1, lay.FAULT_BADADDR)


@pytest.mark.parametrize("rig", RIGS)
def test_a_pointer_into_a_variable_stays_in_it(rig: type[Rig]) -> None:
    declared = "struct s { int a[4]; int b; }; struct s x; struct s y;"
    text = "x.a[{}] = 9; trace(x.a[0]); trace(x.a[3]); trace(x.b);"
    assert values(rig, text.format(3), declared) == [0, 0, 9, 0]
    assert values(rig, text.format("(int)regs[R_1]"), declared) == [0, 9, 0, 0]
    for index in ("(int)regs[R_1] + 5", "(int)regs[R_1] - 1", "(int)regs[R_1] + 100000"):
        clause, kind, _ = values(rig, text.format(index), declared)
        assert (clause, kind) == (1, lay.FAULT_BADADDR)


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize(
    ("declared", "place"),
    [("struct s x;", "x"), ("this struct s x;", "this->x"), ("struct s x[int];", "x[1]")],
)
def test_a_store_wider_than_its_variable_is_an_error(
    rig: type[Rig], declared: str, place: str
) -> None:
    """No offset in two bytes has room for eight."""
    text = f"*(long *)&{place}.a = -1; trace(1);"
    clause, kind, _ = values(rig, text, f"struct s {{ char a; char b; }}; {declared}")
    assert (clause, kind) == (1, lay.FAULT_BADADDR)


@pytest.mark.parametrize("rig", RIGS)
def test_structures_and_strings_as_a_whole(rig: type[Rig]) -> None:
    declared = "struct in { int a; char t[6]; }; struct s { long l; struct in i; }; struct s x, y;"
    text = ("x.i.a = 5; x.i.t[5] = 'z'; y.l = 1; y.i = x.i; x.i.a = 6;"
            "trace(y.i.a); trace(y.i.t[5]); trace(y.l); trace(x.i.a);")  # fmt: skip
    assert values(rig, text, declared) == [0, 5, ord("z"), 1, 6]
    declared = "string a[int]; string s;"
    text = ('a[1] = "one"; a[2] = a[1]; a[1] = "other"; s = a[2];'
            'trace(s == "one"); trace(a[1] == "other"); trace(strlen(s));')  # fmt: skip
    assert values(rig, text, declared) == [0, 1, 1, 3]


@pytest.mark.parametrize("rig", RIGS)
def test_elements_of_a_thread(rig: type[Rig]) -> None:
    """A thread's own array has an end like any other."""
    declared = "self int a[4]; self short b[2];"
    text = ("self->a[3] = -5; self->a[0] = 7; self->b[1] = 3; self->a[0]++;"
            "trace(self->a[3]); trace(self->a[0]);"
            "trace(self->a[1]); trace(self->b[1]);")  # fmt: skip
    assert values(rig, text, declared) == [0, -5, 8, 0, 3]
    for place, address in (("a[n]", 4 * 4), ("b[n]", 2 * 4)):
        assert values(rig, f"n = 4; self->{place} = 1; trace(1);", declared) == [
            1, lay.FAULT_BADADDR, address,
        ]  # fmt: skip
        assert values(rig, f"n = 4; trace(self->{place});", declared)[:2] == [1, lay.FAULT_BADADDR]


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("seed", range(4))
def test_bit_fields_of_the_kernel(rig: type[Rig], seed: int) -> None:
    """Bit-fields of one long are from its lowest bit on (System V ABI, "Bit-Fields").

    No byte after the last one's is read.
    """
    rng, members, at = random.Random(seed), [], 0
    while at < 57:
        bits = rng.randrange(1, 64 - at + 1) if seed else (3, 61)[at > 0]
        members.append((f"m{at}", at, bits, rng.random() < 0.5))
        at += bits
    declared = " ".join(f"{'long' if signed else 'unsigned long'} {name} : {bits};"
                        for name, _, bits, signed in members)  # fmt: skip
    traced = " ".join(f"trace((long)((struct s *)regs[R_1])->{name});" for name, *_ in members)
    program = compiled(f"struct s {{ {declared} }}; kinst::f:0 {{ {traced} }}")
    for _ in range(6):
        word = rng.getrandbits(64)
        run = rig(program, {7: (0,)}, memory={0x1000: word.to_bytes(8, "little")[: (at + 7) // 8]})
        run.fire(7, {1: 0x1000})
        (record,) = run.records(run.slot)
        for k, (_, start, bits, signed) in enumerate(members):
            value = word >> start & (1 << bits) - 1
            value -= (value >> bits - 1) << bits if signed else 0
            assert run.fields(record, k) == [value.to_bytes(8, "little", signed=value < 0)]


@pytest.mark.parametrize("rig", RIGS)
def test_arrays_as_a_whole(rig: type[Rig]) -> None:
    """An array as a whole is the address of the first element."""
    text = "f[1] = 7; this->g[2] = 5; trace(*(f + 1)); trace(*(this->g + 2)); trace(*f);"
    assert values(rig, text, "int f[3]; this int g[4];") == [0, 7, 5, 0]
    whole = int.from_bytes(struct.pack("<3i", 0, 7, 9), "little")
    for scope, name in (("", "f"), ("this", "this->f")):
        text = f"{name}[1] = 7; {name}[2] = 9; trace({name});"
        assert values(rig, text, f"{scope} int f[3];") == [0, whole]


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize(("key", "number"), [("-5", -5), ("~5", -6), ("!5", 0), ("(char)300", 44)])
def test_keys_that_an_operator_makes(rig: type[Rig], key: str, number: int) -> None:
    """Keys, constant or not, have the values that C computes."""
    run = rig(compiled(f"kinst::f:0 {{ @[{key}] = count(); }}"), {7: (0,)}, strsize=64)
    run.fire(7)
    (raw,) = run.table(0, run.slot)
    table = run.layout.aggregations[0]
    if table.constant_keys is not None:
        assert table.constant_keys[int.from_bytes(raw, "little")] == (number,)
    else:
        size = table.keys[0].size
        assert int.from_bytes(raw[:size], "little", signed=True) == number


@pytest.mark.parametrize("rig", RIGS)
def test_structures_as_keys(rig: type[Rig]) -> None:
    """Structures are compared by their bytes; an unreadable one is an error, and no other key."""
    declared = "struct k { int a; char b; long c; }; struct k x, y; struct w { long a; } u;"
    text = ("x.a = 1; x.b = 2; y.a = 1; y.b = 2; m[x] = 5; n[x, 1] = 6; u.a = 4; o[u] = 7;"
            "trace(m[y]); trace(n[y, 1]); trace(o[u]);"
            "y.c = 1; u.a = 1; trace(m[y]); trace(n[y, 1]); trace(n[x, 2]); trace(o[u]);"
            "y.c = 0; @[x, 1] = count(); trace(m[y]);")  # fmt: skip
    assert values(rig, text, declared) == [0, 5, 6, 7, 0, 0, 0, 0, 5]
    for array in ("m[{}]", "n[{}, 1]"):
        bad = array.format("*(struct k *)24")
        text = f"{array.format('x')} = 5; trace({bad});"
        assert values(rig, text, declared) == [1, lay.FAULT_BADADDR, 24]


@pytest.mark.parametrize("rig", RIGS)
def test_keys_that_differ_in_the_highest_bit_alone(rig: type[Rig]) -> None:
    """The second of two keys in one word has the highest bits."""
    text = "m[1, 5] = 7; m[1, (int)0x80000005] = 8; trace(m[1, 5]); trace(m[1, (int)0x80000005]);"
    assert values(rig, text, "int m[int, int];") == [0, 7, 8]


@pytest.mark.parametrize("rig", RIGS)
def test_stores_within_stores(rig: type[Rig]) -> None:
    """Stores in the members of a translation, in an index, and in an added value."""
    declared = ("struct in { int a; int b; int m[4]; }; struct in y; struct in z[int];"
                "struct out { int p; int q; int r; };"
                "translator struct out < int N >"
                " { p = (y.b = N + 1); q = 7; r = (y.a = 3); };")  # fmt: skip
    text = "o = xlate <struct out> (5); trace(o.p); trace(o.q); trace(o.r); trace(y.a); trace(y.b);"
    assert values(rig, text, declared) == [0, 6, 7, 3, 3, 6]
    text = ("z[1].m[(y.a = 2)] = 9; z[1].m[(y.b = 1)] += (y.a += 3);"
            "trace(z[1].m[2]); trace(z[1].m[1]); trace(y.a); trace(y.b);")  # fmt: skip
    assert values(rig, text, declared) == [0, 9, 5, 5, 1]


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("place", ["x", "this->y", "self->v", "z[3]", "w[3, 4]"])
def test_a_structure_that_cannot_be_read_is_an_error(rig: type[Rig], place: str) -> None:
    """The fault is an error: reading 0 instead would free the variable."""
    declared = ("struct s { long a; long b; }; struct s x; this struct s y; self struct s v;"
                "struct s z[int]; struct s w[int, int];")  # fmt: skip
    for address in (0, 0x123456):
        text = f"{place}.b = 5; {place} = *(struct s *){address}; trace(1);"
        assert values(rig, text, declared) == [1, lay.FAULT_BADADDR, address]


def test_the_place_of_a_store_on_the_host_is_its_own() -> None:
    """kinst's process does not store to its own memory either."""
    clause, kind, _ = values(HostRig, "*(long *)regs[R_2] = 1; trace(1);")
    assert (clause, kind) == (1, lay.FAULT_BADADDR)
