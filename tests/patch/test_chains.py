"""Chains in the emulator: a planted function does what the original does, wherever it is entered.

Counters of probes are compared with the emulator's own count of the original's instructions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinst.core.bodies import CountBody
from kinst.core.columns import columns_of
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.chains import Chains, find_chains
from kinst.patch.listing import list_plan
from kinst.patch.plan import plan_sites
from kinst.patch.wanted import WantedSite
from tests.patch.small_functions import (
    PAGE,
    SCRATCH,
    TEXT,
    Planned,
    entered_everywhere,
    first_visits,
    original,
    planned,
    planted,
)
from tests.tiers import ISAS


@pytest.fixture(params=ISAS)
def chained(request: pytest.FixtureRequest, tmp_path: Path) -> Planned:
    return planned(request.param, tmp_path, True)


def test_a_chained_function_is_the_original(chained: Planned) -> None:
    plain, cpu = original(chained), planted(chained)
    cpu.run(TEXT, *cpu.start_state())
    assert cpu.result() == plain.result()
    assert cpu.counted(chained.sites) == dict(plain.ran)
    assert set(plain.ran) == {site.address for site in chained.sites}, "all of it was run"


def test_who_is_entered_in_the_middle_counts_all_the_same(chained: Planned) -> None:
    """Enter at every instruction, by its own patch, in the state that it has there."""
    plain, cpu = original(chained), planted(chained)
    visits = 0
    for address, rest in entered_everywhere(plain, cpu):
        visits += 1
        assert cpu.counted(chained.sites) == dict(rest), f"entered at {address:#x}"
    assert visits == len(chained.sites)


def test_control_stays_in_the_chain(chained: Planned, tmp_path: Path) -> None:
    """Between entry, call and return no instruction of the text runs.

    Control reaches only the patches of the function's start and of the call's return address.
    """
    cpu = planted(chained)
    cpu.run(TEXT, *cpu.start_state())
    in_text = {at: n for at, n in cpu.ran.items() if TEXT <= at < TEXT + PAGE}
    behind_call = next(
        s.address + len(s.code)
        for s in chained.sites
        if chained.isa.flow(s.code, s.address).kind == "call"
    )
    assert set(in_text) == {TEXT, behind_call} and set(in_text.values()) == {1}
    loose = planned(chained.isa.name, tmp_path, False)
    other = planted(loose)
    other.run(TEXT, *other.start_state())
    assert sum(other.ran.values()) > sum(cpu.ran.values())
    assert not loose.plan.exits and not len(loose.plan.chained)


def test_unplanting_leads_out_of_a_chain(chained: Planned) -> None:
    """A thread in any trampoline when the text is restored leaves at its loop's next iteration.

    It does what it would have done.
    """
    plain = original(chained)
    starts = dict(zip([s.address for s in chained.sites], chained.plan.text, strict=True))
    for _, address, values, data, stack in first_visits(plain):
        cpu = planted(chained)
        cpu.write(TEXT, chained.code)
        for patch in chained.plan.exits:
            assert cpu.uc.mem_read(patch.address, len(patch.old)) == patch.old
            cpu.write(patch.address, patch.new)
        cpu.run(starts[address][0], values, data, stack)
        assert cpu.result() == plain.result()
        again = {at: n for at, n in cpu.counted(chained.sites).items() if n > 1}
        assert not again, "an instruction of a loop was counted for a second turn"


def test_heads_begin_with_one_instruction_that_a_jump_fits_over(chained: Planned) -> None:
    heads = np.flatnonzero(chains_of(chained.sites, chained.isa).head)
    assert len(heads) == 2 == len(chained.plan.exits)  # the two loops' first instructions
    text = dict(chained.plan.text)
    for patch in chained.plan.exits:
        first = next(iter(chained.isa.decode(text[patch.address], patch.address)))
        assert first.size >= len(patch.new)


def test_flags_that_live_get_a_head_too() -> None:
    """Saving flags begins with a push of one byte: a nop of a jump's size comes before it."""
    isa = load("amd64")
    code = bytes.fromhex("0f45c175fb")  # cmovne eax, ecx; jne back
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, 0, code[:3]), Site(function, 3, code[3:])]
    wanted = [
        WantedSite(s, "trap", (CountBody((8,)),), code[s.offset + len(s.code) :]) for s in sites
    ]
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + PAGE, chained=True)
    (head,) = plan.exits
    first = next(iter(isa.decode(dict(plan.text)[head.address], head.address)))
    assert first.size == len(head.new) == 5 and first.text.startswith("nop")


