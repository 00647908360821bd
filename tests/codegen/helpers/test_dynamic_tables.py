"""Tables of dynamic variables: several threads at once, reuse of freed entries, counts of full
tables, and the code for every instruction set."""

from __future__ import annotations

import random
import struct

import pytest
import unicorn

from kinst.codegen.code_machine import target_machine
from kinst.codegen.compile import ProgramEntries, compile_target
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.consumer.dynvars import Cleaner
from kinst.core import layout as lay
from kinst.core import records as rec
from kinst.core.dtypes import INT, INT64, UINT64, PointerType
from kinst.core.system import Access, Facts
from kinst.dlang import typed as t
from kinst.isa import load
from kinst.systems.linux.isafacts import facts_of
from tests.codegen.codegen_rig import (
    BASE,
    BUILTINS,
    CLOCK,
    CURRENT_AT,
    GS_BASE,
    NOFAULT,
    RIGS,
    SPAN,
    TASK_AT,
    HostRig,
    Rig,
    TargetRig,
    integer,
    program,
    reg,
    scratch,
    trace,
)
from tests.codegen.helpers.dynamic_tables_rig import BUCKETS, KEYS, OWN, ROUNDS, THREADS, Tables
from tests.codegen.subroutines_rig import compiled


def cleaner(tables: Tables) -> Cleaner:
    return Cleaner(memoryview(tables.map), tables.places, (tables.layout,), 0)


def test_no_increment_is_lost() -> None:
    tables = Tables(shared=True)
    tables.run_threads("tally", lambda: None)
    entries = tables.entries()
    assert {state for state, _, _ in entries} == {rec.DYNAMIC_LIVE}
    keys = [key for _, key, _ in entries]
    assert len(set(keys)) == len(keys) == BUCKETS * 5, "a key was made twice, or not at all"
    for _, key, value in entries:
        assert value == sum(tables.noted(thread, key) for thread in range(THREADS))
    total = sum(value for _, _, value in entries)
    drops = sum(tables.state(n, lay.STATE_DYNAMIC_DROPS) for n in range(THREADS))
    assert total + drops == THREADS * ROUNDS
    assert not any(control & rec.DYNAMIC_LOCKED for control in tables.controls())


