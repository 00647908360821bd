"""Chains in running kernels change what a hit costs, never what is counted."""

from __future__ import annotations

import pytest

from tests.vm.command import counts
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

READS = 3_000
# Functions that a read(2) of one byte executes on every ISA; some have loops and calls.
FUNCTIONS = ("ksys_read", "vfs_read", "rw_verify_area", "__fdget_pos", "__fget_light")


def counted(guest: Guest, work: str, *options: str) -> dict[tuple[str, ...], int]:
    names = guest.functions(FUNCTIONS)
    assert len(names) >= 3
    sites = ", ".join(f"kinst::{name}:" for name in names)
    program = f'{sites} /execname == "reads"/ {{ @[probefunc, probename] = {work}; }}'
    done = guest.trace(
        *options, "-q", "-v", "-n", program, "-c", f"reads {READS}", copy=[guest.reads()]
    )
    assert "kernel text is as before" in done.err
    return counts(done.out)


def counted_alone(guest: Guest, *options: str) -> dict[tuple[str, ...], int]:
    """Return counts of functions that nothing else in the guest executes, so that no predicate is
    needed."""
    program = (
        "kinst::read_zero:, kinst::read_iter_zero:, kinst::*sys_getppid:"
        " { @[probefunc, probename] = count(); }"
    )
    command = f"sh -c 'reads {READS}; getppid {READS}'"
    copies = [guest.reads(), guest.program("getppid", guest.isa)]
    done = guest.trace(*options, "-q", "-v", "-n", program, "-c", command, copy=copies)
    assert "kernel text is as before" in done.err
    return counts(done.out)


def test_counts_of_blocks_are_those_of_instructions(guest: Guest) -> None:
    """One counter for a straight line counts the same as one for each of its instructions."""
    blocks = counted_alone(guest)
    single = counted_alone(guest, "-x", "plant=no-block")
    assert len([n for n in blocks.values() if n == READS]) > 20
    assert blocks == single


@pytest.mark.parametrize("work", ["count()", pytest.param("sum(1)", marks=pytest.mark.slow)])
def test_counts_are_those_of_single_sites(guest: Guest, work: str) -> None:
    """The reads of one program execute the same number of each instruction with and without
    chains."""
    chained = counted(guest, work)
    single = counted(guest, work, "-x", "plant=no-chain")
    assert READS in chained.values()
    assert chained == single
