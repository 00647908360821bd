"""Facts about a program before its code is made, each against the words of its text."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kinst.codegen import analysis
from kinst.codegen.code_machine import CodeMachine, host_machine, parents_of
from kinst.codegen.values.dynamic_variables import THREAD_PARTS
from kinst.codegen.values.variable_code import is_thread_local
from kinst.core.system import Access, Facts, Unwinder
from kinst.dlang import typed
from kinst.isa import load
from tests.codegen.codegen_rig import REGISTERS, TargetRig, name_of, scratch
from tests.codegen.subroutines_rig import compiled

UNWINDER = Unwinder(0x1000, 32, ((0, ""), (8, "R_4"), (16, "R_7")), ())


def clause(body: str) -> typed.Clause:
    return compiled(f"kinst::f:0 {{ {body} }}").clauses[0]


@pytest.fixture(scope="module")
def machine() -> CodeMachine:
    rig = TargetRig(compiled("kinst::f:0 { trace(1); }"), {7: (0,)})
    return replace(rig.target_machine(), unwinder=UNWINDER)


SLOT = {register.index: register.slot for register in REGISTERS}
PARTS = {
    "trace(regs[R_3]);": {3}, "x = regs[R_9] + 1;": {9}, "trace(uregs[R_2]);": set(),
    "stack(3);": {4, 7}, "ustack(3);": set(), "trace(stackdepth);": {4, 7}, "trace(pid);": set(),
    "trace(ustackdepth);": set(),
}  # fmt: skip


def test_slots_that_are_read(machine: CodeMachine) -> None:
    """Statements are tested one by one and in pairs."""
    for texts in (*((one,) for one in PARTS), *itertools.combinations(PARTS, 2)):
        read = analysis.slots_read(clause(" ".join(texts)), machine)
        expected = {SLOT[index] for text in texts for index in PARTS[text]}
        assert read == analysis.Reads(frozenset(expected), False, frozenset()), texts
    read = analysis.slots_read(clause("trace(caller);"), machine)
    assert read == analysis.Reads(frozenset({machine.sp_slot}), True, frozenset())
    read = analysis.slots_read(clause("trace(arg0 + arg9); trace(arg3);"), machine)
    assert read == analysis.Reads(frozenset(), False, frozenset({0, 3, 9}))
    without = replace(machine, unwinder=None)
    assert analysis.slots_read(clause("stack(2);"), without).slots == frozenset()
    assert analysis.unwinding_slots(without) == frozenset()
    assert analysis.register_slot(machine, 99) is None


def test_what_is_asked() -> None:
    text = """
    kinst::a:0 { trace(1); ustack(9); } kinst::b:0 { stack(4); } kinst::c:0 { trace(stackdepth); }
    kinst::d:0 { stack(7); trace(pid); }
    """
    program = compiled(text)
    reads = [analysis.reads_stack(program, [k]) for k in range(4)]
    assert reads == [False, True, True, True]
    assert analysis.reads_stack(program, [0, 1]) and not analysis.reads_stack(program, [])
    assert analysis.most_frames(program) == 7
    assert analysis.most_frames(compiled("kinst::f:0 { ustack(5); trace(1); }")) == 0
    assert not analysis.asks_caller(program)
    assert analysis.asks_caller(compiled("kinst::f:0 { trace(caller); }"))


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("trace(ucaller);", True), ("trace(ustackdepth);", True), ("trace(uregs[R_1]);", True),
        ("ustack(2);", True), ("trace(regs[R_1]);", False), ("stack(2);", False),
        ("trace(stackdepth);", False), ("trace(pid);", False), ("trace(3);", False),
        ("usym(5);", True), ("sym(5);", False),
    ],
)  # fmt: skip
def test_what_comes_from_user_mode(text: str, user: bool) -> None:
    (action,) = clause(text).actions
    assert isinstance(action, typed.TraceAction)
    assert analysis.looks_at_user(action.expr) == user


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("self->x", True), ("self->x = 1", True), ("self->x++", True), ("self->a[1]", True),
        ("self->a[1] = 2", True), ("self->a[1] += 2", True), ("--self->a[1]", True),
        ("this->x = 1", False), ("this->x", False), ("g", False), ("g++", False), ("b[1]", False),
        ("b[1] = 5", False), ("pid", False),
    ],
)  # fmt: skip
def test_what_is_a_thread_s_own(text: str, own: bool) -> None:
    declared = "int g; int b[int]; this int x; self int x; self int a[int];"
    program = compiled(f"{declared} kinst::f:0 {{ trace({text}); }}")
    (action,) = program.clauses[0].actions
    assert isinstance(action, typed.TraceAction)
    assert is_thread_local(action.expr) == own


def test_what_a_thread_is_told_by() -> None:
    """The needs are exactly those of a thread-local variable's code.

    On the host the thread is missing unless it was announced (session/host_clauses.py).
    """
    asked = set[str]()

    class Noting(dict[str, Access]):
        def get(self, name: str, default: Access | None = None) -> Access | None:  # type: ignore[override]
            asked.add(name)
            return super().get(name, default)

    class Noted(TargetRig):
        def target_machine(self) -> CodeMachine:
            machine = super().target_machine()
            return replace(machine, builtins=Noting(machine.builtins))

    found = []
    for text in ("self->x = 1;", "x = 1;"):
        asked.clear()
        Noted(compiled(f"kinst::f:0 {{ {text} }}"), {7: (0,)}, scratch=scratch())
        found.append(set(asked))
    assert found[0] - found[1] == THREAD_PARTS


@pytest.mark.parametrize(
    ("text", "pure"),
    [
        ("regs[R_1] + 5", True), ("-(pid * 2)", True), ("arg0 > 3 && uid == 0", True),
        ("(char)regs[R_2]", True), ("cpu ? tid : gid", True), ("(arg1, arg2)", True),
        ("x", False), ("timestamp", False), ("*(int *)arg0", False), ('"text"', False),
        ("rand()", False), ("execname", False), ("pid + timestamp", False),
    ],
)  # fmt: skip
def test_what_may_be_worked_out_at_the_site(text: str, pure: bool) -> None:
    program = compiled(f"int x; kinst::f:0 {{ trace({text}); }}")
    (action,) = program.clauses[0].actions
    assert isinstance(action, typed.TraceAction)
    assert analysis.may_be_pure(action.expr) == pure


@pytest.mark.parametrize(
    ("text", "makes", "shares"),
    [
        ("kinst::f:0 { trace(1); }", False, False),
        ("kinst::f:0 { p = alloca(8); }", True, False),
        ("struct s { int a; }; struct s x; kinst::f:0 { x.a = 1; }", True, False),
        ("string s; kinst::f:0 { s = execname; trace(s[0]); }", True, False),
        ("kinst::f:0 { trace(strlen(execname)); }", False, False),
        ("kinst::f:0 { trace(*(int *)arg0); }", False, False),
    ],
)
def test_addresses_of_scratch_memory(text: str, makes: bool, shares: bool) -> None:
    program = compiled(text)
    assert analysis.makes_pointers(program) == makes
    assert analysis.shares_variables(program) == shares


def test_the_strings_of_a_program() -> None:
    program = compiled('kinst::f:0 { trace("one"); trace("two"); trace("one"); trace(""); }')
    places, data = analysis.string_table(program)
    assert {text: data[at:].split(b"\0")[0] for text, at in places.items()} == {
        text: text for text in (b"one", b"two", b"")
    }
    assert len(data) == len(b"one\0two\0\0") and data.endswith(b"\0")


def test_parents_where_nothing_is_known() -> None:
    assert parents_of(None) == (0, 0)
    assert host_machine(load("amd64"), scratch(), 0, 0).parents == (0, 0)
    facts = Facts("Linux", "6.1", cpus=2)
    assert parents_of(facts) == (0, 0)
    # The parent's address is in the thread, its id in the parent.
    known = {"ppid": Access(0x40, (0x18, 0x10), 4), "pid": Access(0x40, (0x10,), 4)}
    assert parents_of(replace(facts, builtins=known)) == (0x18, 0x10)
    for offsets in ((0x18,), (), (1, 2, 3)):
        known = {"ppid": Access(0x40, offsets, 4)}
        assert parents_of(replace(facts, builtins=known)) == (0, 0)
    assert name_of(7).function == "function_7" and scratch().cpus == 2