@pytest.mark.parametrize("shared", [True, False])
def test_threads_set_free_and_read(shared: bool) -> None:
    """The cleaner runs all the time.  Threads do not read each other's own variables."""
    tables = Tables(shared)
    cleaning = cleaner(tables)
    lies = tables.run_threads("hammer", cleaning.clean)
    assert lies == [0] * THREADS
    for number in range(3):
        cleaning.clean(number + (1 << 62))
    entries = tables.entries()
    assert {state for state, _, _ in entries} <= {rec.DYNAMIC_LIVE}
    found = {key: value for _, key, value in entries}
    assert len(found) == len(entries), "a key is there twice"
    noted = {
        key: tables.noted((key - 1) // OWN, key)
        for key in range(1, KEYS + 1)
        if tables.noted((key - 1) // OWN, key)
    }
    assert found == noted
    assert not any(control & rec.DYNAMIC_LOCKED for control in tables.controls())
    assert all(tables.state(n, lay.STATE_SEQUENCE) == 2 * ROUNDS for n in range(THREADS))


def test_a_freed_element_becomes_free_in_two_steps() -> None:
    """The cleaner waits for clauses that ran when it began to rinse."""
    tables = Tables(shared=True)
    cleaning, now = cleaner(tables), iter(range(1 << 62, (1 << 62) + 99))
    state = tables.base + tables.places.state_of(0)
    for key in range(1, BUCKETS * rec.DYNAMIC_ENTRIES + 1):
        assert tables.call("obtain", key, state), key
    assert not tables.call("obtain", 1000, state)  # no room at all
    counts = (lay.STATE_DYNAMIC_DROPS, lay.STATE_DYNAMIC_DIRTY, lay.STATE_DYNAMIC_RINSING)
    assert [tables.state(0, at) for at in counts] == [1, 0, 0]
    entry = tables.call("find", 5)
    tables.call("remove", 5)
    assert not tables.call("find", 5)
    assert not tables.call("obtain", 1000, state)  # there is room, but it is dirty
    assert [tables.state(0, at) for at in counts] == [1, 1, 0]
    running = tables.places.state_of(2) + lay.STATE_SEQUENCE
    struct.pack_into("<Q", tables.map, running, 7)  # CPU 2 is in a clause
    for _ in range(4):
        cleaning.clean(next(now))
        assert not tables.call("obtain", 1000, state)
    assert [tables.state(0, at) for at in counts] == [1, 1, 4]
    struct.pack_into("<Q", tables.map, running, 9)  # in a later one
    cleaning.clean(next(now))
    assert tables.call("obtain", 1000, state) == entry
    assert tables.call("find", 1000) == entry and not tables.call("find", 5)


def test_a_lock_that_is_never_given_back() -> None:
    """A clause gives up after a while, counts that, and still finds existing elements."""
    tables = Tables(shared=True)
    state = tables.base + tables.places.state_of(0)
    entry = tables.call("obtain", 5, state)
    for bucket in range(BUCKETS):
        at = tables.places.dynamic + bucket * tables.layout.stride
        struct.pack_into("<Q", tables.map, at, tables.word(at) | rec.DYNAMIC_LOCKED)
    assert tables.call("obtain", 5, state) == tables.call("find", 5) == entry != 0
    assert tables.call("obtain", 6, state) == 0
    assert tables.state(0, lay.STATE_DYNAMIC_DROPS) == 1
    assert tables.call("find", 6) == 0


def test_without_a_free_entry_a_search_ends() -> None:
    """Every bucket is full and passed: the search for a missing element ends."""
    tables = Tables(shared=False)
    state = tables.base + tables.places.state_of(0)
    made = [tables.call("obtain", key, state) for key in range(1, 100)]
    assert sum(1 for one in made if one) == BUCKETS * rec.DYNAMIC_ENTRIES
    assert tables.state(0, lay.STATE_DYNAMIC_DROPS) == 99 - BUCKETS * rec.DYNAMIC_ENTRIES
    assert all(control & rec.DYNAMIC_PASSED for control in tables.controls())
    tables.call("remove", made.index(next(filter(None, made))) + 1)
    assert tables.call("obtain", 200, state)  # an element of a thread is free immediately


@pytest.mark.parametrize("kind", RIGS)
@pytest.mark.parametrize("keys", ["{}", "{}, 2", "{}, 2, 3, 4, 5, 6, 7, 8, 9"])
@pytest.mark.parametrize("buckets", [1, 2, 3, rec.DYNAMIC_PROBES])
def test_every_entry_can_be_had(kind: type[Rig], keys: str, buckets: int) -> None:
    """Each key may be in all buckets if there are no more buckets than a key may be in."""
    element = f"a[{keys.format('regs[R_1]')}]"
    code = compiled(f"kinst::f:0 {{ {element} = regs[R_2]; }} kinst::g:0 {{ trace({element}); }}")
    layout = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0]
    size = buckets * layout.stride
    rig = kind(code, {1: (0,), 2: (1,)}, strsize=64, scratch=scratch(dynamic_size=size))
    entries, rng = buckets * rec.DYNAMIC_ENTRIES, random.Random(buckets)
    for trial in range(6):
        rig.write(rig.scratch.dynamic, bytes(size))
        *chosen, late, other = rng.sample(range(1 << 62), entries + 2)
        for number, key in enumerate(chosen):
            rig.fire(1, {1: key, 2: 1000 + number})
        assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == trial
        rig.fire(1, {1: late, 2: 5})
        assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == trial + 1
        kept = dict(zip(chosen, range(1000, 1000 + entries), strict=True)) | {late: 0, other: 0}
        for key, value in kept.items():
            rig.consume(rig.slot)
            rig.fire(2, {1: key})
            (record,) = rig.records(rig.slot)
            assert rig.fields(record) == [struct.pack("<q", value)]


def test_a_key_is_in_one_of_a_few_buckets() -> None:
    """A key is in one of a few buckets, from its own on, if there are more: keys of one bucket
    fill no others."""
    code = compiled("kinst::f:0 { a[regs[R_1]] = 1; }")
    buckets = rec.DYNAMIC_PROBES + 3
    stride = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0].stride
    rig = HostRig(code, {1: (0,)}, strsize=64, scratch=scratch(dynamic_size=buckets * stride))

    def used() -> list[int]:
        """Return the number of used entries of each bucket."""
        area = rig.read(rig.scratch.dynamic, buckets * stride)
        tags = (struct.unpack_from("<7Q", area, k * stride + 8) for k in range(buckets))
        return [sum(tag != 0 for tag in line) for line in tags]

    entries = rec.DYNAMIC_PROBES * rec.DYNAMIC_ENTRIES
    for home in (0, buckets - 2):
        keys, key = [], 0
        while len(keys) < entries + 1:
            key += 1
            rig.write(rig.scratch.dynamic, bytes(buckets * stride))
            rig.fire(1, {1: key})
            if used()[home]:
                keys.append(key)
        rig.write(rig.scratch.dynamic, bytes(buckets * stride))
        before = rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot)
        for key in keys:
            rig.fire(1, {1: key})
        expected = [0] * buckets
        for k in range(rec.DYNAMIC_PROBES):
            expected[(home + k) % buckets] = rec.DYNAMIC_ENTRIES
        assert used() == expected
        assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == before + 1


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_each_word_of_a_key_has_a_say_in_where_it_is(count: int) -> None:
    """Keys that differ in only one of their words fill half of a table, and none finds no room."""
    element = f"a[{', '.join(f'regs[R_{k}]' for k in range(count))}]"
    code = compiled(f"kinst::f:0 {{ {element} = 1; }}")
    stride = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0].stride
    size = 64 * stride
    rig = HostRig(code, {1: (0,)}, strsize=64, scratch=scratch(dynamic_size=size))
    for word in range(count):
        rig.write(rig.scratch.dynamic, bytes(size))
        for number in range(64 * rec.DYNAMIC_ENTRIES // 2):
            rig.fire(1, {**dict.fromkeys(range(count), 5), word: number})
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


STRUCTURE = "struct s { char c; short h; int i[3]; long l[2]; char d; };"


@pytest.mark.parametrize("kind", RIGS)
@pytest.mark.parametrize(
    ("declared", "changed", "read"),
    [
        ("struct s z[int];", "z[5].d = 1", ("z[5].c", "z[5].h", "z[5].i[1]", "z[5].l[0]",
         "z[5].l[1]", "z[5].i[0]", "z[5].i[2]")),
        ("self struct s z[int, string];", 'self->z[5, "k"].c = 1', tuple(
         f'self->z[5, "k"].{member}' for member in ("h", "i[0]", "i[2]", "l[0]", "l[1]", "d"))),
        ("struct t { int a; char b; }; struct t z[int];", "z[5].b = 1", ("z[5].a",)),
        ("long z[int];", "z[4]++", ("z[4] - 1", "z[5]")),
        ("self char z;", "++self->z", ("self->z - 1",)),
        ("string z[int];", 'z[5] = ""', ("strlen(z[5])",)),
    ],
)  # fmt: skip
def test_a_new_element_is_zero_whatever_its_memory_held(
    kind: type[Rig], declared: str, changed: str, read: tuple[str, ...]
) -> None:
    traced = " ".join(f"trace((long)({one}));" for one in read)
    code = compiled(f"{STRUCTURE} {declared} kinst::f:0 {{ {changed}; {traced} }}")
    layout = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0]
    rig = kind(code, {1: (0,)}, strsize=64, scratch=scratch(dynamic_size=layout.stride))
    dirt = random.Random(declared).randbytes(layout.stride - rec.DYNAMIC_LINE)
    rig.write(rig.scratch.dynamic, bytes(rec.DYNAMIC_LINE) + dirt)  # tags of 0: all are free
    rig.fire(1)
    (record,) = rig.records(rig.slot)
    assert [rig.fields(record, 1 + k) for k in range(len(read))] == [[bytes(8)]] * len(read)


