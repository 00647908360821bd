"""Work that a site does in place of a call: counts and guards, against each clause's meaning."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.site_work import Snippets, counted, counted_entries, own_keys, snippets_of
from kinst.codegen.snippets import compile_snippets, guard_code
from kinst.core.bodies import Snippet
from kinst.core.layout import ARGUMENT_CONSTANT
from kinst.core.probe import Argument
from kinst.core.records import ProgramLayout
from kinst.dlang import typed
from kinst.dlang.api import Environment, compile_text
from tests.codegen.codegen_rig import name_of
from tests.codegen.test_site_records import ISA, Inline

COUNTERS = 0x4000
KNOWN = {register.d_name: register.index for register in ISA.registers}
# A clause's predicate, and the (aggregation, keys) that it counts; None if a site cannot.
Counts = list[tuple[str, tuple[Any, ...]]] | None
BODIES: tuple[tuple[str, Counts], ...] = (
    ("@a = count();", [("a", ())]),
    ("@b[1] = count(); @b[2] = count();", [("b", (1,)), ("b", (2,))]),
    ('@c["x", 7] = count(); @a = count();', [("c", (b"x", 7)), ("a", ())]),
    ('@c["y", 8] = count();', [("c", (b"y", 8))]),
    ("@d = sum(5);", None),
    ("@e[regs[R_RAX]] = count();", None),
    ("trace(1);", None),
    ("@a = count(); n = 1;", None),
)
PREDICATES = (("", True), ("/regs[R_RAX] == 5/", True), ("/arg0 > 3/", True),
              ("/10 / regs[R_RDX]/", False), ("/arg1/", False))  # fmt: skip
ARGUMENTS = (Argument(ARGUMENT_CONSTANT, 4),)


@pytest.fixture(scope="module")
def machine() -> CodeMachine:
    return Inline().target_machine()


def parsed(text: str) -> typed.TypedProgram:
    return compile_text(text, "test", environment=Environment(KNOWN))[1]


def laid_out(program: typed.TypedProgram, probes: dict[int, tuple[int, ...]]) -> ProgramLayout:
    probed = [(name_of(number), number, clauses) for number, clauses in probes.items()]
    return lay_out_program(program, probed, 64, 1 << 16)


def alone(predicates: list[str], machine: CodeMachine) -> Snippet | None:
    """Return the guard of these predicates, in a program of their own."""
    clauses = parsed(" ".join(f"f:::1 {one} {{ trace(1); }}" for one in predicates)).clauses
    conditions = [clause.predicate for clause in clauses if clause.predicate is not None]
    made = guard_code(conditions, ARGUMENTS, machine, ISA, "guard")
    return compile_snippets([made], machine, ISA)[0] if made is not None else None


def all_snippets(
    program: typed.TypedProgram, layout: ProgramLayout, machine: CodeMachine, counters: int | None
) -> Snippets:
    every = tuple(range(len(program.clauses)))
    return snippets_of(program, layout, counters, [(every, ARGUMENTS)], machine, ISA)


def test_counts_of_random_programs(machine: CodeMachine) -> None:
    rng, made, refused, merged = random.Random(1), 0, 0, 0
    for _ in range(80):
        drawn = [(rng.choice(PREDICATES[: rng.choice((1, 3, 5))]),
                  rng.choice(BODIES[: rng.choice((4, 4, 8))]))
                 for _ in range(rng.randrange(1, 5))]  # fmt: skip
        program = parsed("\n".join(f"f:::1 {p} {{ {body} }}" for (p, _), (body, _) in drawn))
        every = tuple(range(len(drawn)))
        layout = laid_out(program, {5: every})
        snippets = all_snippets(program, layout, machine, COUNTERS)
        found = counted(program, layout, 5, every, ARGUMENTS, COUNTERS, snippets)
        if not all(pure and counts for (_, pure), (_, counts) in drawn):
            assert found is None
            refused += 1
            continue
        assert found is not None
        expected = []
        for (predicate, _), (_, counts) in drawn:
            for name, keys in counts or ():
                index = next(a.index for a in program.aggregations if a.name == name)
                table = layout.aggregations[index]
                entry = (table.constant_keys or ()).index(keys)
                guard = alone([predicate], machine) if predicate else None
                expected.append((COUNTERS + table.counters + 8 * entry, guard))
        assert [(at, body.guard) for body in found for at in body.offsets] == expected
        # Counts without a condition are made together.
        bare = [body.guard is None for body in found]
        assert (True, True) not in itertools.pairwise(bare)
        merged += len(found) < len(drawn)
        made += 1
    assert min(made, refused) > 15 and merged > 3


@pytest.mark.parametrize("several", [1, 2, 3])
def test_guards(machine: CodeMachine, several: int) -> None:
    """Guards of each clause that has a pure predicate, and of all clauses of a probe if each has
    one."""
    rng = random.Random(several)
    for _ in range(12):
        drawn = [rng.choice(PREDICATES) for _ in range(several)]
        program = parsed("\n".join(f"f:::1 {one} {{ trace(1); }}" for one, _ in drawn))
        every = tuple(range(several))
        snippets = all_snippets(program, laid_out(program, {5: every}), machine, COUNTERS)
        for k, (predicate, pure) in enumerate(drawn):
            guard = snippets.guard((k,), ARGUMENTS)
            assert guard == (alone([predicate], machine) if predicate and pure else None)
        whole = all(predicate and pure for predicate, pure in drawn)
        expected = alone([one for one, _ in drawn], machine) if whole else None
        assert snippets.guard(every, ARGUMENTS) == expected
        assert snippets.guard(every, ()) is None and snippets.index(every, ARGUMENTS) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("f:::1 { @[regs[R_RAX]] = count(); }", True),
        ("f:::1 /arg0 == 4/ { @[(int)regs[R_RAX] + 1] = count(); }", True),
        ("f:::1 { @[regs[R_RAX], 1] = count(); }", False),
        ("f:::1 { @[regs[R_RAX]] = sum(1); }", False),
        ("f:::1 { @[execname] = count(); }", False),
        ("f:::1 { @[1] = count(); }", False),
        ("f:::1 { @[10 / regs[R_RAX]] = count(); }", False),
        ("f:::1 { @[regs[R_RAX]] = count(); trace(1); }", False),
        ("f:::1 { @[regs[R_RAX]] = count(); } f:::1 { @[regs[R_RAX]] = count(); }", False),
        ("f:::1 { trace(1); }", False),
        ("f:::1 { }", False),
    ],
)
def test_keys_whose_counter_is_found_at_the_site(
    text: str, found: bool, machine: CodeMachine
) -> None:
    program = parsed(text)
    every = tuple(range(len(program.clauses)))
    layout = laid_out(program, {5: every})
    snippets = all_snippets(program, layout, machine, COUNTERS)
    assert (snippets.index(every, ARGUMENTS) is not None) == found
    assert all_snippets(program, layout, machine, None).index(every, ARGUMENTS) is None
    assert snippets.index(every, ()) is None


def test_probes_that_count_the_same() -> None:
    """Probes of the same clauses have equal keys if and only if they count in the same entries."""
    program = parsed(
        "f:::1 { @a[probefunc] = count(); } f:::1 { @b = count(); }"
        "f:::1 { @c[probename] = count(); @d[1] = count(); } f:::1 { trace(1); }"
    )
    clauses = ((0,), (1,), (2,), (0, 1), (1, 0), (0, 2), (0, 1, 2), (3,))
    # 5 and 105 are of one function.
    probes = {5: (0, 1, 2), 105: (0, 1, 2), 6: (0, 1, 2), 7: (0, 1, 2)}
    layout = laid_out(program, probes)
    keys = own_keys(program, layout)
    alike = unlike = 0
    for chosen in clauses:
        for one in probes:
            for other in probes:
                same = all(
                    counted_entries(program, layout, one, clause)
                    == counted_entries(program, layout, other, clause)
                    for clause in chosen
                )
                assert (keys(one, chosen) == keys(other, chosen)) == same, (chosen, one, other)
                alike, unlike = alike + same, unlike + (not same)
    assert alike > 40 and unlike > 20
