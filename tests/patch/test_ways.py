"""Choice of the way to plant a site, and what the plan writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pytest

from kinst.core.bodies import CallBody, CountBody
from kinst.core.errors import KinstError
from kinst.core.layout import (
    ARGUMENT_HOST,
    ARGUMENT_NONE,
    ARGUMENT_STACK,
    SITE_ARGUMENTS,
    SITE_CFA_OFFSET,
    SITE_CFA_SLOT,
    SITE_EPID,
    SITE_HEADER,
    SITE_PC,
    SITE_PROBE,
    SITE_PROVIDER,
    SITE_RA_OFFSET,
)
from kinst.core.probe import Argument, Function, Probe, ProbeName, Site
from kinst.isa import load
from kinst.patch.descriptors import FrameRule, Strings, descriptor_size, descriptors_of
from kinst.patch.plan import Hook, plan_hooks, plan_sites
from kinst.patch.wanted import WantedSite
from kinst.patch.ways import ALONE, Choice, PlantingAbility, PlantRules, choose, plant_rules

ISA = load("amd64")
TEXT = 0xFFFFFFFF81000000
SCRATCH = 0xFFFFFFFF9FE00000
FUNCTION = Function("vmlinux", "f", TEXT, 64)
LONG = Site(FUNCTION, 0, bytes.fromhex("b800100000"))  # mov eax, 0x1000
SHORT = Site(FUNCTION, 5, bytes.fromhex("4889f5"))  # mov rbp, rsi
CALL = Site(FUNCTION, 8, bytes.fromhex("e800010000"))
HLT = Site(FUNCTION, 13, b"\xf4")
STI = Site(FUNCTION, 14, b"\xfb")
MEANS = PlantingAbility(SCRATCH, trap=True, fault_hook=True)


@dataclass(frozen=True)
class Row:
    probe: Probe
    epid: int
    arguments: tuple[Argument, ...] = ()


def way(site: Site, means: PlantingAbility = MEANS, **more: object) -> str:
    forbidden, fixup = str(more.get("forbidden", "")), bool(more.get("fixup"))
    following = more.get("following", b"\x90" * 16)
    assert isinstance(following, bytes)
    choice = choose(site, following, ISA, means, forbidden, fixup)
    return choice.way or f"refused: {choice.reason}"


def test_the_best_way_first() -> None:
    assert way(LONG) == "jump"
    assert way(SHORT) == "trap"
    assert way(SHORT, PlantingAbility(SCRATCH, trap=False, fault_hook=True)) == "stop"
    assert way(LONG, PlantingAbility(0, trap=True, fault_hook=True)) == "stop"


def test_forced_ways() -> None:
    assert way(LONG, PlantingAbility(SCRATCH, True, True, "trap")) == "trap"
    assert way(LONG, PlantingAbility(SCRATCH, True, True, "stop")) == "stop"
    too_short = way(SHORT, PlantingAbility(SCRATCH, True, True, "jump"))
    assert too_short.startswith("refused: 3 bytes")
    one = Site(FUNCTION, 13, b"\x55")  # push rbp
    too_short = way(one, PlantingAbility(SCRATCH, True, True, "jump"))
    assert too_short.startswith("refused: 1 byte ")
    assert "no trap handler" in way(SHORT, PlantingAbility(SCRATCH, False, True, "trap"))


def test_why_a_way_is_no_better() -> None:
    def why(site: Site, ability: PlantingAbility) -> tuple[str, str]:
        choice = choose(site, b"\x90" * 16, ISA, ability, "", False)
        return choice.way, choice.reason

    def says(found: tuple[str, str], way: str, *words: str) -> bool:
        return found[0] == way and all(word in found[1] for word in words)

    far = TEXT - (1 << 32)
    assert why(LONG, MEANS) == ("jump", "")
    assert says(why(SHORT, MEANS), "trap", "3 bytes")
    assert says(why(LONG, PlantingAbility(far, True, True)), "trap", "reaches")
    assert says(why(SHORT, PlantingAbility(far, True, True)), "trap", "reaches")
    assert says(why(SHORT, PlantingAbility(SCRATCH, False, True)), "stop", "3 bytes", "handler")
    assert says(why(SHORT, PlantingAbility(0, True, True)), "stop", "no memory")
    assert why(SHORT, PlantingAbility(SCRATCH, True, True, "stop")) == ("stop", "")
    running = PlantingAbility(SCRATCH, False, True, stops=False)
    assert says(why(SHORT, running), "", "3 bytes", "handler", "cannot be stopped")
    nothing = PlantingAbility(0, True, True, stops=False)
    assert says(why(SHORT, nothing), "", "no memory", "cannot be stopped")
    forced = PlantingAbility(SCRATCH, True, True, "stop", False)
    assert says(why(SHORT, forced), "", "cannot be stopped")


def test_a_stop_does_not_need_room() -> None:
    """A stop displaces nothing: what only displacing could not do is no reason."""
    assert way(STI, PlantingAbility(0, True, True), following=b"\xf4") == "stop"
    assert way(STI, PlantingAbility(SCRATCH, True, True, "stop"), following=b"\xf4") == "stop"
    again = choose(SHORT, b"", ISA, PlantingAbility(0, True, True), "", False, b"\x90")
    assert again.way == "" and "undoes" in again.reason


def test_what_is_run_again_is_kept() -> None:
    arm64 = load("arm64")
    nop, add = bytes.fromhex("1f2003d5"), bytes.fromhex("00040091")
    site = Site(Function("vmlinux", "f", TEXT, 8), 4, add)
    for forced in ("", "trap"):
        choice = choose(site, b"", arm64, PlantingAbility(TEXT + 0x10000, True, True, forced),
                        "", False, nop)  # fmt: skip
        assert choice == Choice(forced or "jump", "", nop)


def test_refusals() -> None:
    assert way(LONG, forbidden="a jump label") == "refused: a jump label"
    assert "slept over" in way(HLT)
    assert "hlt" in way(STI, following=b"\xf4")
    assert way(STI) == "trap"
    assert way(LONG, PlantingAbility(SCRATCH, True, False), fixup=True).startswith(
        "refused: it may fault"
    )
    assert way(LONG, fixup=True) == "jump"
    assert way(LONG, PlantingAbility(SCRATCH, True, False)) == "jump", "nobody expects it to fault"
    # A direct call is rewritten: none of its code can fault unexpectedly.
    assert way(CALL, PlantingAbility(SCRATCH, True, False), fixup=True) == "jump"


@pytest.mark.parametrize("value", ["", "auto"])
def test_everything_is_allowed_by_default(value: str) -> None:
    assert plant_rules(value) == PlantRules() == PlantRules("", True, True, True, True)


@pytest.mark.parametrize("forced", ["jump", "trap", "stop"])
def test_one_way_for_all(forced: str) -> None:
    assert plant_rules(forced) == PlantRules(forced, False, False, False, False)


def test_parts_are_forbidden_one_by_one() -> None:
    assert plant_rules("no-run") == PlantRules(runs=False)
    assert plant_rules("no-gate,no-block") == PlantRules(gates=False, blocks=False)
    assert plant_rules("no-callsite") == PlantRules(call_sites=False)
    assert plant_rules("trap,no-callsite") == replace(ALONE, forced="trap", call_sites=False)
    assert plant_rules("no-chain") == ALONE == plant_rules("no-chain,no-run,no-gate,no-block")


@pytest.mark.parametrize("value", ["fast", "no-run,fast", "no-chain no-run"])
def test_what_plant_allows_is_checked(value: str) -> None:
    with pytest.raises(KinstError, match="no such way") as told:
        plant_rules(value)
    forbids = "no-chain, no-run, no-gate, no-block, no-callsite"
    assert told.value.hint == f"auto, jump, trap, stop, or some of {forbids}"


def test_two_ways_for_all_exclude_each_other() -> None:
    with pytest.raises(KinstError, match="jump and trap exclude"):
        plant_rules("jump,trap")


def test_plan_of_sites() -> None:
    body = CallBody(SCRATCH + 0x100, SCRATCH + 0x40, frozenset())
    plan = plan_sites(
        [WantedSite(LONG, "jump", (body,), b""), WantedSite(SHORT, "trap", (body,), b"")],
        ISA, SCRATCH + 0x1001, SCRATCH + 0x4000,
    )  # fmt: skip
    (first, code), (second, _) = plan.text
    assert first == SCRATCH + 0x1010 and second % 16 == 0 and second >= first + len(code)
    jump, trap = plan.patches
    assert jump.new[:1] == b"\xe9" and len(jump.new) == len(LONG.code)
    assert LONG.address + 5 + struct.unpack("<i", jump.new[1:])[0] == first
    assert trap.new == b"\xcc" + SHORT.code[1:]
    assert tuple(plan.traps) == ((SHORT.address, second),)
    # Addresses in the trampolines tell the two copies apart.
    assert [site for _, site in plan.copies] == [LONG.address, SHORT.address]
    for (copy, _), (start, text) in zip(plan.copies, plan.text, strict=True):
        assert start <= copy < start + len(text)


def test_refused_in_the_plan_is_told() -> None:
    plan = plan_sites(
        [WantedSite(STI, "trap", (CountBody((8,)),), b"\xf4")], ISA, SCRATCH, SCRATCH + 0x1000
    )
    assert not plan.patches and plan.refused[0][0] is STI


def test_no_room() -> None:
    body = CallBody(SCRATCH + 0x100, SCRATCH + 0x40, frozenset())
    with pytest.raises(KinstError, match="need more memory"):
        plan_sites([WantedSite(LONG, "jump", (body,), b"")] * 9, ISA, SCRATCH, SCRATCH + 64)


def test_hooks_and_their_undoing() -> None:
    code = bytes.fromhex("55534889fbe800010000") + b"\x90" * 22
    plan = plan_hooks([Hook(TEXT, code, SCRATCH + 0x100, False)], ISA, SCRATCH + 0x1000)
    (patch,) = plan.patches
    assert patch.old == code[: len(patch.new)] and patch.new[:1] == b"\xe9"
    with pytest.raises(KinstError, match="cannot be hooked"):
        plan_hooks([Hook(TEXT, b"\xf4" * 16, SCRATCH, False)], ISA, SCRATCH)


def described(*rows: Row, **more: object) -> list[bytes]:
    """Return the descriptors of these records, with the strings from 0x1000 on."""
    size = descriptor_size(0)
    data = descriptors_of(rows, 0x1000, Strings(b"abc\0"), size, **more)  # type: ignore[arg-type]
    assert len(data) == size * len(rows)
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_descriptor() -> None:
    probe = Probe(77, ProbeName("kinst", "vmlinux", "f", "5"), SHORT)
    strings = Strings(b"abc\0")
    data = descriptors_of([Row(probe, 9)], 0x1000, strings, descriptor_size(2), [(3, 4)])
    assert len(data) == descriptor_size(2) == SITE_HEADER + 16
    assert struct.unpack_from("<I", data, SITE_PROBE)[0] == 77
    assert struct.unpack_from("<I", data, SITE_EPID)[0] == 9
    assert struct.unpack_from("<Q", data, SITE_PC)[0] == SHORT.address
    at = [each - 0x1000 for each in struct.unpack_from("<4Q", data, SITE_PROVIDER)]
    texts = [strings.data[start:].split(b"\0")[0] for start in at]
    assert texts == [b"kinst", b"vmlinux", b"f", b"5"]
    assert struct.unpack_from("<2Q", data, SITE_HEADER) == (3, 4)
    assert descriptors_of([], 0, strings, descriptor_size(2)) == b""


@pytest.mark.parametrize("count", [1, 7, 30])
def test_keys_in_a_descriptor(count: int) -> None:
    """Descriptors have a word for each of the aggregations, in order, one descriptor after the
    other."""
    rows = [Row(Probe(k, ProbeName("kinst", "vmlinux", "f", "5"), SHORT), k) for k in range(3)]
    keys = [tuple(range(100 * k, 100 * k + count)) for k in range(3)]
    data = descriptors_of(rows, 0, Strings(), descriptor_size(count), keys)
    size = SITE_HEADER + 8 * count
    assert len(data) == 3 * size
    found = [struct.unpack_from(f"<{count}Q", data, k * size + SITE_HEADER) for k in range(3)]
    assert found == keys


def test_arguments_and_caller_in_a_descriptor() -> None:
    """Values that are not given are missing at a site, and in the host's context at BEGIN and the
    like, which have no address."""
    given = (Argument(ARGUMENT_STACK, -8),)
    site = Probe(77, ProbeName("kinst", "vmlinux", "f", "5"), SHORT)
    begin = Probe(1, ProbeName("dtrace", "", "", "BEGIN"))
    rows = Row(begin, 1), Row(site, 9, given), Row(site, 10), Row(site, 11, given)
    at_begin, first, without, again = described(*rows, rules={1: FrameRule(16, 8, -8)})
    ten = list(struct.iter_unpack("<Ii", first[SITE_ARGUMENTS:]))
    assert ten == [(ARGUMENT_STACK, -8)] + [(ARGUMENT_NONE, 0)] * 9
    rule = [struct.unpack_from("<i", first, at)[0] for at in (SITE_CFA_OFFSET, SITE_RA_OFFSET)]
    assert (struct.unpack_from("<I", first, SITE_CFA_SLOT)[0], *rule) == (16, 8, -8)
    assert list(struct.iter_unpack("<Ii", at_begin[SITE_ARGUMENTS:])) == [(ARGUMENT_HOST, 0)] * 10
    assert struct.unpack_from("<Q", at_begin, SITE_PC)[0] == 0
    assert struct.unpack_from("<I", at_begin, SITE_CFA_SLOT)[0] == 0xFFFF_FFFF
    assert list(struct.iter_unpack("<Ii", without[SITE_ARGUMENTS:])) == [(ARGUMENT_NONE, 0)] * 10
    assert again[SITE_ARGUMENTS:] == first[SITE_ARGUMENTS:]


def test_choice_is_plain_data() -> None:
    assert Choice("jump") == Choice("jump", "")