@pytest.mark.parametrize("kind", RIGS)
def test_steps_that_find_no_room(kind: type[Rig]) -> None:
    """A missing element counts as 0, and stays so; each is a drop."""
    text = "a[regs[R_1]] = 5; trace(a[regs[R_2]]++); trace(--a[regs[R_2]]); trace(a[regs[R_2]]);"
    code = compiled(f"int a[long]; kinst::f:0 {{ {text} }}")
    stride = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0].stride
    rig = kind(code, {1: (0,)}, strsize=64, scratch=scratch(dynamic_size=stride))
    for key in range(1, rec.DYNAMIC_ENTRIES + 1):
        before = rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot)
        rig.consume(rig.slot)
        rig.fire(1, {1: key, 2: 1 if key < rec.DYNAMIC_ENTRIES else 99})
        (record,) = rig.records(rig.slot)
        found = [int.from_bytes(rig.fields(record, k)[0], "little", signed=True) for k in (1, 2, 3)]
        full = key == rec.DYNAMIC_ENTRIES
        assert found == ([0, -1, 0] if full else [5, 5, 5])
        assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == before + 2 * full


@pytest.mark.parametrize("kind", RIGS)
@pytest.mark.parametrize("name", ["self->x[regs[R_1]]", "self->x[regs[R_1], 2]"])
@pytest.mark.parametrize("step", ["X--;", "--X;", "trace(X--);", "X -= 1;"])
def test_what_is_counted_down_to_0_is_freed(kind: type[Rig], name: str, step: str) -> None:
    text = f"X = 1; X++; X--; {step}".replace("X", name)
    code = compiled(f"kinst::f:0 {{ {text} }}")
    stride = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0].stride
    rig = kind(code, {1: (0,)}, strsize=64, scratch=scratch(dynamic_size=stride))
    for key in range(3 * rec.DYNAMIC_ENTRIES):
        rig.fire(1, {1: key})
        rig.consume(rig.slot)
        tags = rig.read(rig.scratch.dynamic + 8, rec.DYNAMIC_LINE - 8)
        assert tags == bytes(len(tags))
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