def chains_of(sites: list[Site], isa: Isa) -> Chains:
    return find_chains(columns_of([s.address for s in sites], [s.code for s in sites]), isa)


def test_nothing_to_chain() -> None:
    isa = load("amd64")
    function = Function("vmlinux", "f", TEXT, 64)
    apart = [Site(function, 0, b"\x90"), Site(function, 8, b"\x90")]
    assert not chains_of(apart, isa)
    call = Site(function, 16, bytes.fromhex("e8ebffffff"))  # of the second one, back by 21
    assert chains_of([*apart, call], isa).target.tolist() == [-1, -1, 0]


def test_each_jump_leads_to_its_own_place() -> None:
    """Two jumps, long because of their prefixes, differ only in the last bytes of their distance.

    The second one leads to the last site.
    """
    function = Function("vmlinux", "f", TEXT, 1 << 20)
    goals = {0: 0x10000, 16: 0x20010}
    jumps = [
        Site(function, at, bytes.fromhex("672e2e2e2ee9") + (to - at - 10).to_bytes(4, "little"))
        for at, to in goals.items()
    ]
    assert jumps[0].code[:8] == jumps[1].code[:8]
    sites = [*jumps, *(Site(function, to, b"\x90") for to in goals.values())]
    assert chains_of(sites, load("amd64")).target.tolist() == [2, 3, -1, -1]


def test_what_cannot_be_moved_breaks_the_chain() -> None:
    """A refused site is left out, and its neighbours lead to the original."""
    isa = load("amd64")
    code = bytes.fromhex("4801c8fb4801c8")  # add; sti, whose shadow is refused; add
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, 0, code[:3]), Site(function, 3, code[3:4]), Site(function, 4, code[4:])]
    wanted = [WantedSite(s, "trap", (CountBody((8,)),), b"\xf4") for s in sites]
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + PAGE, chained=True)
    assert [site.offset for site, _ in plan.refused] == [3] and not len(plan.chained)
    first = dict(plan.text)[SCRATCH]
    back = list(isa.decode(first, SCRATCH))[-1]
    assert isa.flow(back.code, back.address).target == TEXT + 3


def test_a_plan_as_assembly() -> None:
    """Two sites in a row; the second one is a branch back to the first."""
    isa = load("amd64")
    code = bytes.fromhex("4883c0017ffa")  # add rax, 1; jg back
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, 0, code[:4]), Site(function, 4, code[4:])]
    wanted = [
        WantedSite(s, "trap", (CountBody((8,)),), code[s.offset + len(s.code) :]) for s in sites
    ]
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + PAGE, chained=True)
    known = {TEXT: "f+0", TEXT + 4: "f+4", TEXT + 6: "f+6"}
    rows = [" ".join(row.split()) for row in list_plan(plan, isa, lambda at: known.get(at, ""))]
    assert rows[0] == "f+0 add rax, 1 trap, chained"
    assert rows[1].endswith("the head of a loop: unplanting writes a jump to the site here")
    assert rows[4] == "falls into f+4"
    assert rows[5] == f"f+4 jg {TEXT:#x} trap, chained"
    assert rows[-2].endswith("-> trampoline of f+0") and rows[-1].endswith("-> f+6")


@pytest.mark.parametrize("name", ISAS)
def test_the_order_of_what_is_wanted_does_not_matter(name: str, tmp_path: Path) -> None:
    made = planned(name, tmp_path, True)
    other = plan_sites(made.wanted[::-1], made.isa, SCRATCH, SCRATCH + 8 * PAGE, chained=True)
    assert list(other.text) == list(made.plan.text)
    assert list(other.patches) == list(made.plan.patches)
    assert len(other.chained)
