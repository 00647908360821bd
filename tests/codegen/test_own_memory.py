"""Memory that a firing may write: its own CPU's areas and shared ones (core/layout.py).

Nothing may depend on the previous contents of working memory.  Many sizes of strings are odd on
purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kinst.codegen.subroutines import prototypes
from kinst.core import layout as lay
from kinst.core.dtypes import StringType
from kinst.core.errors import KinstError
from kinst.dlang import typed as t
from kinst.dlang.api import Environment, compile_text
from tests.codegen.codegen_rig import RIGS, SIZE, HostRig, Rig, TargetRig, scratch
from tests.codegen.subroutines_rig import REGS

both = pytest.mark.parametrize("kind", RIGS)
STRSIZES = (9, 17, 256, *(pytest.param(size, marks=pytest.mark.full) for size in (16, 65, 111)))
AT, HIGH = 0x10000, 0x20000  # address of the letters, and every byte above 127, in the kernel
LETTERS = "".join(chr(ord("a") + k % 26) for k in range(400))


def compiled(kind: type[Rig], text: str, strsize: int = 64) -> Rig:
    """Compile clauses of the single probe, one a line."""
    program = compile_text(
        text, "test", environment=Environment(REGS, strsize, subroutines=prototypes())
    )[1]
    clauses = tuple(range(text.count("kinst::f:0")))
    error = (len(clauses),) if "dtrace:::ERROR" in text else ()
    memory = {AT: LETTERS.encode() + bytes(1024), HIGH: bytes(range(128, 256)) + bytes(1024)}
    places = scratch(ring_size=8192)
    return kind(program, {7: clauses}, error, strsize=strsize, memory=memory, scratch=places)


def own_areas(run: Rig, slot: int) -> list[tuple[int, int]]:
    """Return (first, end) of areas that a firing on this CPU may write."""
    places, layout = run.scratch, run.layout
    working, tables = places.temp + slot * places.temp_size, places.agg_of(slot, 0)
    return sorted([
        (0, lay.PAGE), (places.state_of(slot), places.state_of(slot + 1)),
        (places.ring_of(slot), places.ring_of(slot + 1)),
        (tables, tables + sum(a.capacity * a.entry_size for a in layout.aggregations)),
        (working, working + places.temp_size),
        (places.globals, places.globals + layout.globals_area),
        (places.dynamic, places.dynamic + layout.dynamic_size),
    ])  # fmt: skip


def fire(run: Rig, rng: random.Random, cpu: int = 0) -> None:
    """Fire once, with random bytes in working memory and in the areas of other CPUs."""
    slot = run.slot if isinstance(run, HostRig) else cpu
    places, own = run.scratch, own_areas(run, slot)
    run.write(places.temp + slot * places.temp_size, rng.randbytes(places.temp_size))
    others = [(end, start) for (_, end), (start, _) in zip(own, [*own[1:], (SIZE, 0)], strict=True)]
    for first, end in others:
        if first < end <= places.strings:
            run.write(first, rng.randbytes(end - first))
    before = run.read(0, SIZE)
    run.fire(7, {1: AT, 2: 5, 3: HIGH}, cpu)
    after = run.read(0, SIZE)
    for first, end in others:
        if before[first:end] != after[first:end]:
            changed = [hex(at) for at in range(first, end) if before[at] != after[at]]
            pytest.fail(f"written from {changed[0]} to {changed[-1]}: {len(changed)} bytes")


def recorded(run: Rig, slot: int) -> list[tuple[int, list[int | bytes]]]:
    """Return the clause and the values of each record."""
    found = []
    for record in run.records(slot):
        values: list[int | bytes] = []
        for action, fields in enumerate(run.layout.clauses[record.clause].fields):
            for field, raw in zip(fields, run.fields(record, action), strict=True):
                if isinstance(field.type, StringType):
                    values.append(raw.split(b"\0")[0])
                else:
                    signed = t.is_signed(field.type)
                    values.append(int.from_bytes(raw, "little", signed=signed))
        found.append((record.clause, values))
    return found


Model = Callable[[int], list[int | bytes]]


def cut(text: str) -> Model:
    return lambda strsize: [text.encode()[: strsize - 1]]


DECLARED = (
    "struct t { long l[3]; }; this string never, none[3]; this int few[3]; this struct t held;"
)
# A clause, and its record with strings of so many bytes.
CLAUSES: tuple[tuple[str, Model], ...] = (
    (f'trace("{LETTERS}");', cut(LETTERS)),
    (f'this->s = "{LETTERS}"; trace(this->s);', cut(LETTERS)),
    (f's = "{LETTERS}"; trace(s);', cut(LETTERS)),
    (f'self->s = "{LETTERS}"; trace(self->s);', cut(LETTERS)),
    (f'a[5, "{LETTERS}"] = "{LETTERS}"; trace(a[5, "{LETTERS}"]);', cut(LETTERS)),
    ("trace(stringof((char *)regs[R_1]));", cut(LETTERS)),
    (f'trace(strtok("{LETTERS}", "!"));', cut(LETTERS)),
    (f'trace(strtok("{LETTERS}", "c")); trace(strtok(NULL, "f"));', lambda _: [b"ab", b"de"]),
    (f'trace(substr("{LETTERS}", 1));', lambda strsize: [LETTERS.encode()[1:strsize]]),
    (f'trace(toupper("{LETTERS}"));', cut(LETTERS.upper())),
    (
        'trace(strtok(stringof((char *)regs[R_3]), "!"));',
        lambda strsize: [bytes(range(128, 256))[: strsize - 1]],
    ),
    (f'trace(toupper("{LETTERS}") == toupper("{LETTERS}"));', lambda _: [1]),
    ("trace(this->never); trace(this->none[1]); trace(this->few[2]); trace(this->held.l[2]);",
     lambda _: [b"", b"", 0, 0]),
    ('trace(basename("/x/name"));', lambda _: [b"name"]),
    ("trace(memstr((char *)regs[R_1], 46, 300));", cut(LETTERS[:299])),
    (
        f'this->x = "{LETTERS[:7]}"; this->y = strjoin(this->x, "z"); trace(this->x);'
        " trace(this->y);",
        lambda _: [LETTERS[:7].encode(), LETTERS[:7].encode() + b"z"],
    ),
    ("trace(lltostr(-7700));", lambda _: [b"-7700"]),
    (
        f'this->s = "{LETTERS}"; trace(lltostr(-1, 2)); trace(lltostr(5)); trace(this->s);',
        lambda strsize: [b"1" * min(64, strsize - 1), b"5", LETTERS.encode()[: strsize - 1]],
    ),
    ('trace(inet_ntop(2, "abcd"));', cut("97.98.99.100")),
    ("this->n++; trace(this->n); this->p = (char *)alloca(3); trace(*(this->p + 2));",
     lambda _: [1, 0]),
    (f'@["{LETTERS}", (char)regs[R_2]] = quantize(5); @b = sum(3); trace(1);', lambda _: [1]),
)  # fmt: skip


@both
@pytest.mark.parametrize("strsize", STRSIZES)
def test_own_memory_alone_is_written(kind: type[Rig], strsize: int) -> None:
    rng = random.Random(strsize)
    text = DECLARED + "\n".join(f"kinst::f:0 {{ {body} }}" for body, _ in CLAUSES)
    expected = [(k, model(strsize)) for k, (_, model) in enumerate(CLAUSES)]
    for cpu in (0, 1):
        run = compiled(kind, text, strsize)
        slot = run.slot if kind is HostRig else cpu
        for _ in range(2):
            run.consume(slot)
            fire(run, rng, cpu)
            assert recorded(run, slot) == expected
        assert run.state(lay.STATE_ERRORS, slot) == run.state(lay.STATE_DROPS, slot) == 0


def with_room(text: str, size: int) -> Rig | None:
    """Return a program whose actions have so many bytes for their strings; None if they need
    more."""
    places = scratch(temp_size=lay.ARENA + 64 + 64 + size)
    try:
        program = compile_text(
            text, "test", environment=Environment(REGS, 64, subroutines=prototypes())
        )[1]
        memory = {AT: LETTERS.encode() + bytes(1024)}
        return HostRig(program, {7: (0,)}, strsize=64, memory=memory, scratch=places)
    except KinstError as error:
        assert "one action needs more" in str(error)
        return None


@pytest.mark.parametrize(
    "value",
    [f'toupper("{LETTERS}")', f'substr("{LETTERS}", 1, 63)', "stringof((char *)regs[R_1])",
     f'strjoin("{LETTERS[:30]}", "{LETTERS[:33]}")', "memstr((char *)regs[R_1], 46, 300)",
     f'basename("/{LETTERS}")', f'dirname("/{LETTERS[:61]}/a")', f'cleanpath("/{LETTERS}")',
     f'strtok("{LETTERS}", "!")', "lltostr(-1, 2)", "inet_ntoa6((char *)regs[R_1])",
     "(execname, cwd)", "strlen((string)regs[R_1])", "execname[3]", "never[1].c[0]"],
)  # fmt: skip
def test_texts_end_where_allocations_begin(value: str) -> None:
    """Texts are followed by allocations, with no byte between the two."""
    text = f"""struct odd {{ char c[3]; }}; struct odd never[int];
        kinst::f:0 {{ this->p = (long *)alloca(16); *this->p = -1; this->p[1] = -1;
        trace({value}); trace(*this->p); trace(this->p[1]); }}"""
    least = next(n for n in range(0, 512, 8) if with_room(text, n))
    run = with_room(text, least)
    assert run is not None and least
    fire(run, random.Random(1))
    ((_, values),) = recorded(run, run.slot)
    assert values[-2:] == [-1, -1]


KEYS = (
    "(char)regs[R_2], (long)regs[R_1]", "(short)regs[R_2], (char)1", "(char)regs[R_2]",
    '(char)regs[R_2], "abc"', '(char)1, "abcdefg"', '"abcdefgh", (char)regs[R_2]',
    "(char)regs[R_2], (char)3", "(int)regs[R_1], (char)regs[R_2], (long)3",
    "(long)regs[R_1], (short)regs[R_2]", '"ab", "cd", (char)1, (int)regs[R_2], "efghijkl"',
    "1, 2, 3, (char)regs[R_2], 5, 6, 7, 8, (char)9",
    "(long)regs[R_1], (char)regs[R_2]",
    *(
        pytest.param(
            f'substr("abcdefghijk", 0, {count})', marks=pytest.mark.full if 0 < count < 7 else ()
        )
        for count in range(9)
    ),
    "(long)1, (long)regs[R_1], (char)regs[R_2], (long)4, (char)1",
)  # fmt: skip


@both
@pytest.mark.parametrize("keys", KEYS)
def test_gaps_between_keys_are_no_part_of_them(kind: type[Rig], keys: str) -> None:
    """Equal keys are equal whatever the memory held in which they are put together.

    Memory after them is not written.
    """
    rng = random.Random(1)
    run = compiled(
        kind,
        f'kinst::f:0 {{ this->s = "{LETTERS}"; a[{keys}]++; self->b[{keys}]++; @[{keys}] = sum(3);'
        f" trace(a[{keys}]); trace(self->b[{keys}]); trace(this->s); }}",
    )
    for count in range(1, 5):
        run.consume(run.slot)
        fire(run, rng)
        assert recorded(run, run.slot) == [(0, [count, count, LETTERS[:63].encode()])]
    assert list(run.table(0, run.slot).values()) == [(12,)]
    # Memory in which no variable's key has been put together before.
    alone = compiled(kind, f"kinst::f:0 {{ @[{keys}] = sum(3); }}")
    for _ in range(4):
        fire(alone, rng)
    assert list(alone.table(0, alone.slot).values()) == [(12,)]


@both
@pytest.mark.parametrize(
    "keys",
    [
        "(char)(N - 6)",
        "(long)(N - 6)",
        '(char)N, "abcdefg"',
        '"abcdefgh", (char)N',
        "N, (int)(N - 6)",
    ],
)
@pytest.mark.parametrize("used", ["@[KEYS] = sum(3);", "a[KEYS]++;", "self->a[KEYS]++;"])
def test_nothing_is_stored_behind_the_longest_key(kind: type[Rig], keys: str, used: str) -> None:
    """Memory after the longest key belongs to the clause."""
    rng = random.Random(2)
    update = used.replace("KEYS", keys.replace("N", "regs[R_2]"))
    run = compiled(
        kind, f'kinst::f:0 {{ this->s = "{LETTERS}"; {update} trace(this->s); {update} }}'
    )
    fire(run, rng)
    assert recorded(run, run.slot) == [(0, [LETTERS[:63].encode()])]


@both
@pytest.mark.parametrize("words", [1, 2, 8])
def test_the_end_of_a_ring_is_its_own(kind: type[Rig], words: int) -> None:
    """The end of a ring may have room only for a pad of eight bytes."""
    rng = random.Random(words)
    run = compiled(kind, f"kinst::f:0 {{ {'trace(regs[R_1]);' * words} }}")
    size = lay.RECORD_HEADER + 8 * words
    left = set()
    for _ in range(run.scratch.ring_size // size + 2):
        left.add(run.scratch.ring_size - run.state(lay.STATE_HEAD, run.slot))
        run.consume(run.slot)
        fire(run, rng)
        assert recorded(run, run.slot) == [(0, [AT] * words)]
    assert (8 in left) == (words == 8)


def test_who_ends_the_trace_on_a_cpu_leaves_the_others_to_find_out() -> None:
    """Only kinst writes to the pages of other CPUs (STATE_CLOSED)."""
    for cpu in (0, 1):
        run = compiled(TargetRig, "kinst::f:0 { exit(3); }")
        fire(run, random.Random(1), cpu)
        assert recorded(run, cpu) == [(0, [3])]
        assert run.read(lay.HEADER_ACTIVE, 8) == bytes(8)
        assert run.read(run.scratch.state_of(cpu) + lay.STATE_CLOSED, 4) == bytes(4)