def test_variables_of_many_threads() -> None:
    """Elements are set, freed and read in any order: each thread finds its own as it left them."""
    code = compiled(
        "self string s; kinst::f:0 { self->x = regs[R_1]; self->s = lltostr(regs[R_2]); }"
        "kinst::g:0 { self->x = 0; } kinst::h:0 { self->s = 0; }"
        'kinst::i:0 { trace(self->x); trace(self->s == "0"); trace(self->s == NULL); }'
    )
    layouts = lay_out_program(code, [], 40, 4096, 1 << 16).dynamic
    size = 3 * sum(one.stride for one in layouts)
    probes = {k: (k,) for k in range(4)}
    rig = TargetRig(code, probes, strsize=40, scratch=scratch(dynamic_size=size))
    rng, own = random.Random(3), dict[int, int]()
    named = dict[int, int]()
    for _ in range(600):
        thread = 0xFFFF_8880_0000_0000 + 64 * rng.randrange(12)
        rig.emulator.mem_write(GS_BASE + CURRENT_AT, struct.pack("<Q", thread))
        probe, value = rng.randrange(4), rng.randrange(1, 99)
        rig.consume(rig.slot)
        rig.fire(probe, {1: value, 2: value % 2})
        if probe == 0:
            own[thread], named[thread] = value, value % 2
        elif probe in (1, 2):
            (own, named)[probe - 1].pop(thread, None)
        else:
            (record,) = rig.records(rig.slot)
            x, zero, null = (int.from_bytes(rig.fields(record, k)[0], "little") for k in range(3))
            assert (x, zero, null) == (
                own.get(thread, 0), named.get(thread) == 0, thread not in named,
            )  # fmt: skip
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


