"""The tables of dynamic variables: several threads at once, the way of a freed entry, what is
counted when there is no room, and the code for every instruction set."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable

import llvmlite.binding as llvm
import pytest
from codegen_rig import (
    BASE,
    BUILTINS,
    CLOCK,
    NOFAULT,
    REGISTERS,
    RIGS,
    SLOTS,
    SP_SLOT,
    SPAN,
    Rig,
    integer,
    program,
    reg,
    scratch,
    trace,
)

from kinst.codegen import dynvars
from kinst.codegen.compile import compile_target, host_triple
from kinst.codegen.firing import Faults, Firing, Unit
from kinst.codegen.machine import Machine, target_machine
from kinst.codegen.records import lay_out_program
from kinst.codegen.ssa import Function, Value, const, module_text
from kinst.consumer.dynvars import Cleaner
from kinst.core import layout as lay
from kinst.core import records as rec
from kinst.core.dtypes import INT, INT64, UINT64, PointerType
from kinst.core.records import DynamicLayout, Field, ProgramLayout
from kinst.core.target import Access, Facts
from kinst.dlang import typed as t
from kinst.isa import load
from kinst.wire import native

THREADS, OWN = 4, 8  # each thread has keys of its own
KEYS = THREADS * OWN
BUCKETS = 4  # 28 entries: fewer than keys
ENTRY = 16
SIZE = 1 << 20
ROUNDS = 100_000


class Tables:
    """One table in memory of this process, and native functions on it."""

    def __init__(self, shared: bool) -> None:
        wanted = {"dynamic_size": 8192, "globals_size": 4096}
        self.places = lay.lay_out(
            0, SIZE, THREADS - 1, ring_size=4096, agg_size=4096, strings_size=4096,
            sites_size=4096, traps_size=4096, temp_size=65536, **wanted,
        )  # fmt: skip
        self.layout = DynamicLayout(
            0, 0, BUCKETS, ENTRY, (Field(0, 8, UINT64),), Field(8, 8, INT64), shared
        )
        self.map = mmap.mmap(-1, SIZE)
        self.base = native.address_of(memoryview(self.map))
        machine = Machine(
            "host", host_triple(), "", True, self.base, self.places, 0, REGISTERS, SLOTS,
            SP_SLOT, "ccc",
        )  # fmt: skip
        whole = ProgramLayout((), (), (), 0, 0, 64, (), {}, 0, 0, (self.layout,))
        self.unit = Unit(machine, whole, {}, 8)
        self.functions = [
            self.write(name, body)
            for name, body in (
                ("find", self._find), ("obtain", self._obtain), ("remove", self._remove),
                ("hammer", self._hammer), ("tally", self._tally),
            )
        ]  # fmt: skip
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        text = module_text(host_triple(), [*self.functions, *self.unit.helpers.values()])
        module = llvm.parse_assembly(text)
        module.verify()
        machine_ = llvm.Target.from_triple(host_triple()).create_target_machine(opt=2, jit=True)
        self.engine = llvm.create_mcjit_compiler(module, machine_)
        self.engine.finalize_object()

    def call(self, name: str, *args: int) -> int:
        return native.call_c(self.engine.get_function_address(name), *args)

    def write(self, name: str, body: Callable[[Function, Firing], None]) -> Function:
        code = Function(name, tuple(Value(64, f"%a{i}") for i in range(5)), 64, "ccc", False)
        zero = const(0)
        firing = Firing(
            self.unit, code, zero, zero, zero, zero, code.params[1], code.local(64), Faults("none")
        )
        body(code, firing)
        return code

    def _find(self, code: Function, firing: Firing) -> None:
        code.ret(dynvars.call_find(firing, self.layout, code.params[0]))

    def _obtain(self, code: Function, firing: Firing) -> None:
        code.ret(dynvars.call_obtain(firing, self.layout, code.params[0]))

    def _remove(self, code: Function, firing: Firing) -> None:
        dynvars.call_remove(firing, self.layout, code.params[0])
        code.ret(const(0))

    def _loop(self, code: Function, body: Callable[[Value], None]) -> None:
        """params: thread, state page, rounds, memory.  body gets a random number and ends in
        a jump to `next`; rounds are clauses to the cleaner."""
        thread, state, rounds = code.params[:3]
        seed, done = code.local(64), code.local(64)
        code.set(seed, code.op("mul", code.add(thread, 1), 0x9E3779B97F4A7C15))
        code.jump("again")
        code.block("again")
        value = code.get(seed)
        for opcode, by in (("shl", 13), ("lshr", 7), ("shl", 17)):  # Marsaglia's xorshift
            value = code.op("xor", value, code.op(opcode, value, by))
        code.set(seed, value)
        code.store_atomic(code.add(code.load_atomic(state), 1), state, "seq_cst")
        body(value)
        code.block("next")
        code.store_atomic(code.add(code.load_atomic(state), 1), state, "seq_cst")
        count = code.add(code.get(done), 1)
        code.set(done, count)
        code.branch(code.icmp("ult", count, rounds), "again", "out")
        code.block("out")

    def _tally(self, code: Function, firing: Firing) -> None:
        """Add 1 to random elements; how often to each: in memory, a word for each key."""
        memory = code.params[3]

        def body(value: Value) -> None:
            key = code.add(code.op("urem", code.op("lshr", value, 8), BUCKETS * 5), 1)
            entry = dynvars.call_obtain(firing, self.layout, key)
            code.branch(code.icmp("eq", entry, 0), "next", "there")
            code.block("there")
            code.change_atomic("add", code.add(entry, 8), const(1))
            code.increment(code.op("add", memory, code.op("mul", key, 8)))
            code.jump("next")

        self._loop(code, body)
        code.ret(const(0))

    def _hammer(self, code: Function, firing: Firing) -> None:
        """Set, free and read elements of the thread's own, which must be as it left them, and
        read those of others, which must hold a value of their key.  The number of lies.

        memory: the value of each own element, 0 for none."""
        thread, memory = code.params[0], code.params[3]
        lies = code.local(64)

        def lie_if(condition: Value, following: str) -> None:
            lie = code.fresh("lie")
            code.branch(condition, lie, following)
            code.block(lie)
            code.set(lies, code.add(code.get(lies), 1))
            code.jump(following)

        def body(value: Value) -> None:
            choice = code.op("and", value, 7)
            first = code.add(code.op("mul", thread, OWN), 1)
            own = code.op("add", first, code.op("and", code.op("lshr", value, 8), OWN - 1))
            other = code.add(code.op("urem", code.op("lshr", value, 16), KEYS), 1)
            mine = code.op("add", memory, code.op("mul", own, 8))
            code.branch(code.icmp("ult", choice, 3), "set", "not_set")
            code.block("set")
            entry = dynvars.call_obtain(firing, self.layout, own)
            code.branch(code.icmp("eq", entry, 0), "lost", "stored")
            code.block("lost")  # only what was not there can find no room
            lie_if(code.icmp("ne", code.load(64, mine), 0), "next")
            code.block("stored")
            low = code.op("or", code.op("and", code.op("lshr", value, 24), 0xFFFF), 1)
            made = code.op("or", code.op("shl", own, 32), low)
            code.store_atomic(made, code.add(entry, 8))
            code.store(made, mine)
            code.jump("next")
            code.block("not_set")
            code.branch(code.icmp("ult", choice, 5), "free", "read")
            code.block("free")
            dynvars.call_remove(firing, self.layout, own)
            code.store(const(0), mine)
            code.jump("next")
            code.block("read")
            code.branch(code.icmp("eq", choice, 5), "own", "others")
            code.block("own")
            entry = dynvars.call_find(firing, self.layout, own)
            code.branch(code.icmp("eq", entry, 0), "absent", "present")
            code.block("absent")
            lie_if(code.icmp("ne", code.load(64, mine), 0), "next")
            code.block("present")
            there = code.load_atomic(code.add(entry, 8))
            lie_if(code.icmp("ne", there, code.load(64, mine)), "next")
            self._look(code, firing, value, other if self.layout.shared else own, lie_if)

        self._loop(code, body)
        code.ret(code.get(lies))

    def _look(
        self,
        code: Function,
        firing: Firing,
        value: Value,
        other: Value,
        lie_if: Callable[[Value, str], None],
    ) -> None:
        """Find an element, wait a little, and look whose value it has."""
        code.block("others")
        entry = dynvars.call_find(firing, self.layout, other)
        code.branch(code.icmp("eq", entry, 0), "next", "wait")
        code.block("wait")  # time for somebody to free it and make another of it
        left = code.local(64)
        code.set(left, code.op("and", code.op("lshr", value, 40), 255))
        code.jump("waiting")
        code.block("waiting")
        code.barrier()
        still = code.get(left)
        code.set(left, code.op("sub", still, const(1)))
        code.branch(code.icmp("eq", still, 0), "look", "waiting")
        code.block("look")
        there = code.load_atomic(code.add(entry, 8))
        whose = code.op("lshr", there, 32)
        known = code.op("or", *(
            code.convert(code.icmp("eq", a, b), 64, signed=False)
            for a, b in ((there, const(0)), (whose, other))
        ))  # fmt: skip
        lie_if(code.icmp("eq", known, 0), "next")

    def word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.map, at)[0])

    def state(self, slot: int, at: int) -> int:
        return self.word(self.places.state_of(slot) + at)

    def entries(self) -> list[tuple[int, int, int]]:
        """(state, key, value) of every entry whose tag is not 0."""
        found = []
        for bucket in range(BUCKETS):
            line = self.places.dynamic + bucket * self.layout.stride
            for i in range(rec.DYNAMIC_ENTRIES):
                tag = self.word(line + 8 + 8 * i)
                entry = line + rec.DYNAMIC_LINE + i * ENTRY
                if tag:
                    found.append((tag & rec.DYNAMIC_STATE, self.word(entry), self.word(entry + 8)))
        return found

    def controls(self) -> list[int]:
        return [self.word(self.places.dynamic + i * self.layout.stride) for i in range(BUCKETS)]

    def run_threads(self, name: str, while_running: Callable[[], None]) -> list[int]:
        """The function by all threads at once; their results."""
        results = [-1] * THREADS
        memory = self.base + self.places.globals

        def work(thread: int) -> None:
            state = self.base + self.places.state_of(thread)
            results[thread] = self.call(name, thread, state, ROUNDS, memory + thread * 1024)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            while_running()
        for one in threads:
            one.join()
        return results

    def noted(self, thread: int, key: int) -> int:
        return self.word(self.places.globals + thread * 1024 + 8 * key)


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
    """The cleaner runs all the while.  Threads do not look at each other's own variables."""
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
    """Not while a clause runs that ran when it began to rinse."""
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
    """A clause gives up, counts it, and finds what is there all the same."""
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
    """Every bucket is full and passed: what is not there is not looked for without end."""
    tables = Tables(shared=False)
    state = tables.base + tables.places.state_of(0)
    made = [tables.call("obtain", key, state) for key in range(1, 100)]
    assert sum(1 for one in made if one) == BUCKETS * rec.DYNAMIC_ENTRIES
    assert tables.state(0, lay.STATE_DYNAMIC_DROPS) == 99 - BUCKETS * rec.DYNAMIC_ENTRIES
    assert all(control & rec.DYNAMIC_PASSED for control in tables.controls())
    tables.call("remove", made.index(next(filter(None, made))) + 1)
    assert tables.call("obtain", 200, state)  # a thread's own is free at once


