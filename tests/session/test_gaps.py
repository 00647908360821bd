"""Bytes of a function that are no instructions: found, and reported wherever they are missing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kinst.core.code import FunctionCode
from kinst.core.errors import KinstError
from kinst.core.probe import Function, Gap, Probe, ProbePattern, gaps_told
from kinst.isa import load
from kinst.providers import load_all
from kinst.providers.kinst import PROVIDER
from kinst.render.dtrace.listing import probe_rows
from kinst.session.descriptions import expand, naming
from kinst.session.functions import codes_of, no_place
from kinst.session.kernel import RunningKernel
from kinst.session.listing import list_names
from kinst.session.values import EnabledSite
from kinst.views.annotated_text import Page, annotated_text
from kinst.views.annotation import Annotation
from kinst.views.flow import solve

BASE = 0xFFFF_FFFF_8100_0000
# push rbx; xor eax, eax; 0F 04, which the opcode map of SDM volume 2 leaves empty; then ret.
CUT = bytes.fromhex("53 31c0 0f04 9090 c3")
WHOLE = bytes.fromhex("53 31c0 5b c3 cccc")  # breakpoints after a return are padding
CODES = {"amd64": CUT, "arm64": bytes.fromhex("c0035fd6 c003"), "riscv64": bytes.fromhex("8280 93")}


@dataclass
class Kernel:
    """The parts of a system and of a target that RunningKernel uses, with one function f."""

    text: bytes

    @property
    def functions_(self) -> list[Function]:
        return [Function("vmlinux", "f", BASE, len(self.text))]

    def code(self, address: int, size: int) -> bytes:
        return self.text[address - BASE : address - BASE + size]

    read = code

    def functions(self) -> list[Function]:
        return self.functions_

    def glob(self, pattern: str) -> list[Function]:
        return self.functions_ if pattern == "*" else []

    def lookup(self, name: str) -> list[Function]:
        return self.functions_ if name == "f" else []

    def function_at(self, address: int) -> Function | None:
        return self.functions_[0] if BASE <= address < BASE + len(self.text) else None

    def site_refusals(self, sites: list[tuple[int, int]]) -> list[str]:
        return [""] * len(sites)

    def left_to_tracer(self, sites: list[tuple[int, int]]) -> list[bool]:
        return [False] * len(sites)

    def fixup(self, address: int) -> int | None:
        return None

    def is_fatal(self, address: int) -> bool:
        return False

    def dead_ends(self) -> list[str]:
        return []


def kernel_of(text: bytes, isa: str = "amd64") -> RunningKernel:
    fake = Kernel(text)
    return RunningKernel(fake, fake, load(isa))  # type: ignore[arg-type]


def only(kernel: RunningKernel) -> Function:
    (function,) = kernel.find("", "f")
    return function


@pytest.mark.parametrize("first", ["instructions", "columns"])
@pytest.mark.parametrize("isa", sorted(CODES))
def test_a_gap_reaches_from_the_first_byte_that_does_not_decode_to_the_end(
    isa: str, first: str
) -> None:
    kernel = kernel_of(CODES[isa], isa)
    function = only(kernel)
    known = kernel.instructions(function) if first == "instructions" else None
    sizes = [one.size for one in known] if known else kernel.columns([function]).columns.size
    (gap,) = kernel.gaps([function])
    assert (gap.offset, gap.end) == (sum(sizes), len(CODES[isa])) and gap.reason
    assert gap.offset == {"amd64": 3, "arm64": 4, "riscv64": 2}[isa]


def test_padding_is_no_gap() -> None:
    kernel = kernel_of(WHOLE)
    assert kernel.gaps([only(kernel)]) == []


@pytest.mark.parametrize(
    ("code", "size"),
    [
        ("c4e77bf6c0010000c0", 9),  # rdmsr rax, 0xc0000001 (SDM volume 2, RDMSR), after iced-x86
        ("d5 08 01c0", 4),  # add r16, ... of APX
        ("0f01fe", 3),  # invlpgb, after capstone 5
    ],
)
def test_what_follows_an_instruction_that_a_disassembler_does_not_know(
    code: str, size: int
) -> None:
    text = bytes.fromhex(f"53 {code} 31c0 5b c3")
    kernel = kernel_of(text)
    function = only(kernel)
    offsets = [one.address - BASE for one in kernel.instructions(function)]
    assert offsets == [0, 1, 1 + size, 3 + size, 4 + size]
    assert kernel.columns([function]).columns.address.tolist() == [BASE + at for at in offsets]
    assert kernel.gaps([function]) == []
    returns = expand(ProbePattern("fbt", "", "f", "return"), load_all(), kernel)
    assert returns[-1].site is not None and returns[-1].site.offset == 4 + size
    (refused,) = kernel.refused([(BASE + 1, size)])
    assert refused == (code != "0f01fe")


def test_an_offset_in_a_gap_is_said_to_be_there() -> None:
    kernel = kernel_of(CUT)
    with pytest.raises(KinstError) as caught:
        list(PROVIDER.match(ProbePattern("kinst", "", "f", "7"), kernel))
    assert "f+7 is not decoded: f+3 to +8 (" in str(caught.value)
    assert "the last instruction before it is +1" in caught.value.hint


def test_returns_that_a_gap_hides_are_told_as_hidden() -> None:
    kernel = kernel_of(CUT)
    pattern = ProbePattern("fbt", "", "f", "return")
    providers = load_all()
    assert expand(pattern, providers, kernel) == []
    assert "5 bytes are not decoded" in naming(pattern, providers, kernel)


def test_a_list_shows_the_gap_after_the_last_instruction_before_it() -> None:
    kernel = kernel_of(CUT)
    found = list(PROVIDER.match(ProbePattern("kinst", "", "f", ""), kernel))
    enabled = [
        EnabledSite(Probe(k + 1, one.name, one.site), (), 0, None) for k, one in enumerate(found)
    ]
    lines = probe_rows(list_names(enabled, kernel)).splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["0", "1"]
    assert lines[3].startswith("\tf+3 (5 bytes that are not decoded: ")


def test_an_annotated_function_shows_the_gap() -> None:
    kernel = kernel_of(CUT)
    (code,) = codes_of(kernel, [only(kernel)], no_place)
    assert isinstance(code, FunctionCode)
    counts = {one.address: 1 for one in code.instructions}
    for order in ("address", "source"):
        text = annotated_text([Annotation(code, solve(code, counts, {}))], Page(order=order))
        assert "+3  (5 bytes that are not decoded: " in text


def test_many_gaps_are_counted_and_the_first_named() -> None:
    function = Function("vmlinux", "g", BASE, 64)
    told = gaps_told([Gap(function, 8 * k, 2, "why") for k in range(5)])
    assert told.startswith("10 bytes are not decoded") and told.endswith(" and 2 more places")
    assert "g+16 to +18 (why)" in told and "g+24" not in told