@pytest.mark.parametrize("keys", ["regs[R_1]", "1, 2, 3, regs[R_1], 5, 6"])
def test_another_cpu_makes_the_element_meanwhile(keys: str) -> None:
    """Another CPU makes the element before each search, until this CPU has the lock.

    The element is made once, both steps count, and the lock is free again.
    """
    code = compiled(f"kinst::f:0 {{ a[{keys}]++; }}")
    stride = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0].stride
    rig = TargetRig(code, {1: (0,)}, strsize=64, scratch=scratch(dynamic_size=stride))
    area, when, made = rig.scratch.dynamic, 0, b""
    looks = list[int]()  # whether the lock was taken

    def look(*_: object) -> None:
        looks.append(rig.read(area, 8)[0] & rec.DYNAMIC_LOCKED)
        if len(looks) == when and not any(looks):
            rig.write(area, made)

    end = BASE + area + rec.DYNAMIC_LINE - 1
    rig.emulator.hook_add(unicorn.UC_HOOK_MEM_READ, look, begin=BASE + area, end=end)
    rig.fire(1, {1: 7})
    made = rig.read(area, stride)
    assert any(made[8 : rec.DYNAMIC_LINE]) and not made[0] & rec.DYNAMIC_LOCKED
    rig.fire(1, {1: 7})
    twice = rig.read(area, stride)
    looks.clear()
    while not any(looks[:when]):
        when += 1
        looks.clear()
        rig.write(area, bytes(stride))
        rig.fire(1, {1: 7})
        assert rig.read(area, stride) == (made if any(looks[:when]) else twice)
    assert when > rec.DYNAMIC_ENTRIES
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