# Clauses, on the host and in the emulator.

# Where there is no per-CPU register, all is found from the current thread.
THREAD = {
    name: Access(None, (0x10,), access.size, access.signed, access.string, thread=True)
    for name, access in BUILTINS.items()
} | {"curthread": Access(None, (), 8, thread=True)}
SELF = t.Variable("self->x", INT64, 0, "self")
ARRAY = t.Variable("a", INT, 1, "global", (UINT64, UINT64))


def clauses() -> tuple[list[t.Action], ...]:
    keys = (reg(1), reg(2))

    def evaluate(expr: t.Expr) -> t.Action:
        return t.Evaluate(SPAN, expr)

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


@pytest.mark.parametrize("kind", RIGS)
def test_what_dtrace_error_frees_is_gone(kind: type[Rig]) -> None:
    """A firing remembers where self->x is; an ERROR clause in the middle of it frees it."""
    own = t.GlobalRead(INT64, SPAN, SELF)
    bad = t.Load(INT64, SPAN, t.Cast(PointerType(INT64), SPAN, reg(1)))
    made = program(
        [t.Evaluate(SPAN, t.Assign(INT64, SPAN, SELF, reg(3))), trace(own), trace(bad)],
        [trace(own), t.Evaluate(SPAN, t.Assign(INT64, SPAN, SELF, integer(5, INT64))), trace(own)],
        [t.Evaluate(SPAN, t.Assign(INT64, SPAN, SELF, integer(0, INT64)))],
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
    ("isa_name", "atomics"),
    [
        ("amd64", ("cmpxchg", "lock")),
        ("arm64", ("ldaxr", "stlxr")),
        ("riscv64", ("lr.d", "sc.d", "amo")),
    ],
)
def test_atomics_are_instructions(isa_name: str, atomics: tuple[str, ...]) -> None:
    """Nothing is left to be linked (read_object would refuse it): no __atomic_ function."""
    isa, places = load(isa_name), scratch(dynamic_size=1 << 20)
    made = program(*clauses(), variables=(SELF, ARRAY))
    layout = lay_out_program(made, [], 64, places.agg_size)
    found = THREAD if isa_name == "riscv64" else BUILTINS
    facts = Facts("Linux", "test", 0, 2, found, NOFAULT, 0, 0, 0, 0, (), CLOCK)
    code = compile_target(
        made, layout, target_machine(isa, facts, places), [(0, 1, 2, 3, 4)], (),
        BASE + places.sites, BASE + places.text,
    )  # fmt: skip
    assert "__atomic" not in code.ir
    text = " ".join(i.text for i in isa.decode(code.code, BASE))
    assert all(word in text for word in atomics), [w for w in atomics if w not in text]
