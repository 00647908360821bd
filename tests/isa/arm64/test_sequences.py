"""Instructions that must stay together on arm64, and the flow of unknown instructions.

The former are exclusives with wfet, unprivileged exclusives (FEAT_LSUI), memory copies and sets
(FEAT_MOPS), and pacm.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kinst.core.displaced import Refused, Relocated
from kinst.isa import load
from tests.isa.gnu_assembler import assembled

ISA = load("arm64")
AT = 0xFFFF_8000_0801_0000

NOP, RET = 0xD503201F, 0xD65F03C0
LDXR, STXR = 0xC85F7C20, 0xC8027C20  # ldxr x0, [x1]; stxr w2, x0, [x1]
LDTXR, STTXR = 0xC95F7C20, 0xC9027C20  # FEAT_LSUI's, by their encoding diagrams
ADD, WFE, WFET = 0x91000400, 0xD503205F, 0xD5031003  # add x0, x0, #1; wfet x3
LOAD = 0xF9400062  # ldr x2, [x3]: not to be run again
PACM, PACIASP = 0xD50324FF, 0xD503233F
CBGT = 0x74020080  # cbgt w0, w2, .+16 (FEAT_CMPBR)


def of(*words: int) -> tuple[dict[int, str], dict[int, int]]:
    """Return unsafe() and rerun_starts() of a function of these words, by index."""
    code = b"".join(struct.pack("<I", word) for word in words)
    assert ISA.has_sequences(code)
    instructions = list(ISA.decode(code, AT))
    unsafe = {(at - AT) // 4: why for at, why in ISA.unsafe(instructions).items()}
    again = {(at - AT) // 4: (to - AT) // 4 for at, to in ISA.rerun_starts(instructions).items()}
    return unsafe, again


def test_wfet_ends_an_exclusive_sequence_as_wfe_does() -> None:
    for wait in (WFE, WFET):
        assert of(LDXR, ADD, wait, RET) == ({}, {1: 0, 2: 0}), hex(wait)
        unsafe, again = of(LDXR, LOAD, wait, RET)
        assert set(unsafe) == {2} and again == {1: 0}, hex(wait)


def test_unprivileged_exclusives_are_a_sequence() -> None:
    for load_, store in ((LDXR, STXR), (LDTXR, STTXR)):
        assert of(load_, ADD, store, RET) == ({}, {1: 0, 2: 0})
        unsafe, again = of(load_, LOAD, NOP, store, RET)
        assert set(unsafe) == {2, 3} and again == {1: 0}
    assert ISA.unsteppable(struct.pack("<I", LDTXR)) and not ISA.unsteppable(
        struct.pack("<I", STTXR)
    )


# As LLVM 19 assembles them.
MOPS = {
    "cpyfp": 0x19010440, "cpyfm": 0x19410440, "cpyfe": 0x19810440,
    "cpyp": 0x1D010440, "cpym": 0x1D410440, "cpye": 0x1D810440,
    "setp": 0x19C20420, "setm": 0x19C24420, "sete": 0x19C28420,
    "setgp": 0x1DC20420, "setgm": 0x1DC24420, "setge": 0x1DC28420,
}  # fmt: skip


@pytest.mark.parametrize("name", MOPS)
def test_memory_copies_and_sets_stand_together(name: str) -> None:
    made = ISA.displace(struct.pack("<I", MOPS[name]), AT, AT + 4096)
    assert isinstance(made, Refused) and "stand together" in made.reason


def test_what_follows_pacm_signs_with_its_own_address() -> None:
    unsafe, _ = of(PACM, PACIASP, NOP, RET)
    assert set(unsafe) == {0, 1}
    assert isinstance(ISA.displace(struct.pack("<I", PACM), AT, AT + 4096), Refused)


@pytest.mark.parametrize(
    "word",
    [
        0x5500009F,  # retaasppc
        0xF380009F,  # autiasppc
        0xDAC1A3FE,  # paciasppc
        0xD50325FF,  # a hint without a name: 47
    ],
)
def test_what_depends_on_its_address_or_is_not_known_is_refused(word: int) -> None:
    assert isinstance(ISA.displace(struct.pack("<I", word), AT, AT + 4096), Refused)


def test_loads_of_the_register_that_they_load_from_are_known(tmp_path: Path) -> None:
    """The kernel's get_user() has them."""
    names = ("ldtr w0", "ldtr x0", "ldtrb w0", "ldtrh w0", "ldtrsb x0", "ldtrsb w0", "ldtrsh x0",
             "ldtrsh w0", "ldtrsw x0")  # fmt: skip
    source = "\n".join(f"{name}, [x0]\n{name}, [x0, #-8]" for name in names)
    code = assembled("arm64", source, tmp_path)
    words = [code[at : at + 4] for at in range(0, len(code), 4)]
    assert len(words) == 2 * len(names)
    for word in words:
        made = ISA.displace(word, AT, AT + 4096)
        assert isinstance(made, Relocated) and made.code[:4] == word
    for reserved in (0xF8C00800, 0xB8C00800, 0xF8800800):
        assert isinstance(ISA.displace(struct.pack("<I", reserved), AT, AT + 4096), Refused)


def test_an_unknown_branch_may_lead_anywhere() -> None:
    flow = ISA.flow(struct.pack("<I", CBGT), AT)
    assert flow.kind == "indirect" and flow.falls_through
    assert ISA.flow(struct.pack("<I", 0x5500009F), AT).kind == "return"
    # It is no longer known that control cannot enter between a load-exclusive and its store.
    unsafe, again = of(LDXR, ADD, STXR, CBGT, RET)
    assert set(unsafe) == {1, 2} and again == {}
    # Through the unknown instruction control may reach a store.
    unsafe, _ = of(LDXR, CBGT, RET, ADD, STXR, RET)
    assert set(unsafe) >= {1, 3, 4}