@pytest.mark.parametrize("name", ["a[X]", "self->a[X]", "a[1, 2, 3, X, 5, 6]"])
def test_another_cpu_takes_the_free_entry_meanwhile(name: str) -> None:
    """Another CPU takes the free entry before each search: both elements exist in the end.

    The other element's first bucket may differ, so it need not have this element's lock.
    """
    element = name.replace("X", "regs[R_1]")
    code = compiled(f"kinst::f:0 {{ {element} = regs[R_2]; }} kinst::g:0 {{ trace({element}); }}")
    layout = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0]
    rig = TargetRig(
        code, {1: (0,), 2: (1,)}, strsize=64, scratch=scratch(dynamic_size=layout.stride)
    )
    area, first, when, looks = rig.scratch.dynamic, rec.DYNAMIC_LINE, 0, 0
    tag, entry = b"", b""

    def look(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == when and rig.read(area + 8, 8) == bytes(8):
            rig.write(area + first, entry)
            rig.write(area + 8, tag)

    end = BASE + area + first - 1
    rig.emulator.hook_add(unicorn.UC_HOOK_MEM_READ, look, begin=BASE + area, end=end)
    rig.fire(1, {1: 8, 2: 88})
    tag, entry = rig.read(area + 8, 8), rig.read(area + first, layout.entry_size)
    both, done = 0, False
    while not done:
        when, looks = when + 1, 0
        rig.write(area, bytes(layout.stride))
        rig.fire(1, {1: 7, 2: 77})
        done, looks = looks < when, when  # the search below changes nothing
        taken = rig.read(area + 8, 8) == tag
        both += taken
        for key, value in ((7, 77), (8, 88 if taken else 0)):
            rig.consume(rig.slot)
            rig.fire(2, {1: key})
            (record,) = rig.records(rig.slot)
            assert rig.fields(record) == [struct.pack("<q", value)]
    assert both > rec.DYNAMIC_ENTRIES
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


@pytest.mark.parametrize("kind", RIGS)
@pytest.mark.parametrize("count", [2, 4, 5, 7])
def test_equal_tags_do_not_make_equal_keys(kind: type[Rig], count: int) -> None:
    """Keys of several words that are almost equal, with one tag: each is written over one that had
    it."""
    element = f"a[{', '.join(f'regs[R_{k}]' for k in range(count))}]"
    code = compiled(f"kinst::f:0 {{ {element} = 7; }} kinst::g:0 {{ trace({element}); }}")
    stride = lay_out_program(code, [], 64, 4096, 1 << 16).dynamic[0].stride
    rig = kind(code, {1: (0,), 2: (1,)}, strsize=64, scratch=scratch(dynamic_size=stride))
    key = {k: 0x1000 + k for k in range(count)}

    def value() -> int:
        rig.consume(rig.slot)
        rig.fire(2, key)
        (record,) = rig.records(rig.slot)
        return int.from_bytes(rig.fields(record)[0], "little")

    wanted = struct.pack(f"<{count}Q", *key.values())
    for changed in (count - 1, 1, 0):
        rig.fire(1, key)
        assert value() == 7
        at = rig.scratch.dynamic + rig.read(rig.scratch.dynamic, stride).index(wanted)
        rig.write(at + 8 * changed, struct.pack("<Q", 0x9999))
        assert value() == 0
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


@pytest.mark.parametrize("kind", RIGS)
def test_what_a_thread_has_freed_is_free_at_once(kind: type[Rig]) -> None:
    """Any variable of a thread is free immediately; shared ones are free when the consumer says
    so."""
    texts = ("self->x[regs[R_1]]", "self->y[regs[R_1], 1]", "self->z", "self->s", "self->w",
             "a[regs[R_1]]")  # fmt: skip
    code = compiled("self string s;" + "".join(
        f"kinst::f:{k} {{ {text} = {5 if text != 'self->s' else 'execname'}; {text} = 0; }}"
        f"kinst::g:{k} {{ trace({text} == 0); }}"
        for k, text in enumerate(texts)
    ))  # fmt: skip
    probes = {k: (k,) for k in range(2 * len(texts))}
    rig = kind(code, probes, strsize=40, scratch=scratch(dynamic_size=4096))
    for k, text in enumerate(texts):
        before = rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot)
        dirty = rig.state(lay.STATE_DYNAMIC_DIRTY, rig.slot)
        for key in range(300):
            rig.fire(2 * k, {1: key})
            rig.consume(rig.slot)
            rig.fire(2 * k + 1, {1: key})
            (record,) = rig.records(rig.slot)
            assert any(rig.fields(record)[0]), text
        assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == before
        found = rig.state(lay.STATE_DYNAMIC_DIRTY, rig.slot) > dirty
        assert found == (not text.startswith("self")), text


# Clauses, on the host and in the emulator.

# Without a per-CPU register, everything is found from the current thread.
THREAD = {
    name: Access(None, (0x10,), access.size, access.signed, access.string, thread=True)
    for name, access in BUILTINS.items()
} | {"curthread": Access(None, (), 8, thread=True)}
SELF = t.Variable("self->x", INT64, 0, "self")
ARRAY = t.Variable("a", INT, 1, "global", (UINT64, UINT64))


def clauses() -> tuple[list[t.Action], ...]:
    keys = (reg(1), reg(2))

    def evaluate(expr: t.Expr) -> t.Action:
        return t.EvaluateAction(SPAN, expr)

    own = trace(t.GlobalRead(INT64, SPAN, SELF))
    element = trace(t.KeyedRead(INT, SPAN, ARRAY, keys))
    return (
        [own, element],
        [evaluate(t.Assign(INT64, SPAN, SELF, reg(3))), own],
        [evaluate(t.KeyedStep(INT, SPAN, ARRAY, keys, 1, True)), element],
        [evaluate(t.KeyedAssign(INT, SPAN, ARRAY, keys, integer(0))), element],
        [evaluate(t.Assign(INT64, SPAN, SELF, integer(0, INT64))), own],
    )


@pytest.mark.parametrize("kind", RIGS)
def test_clauses(kind: type[Rig]) -> None:
    probes = {10 + i: (i,) for i in range(5)}
    rig = kind(
        program(*clauses(), variables=(SELF, ARRAY)), probes,
        scratch=scratch(dynamic_size=1 << 20),
    )  # fmt: skip

    def values(probe: int, first: int = 1, second: int = 1, third: int = 0) -> list[int]:
        rig.consume(rig.slot)
        rig.fire(probe, {1: first, 2: second, 3: third})
        (record,) = rig.records(rig.slot)
        count = len(clauses()[probe - 10])
        return [
            int.from_bytes(rig.fields(record, i)[0], "little", signed=True)
            for i in range(count)
            if rig.layout.clauses[record.clause].fields[i]
        ]

    assert values(10) == [0, 0]
    assert values(11, third=77) == [77]
    assert values(12) == [1] and values(12) == [2] and values(12, 1, 2) == [1]
    assert values(10) == [77, 2] and values(10, 1, 2) == [77, 1] and values(10, 2, 1) == [77, 0]
    assert values(13) == [0] and values(10) == [77, 0] and values(10, 1, 2) == [77, 1]
    assert values(14) == [0] and values(10) == [0, 0]
    assert rig.state(lay.STATE_DYNAMIC_DROPS, rig.slot) == 0


# Parts of the preemption count (include/linux/preempt.h): a soft interrupt's handler, a hard one's
# and that of an NMI; below them how often preemption was turned off, above them a flag.
SOFT, HARD, NMI = 1 << 8, 1 << 16, 1 << 20
CONTEXTS = (0, SOFT, HARD, HARD | SOFT)
ALIKE = {
    0: (1, 0xFF, 1 << 31), SOFT: (SOFT | 1,), HARD: (15 << 16, NMI, 15 * NMI, NMI | HARD),
    HARD | SOFT: (NMI | SOFT, HARD | SOFT | 3),
}  # fmt: skip


def test_an_interrupt_is_no_part_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task, soft interrupt, hard interrupt, and a hard one in a soft one each have their own
    self->x.

    So has another task in the same memory, which has another id.
    """
    monkeypatch.setitem(BUILTINS, "tid", Access(CURRENT_AT, (0x10,), 4, True))
    monkeypatch.setitem(BUILTINS, "interrupt", Access(0x140, (), 4))
    own = t.GlobalRead(INT64, SPAN, SELF)
    change = t.EvaluateAction(SPAN, t.Assign(INT64, SPAN, SELF, reg(3)))
    made = program([trace(own), change], variables=(SELF,))
    rig = TargetRig(made, {10: (0,)}, scratch=scratch(dynamic_size=1 << 20))

    def exchanged(count: int, thread: int, value: int) -> int:
        """Return the previous value of self->x, which becomes `value`."""
        rig.emulator.mem_write(GS_BASE + 0x140, struct.pack("<I", count))
        rig.emulator.mem_write(GS_BASE + TASK_AT + 0x10, struct.pack("<I", thread))
        rig.consume(rig.slot)
        rig.fire(10, {3: value})
        (record,) = rig.records(rig.slot)
        return int.from_bytes(rig.fields(record)[0], "little", signed=True)

    places = [(context, thread) for thread in (7, 8) for context in CONTEXTS]
    for number, place in enumerate(places, 1):
        assert exchanged(*place, number) == 0, place
    for number, (context, thread) in enumerate(places, 1):
        for alike in (context, *ALIKE[context]):
            assert exchanged(alike, thread, number) == number, (hex(alike), thread)


@pytest.mark.parametrize("kind", RIGS)
def test_what_dtrace_error_frees_is_gone(kind: type[Rig]) -> None:
    """A firing remembers the address of self->x; an ERROR clause in the middle of it frees it."""
    own = t.GlobalRead(INT64, SPAN, SELF)
    bad = t.Load(INT64, SPAN, t.Cast(PointerType(INT64), SPAN, reg(1)))
    made = program(
        [t.EvaluateAction(SPAN, t.Assign(INT64, SPAN, SELF, reg(3))), trace(own), trace(bad)],
        [
            trace(own),
            t.EvaluateAction(SPAN, t.Assign(INT64, SPAN, SELF, integer(5, INT64))),
            trace(own),
        ],
        [t.EvaluateAction(SPAN, t.Assign(INT64, SPAN, SELF, integer(0, INT64)))],
        [trace(own)],
        variables=(SELF,),
    )
    rig = kind(made, {10: (0, 1), 11: (3,)}, error=(2,), scratch=scratch(dynamic_size=1 << 20))
    rig.fire(10, {1: 0x10, 3: 77})
    (record,) = (r for r in rig.records(rig.slot) if r.clause == 1)
    assert [int.from_bytes(rig.fields(record, i)[0], "little") for i in (0, 2)] == [0, 5]
    rig.consume(rig.slot)
    rig.fire(11)
    (record,) = rig.records(rig.slot)
    assert int.from_bytes(rig.fields(record)[0], "little") == 5


@pytest.mark.parametrize(
    ("isa_name", "barrier"), [("arm64", "dmb ishld"), ("riscv64", "fence r, rw")]
)
def test_a_key_is_read_behind_its_tag(isa_name: str, barrier: str) -> None:
    """The key is read after its tag.

    For processors that reorder reads (Arm's and RISC-V's manuals), even code that only reads a
    variable has a barrier for loads.
    """
    isa, places = load(isa_name), scratch(dynamic_size=1 << 20)
    made = program([t.EvaluateAction(SPAN, t.KeyedRead(INT, SPAN, ARRAY, (reg(1), reg(2))))],
                   variables=(SELF, ARRAY))  # fmt: skip
    layout = lay_out_program(made, [], 64, places.agg_size)
    facts = Facts(
        "Linux",
        "test",
        cpus=2,
        builtins=THREAD,
        nofault_read=NOFAULT,
        clock=CLOCK,
        per_cpu=facts_of(isa_name).per_cpu,
    )
    entries = ProgramEntries(made, layout, [(0,)], (), BASE + places.sites)
    code = compile_target(entries, target_machine(isa, facts, places), BASE + places.text)
    assert barrier in " ".join(i.text for i in isa.decode(code.code, BASE))


@pytest.mark.parametrize(
    ("isa_name", "atomics"),
    [
        ("amd64", ("cmpxchg", "lock")),
        ("arm64", ("ldaxr", "stlxr")),
        ("riscv64", ("lr.d", "sc.d", "amo")),
    ],
)
def test_atomics_are_instructions(isa_name: str, atomics: tuple[str, ...]) -> None:
    """The code calls no __atomic_ function: nothing is left to link, which read_object would
    refuse."""
    isa, places = load(isa_name), scratch(dynamic_size=1 << 20)
    made = program(*clauses(), variables=(SELF, ARRAY))
    layout = lay_out_program(made, [], 64, places.agg_size)
    found = THREAD if isa_name == "riscv64" else BUILTINS
    facts = Facts(
        "Linux",
        "test",
        cpus=2,
        builtins=found,
        nofault_read=NOFAULT,
        clock=CLOCK,
        per_cpu=facts_of(isa_name).per_cpu,
    )
    entries = ProgramEntries(made, layout, [(0, 1, 2, 3, 4)], (), BASE + places.sites)
    code = compile_target(entries, target_machine(isa, facts, places), BASE + places.text)
    assert "__atomic" not in code.ir
    text = " ".join(i.text for i in isa.decode(code.code, BASE))
    assert all(word in text for word in atomics), [w for w in atomics if w not in text]
