"""The text of a plan for --dump plan: annotated assembly of each site's patch and trampoline.

Tested by tests/patch/test_chains.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kinst.core.instruction import Instruction
from kinst.core.isa import Isa
from kinst.patch.plan import Plan

NameOf = Callable[[int], str]  # an address of kernel code to function+offset


def list_plan(plan: Plan, isa: Isa, name_of: NameOf) -> Iterator[str]:
    """Yield the lines of a plan's text, without newlines.

    For each site there is a line with its original instruction and the way that it is planted. The
    instructions of its trampoline follow, indented; a jump or call has the name of its target.

    Args:
        plan: the plan.
        isa: the kernel's ISA.
        name_of: returns the name of an address of the kernel.
    """
    site_of = {at: site[0] for (at, _), site in zip(plan.text, plan.sites, strict=True)}
    heads, links = {patch.address for patch in plan.exits}, set(plan.chained.tolist())
    runs = {run.patch.address: run for run in plan.runs}
    stubs = _stubs(plan, isa, site_of)
    for (at, code), (address, old, way) in zip(plan.text, plan.sites, strict=True):
        original = next(isa.decode(old, address))
        how = way or "displaced with its run"
        chained = ", chained" if way and address in links else ""
        yield f"{name_of(address):<32} {original.text:<40} {how}{chained}"
        if address in runs:
            covered = [name_of(inside) for inside in runs[address].insides]
            size = len(runs[address].patch.new)
            yield f"    one patch of {size} bytes, over {', '.join(covered) or 'padding'}"
        if address in stubs:
            yield f"    {stubs[address]:x}  a stub: control from the patch joins the block here"
        if at in heads:
            yield f"    {at:x}  the head of a loop: unplanting writes a jump to the site here"
        instructions = list(isa.decode(code, at))
        for instruction in instructions:
            note = _note(instruction, isa, site_of, name_of)
            yield f"    {instruction.address:x}  {instruction.text:<40} {note}".rstrip()
        following = site_of.get(at + len(code))
        if following is not None and instructions and _falls_through(instructions[-1], isa):
            yield f"    falls into {name_of(following)}"


def _stubs(plan: Plan, isa: Isa, site_of: Mapping[int, int]) -> dict[int, int]:
    """Return a map from the address of each site that has a stub to the address of the stub. A stub
    ends with a jump to its site's trampoline.

    Args:
        plan: the plan.
        isa: the kernel's ISA.
        site_of: address of each trampoline's site, by the trampoline's address.
    """
    stubs = {}
    for at, code in plan.stubs:
        *_, last = isa.decode(code, at)
        target = isa.flow(last.code, last.address).target
        if target is not None and target in site_of:
            stubs[site_of[target]] = at
    return stubs


def _falls_through(last: Instruction, isa: Isa) -> bool:
    flow = isa.flow(last.code, last.address)
    return flow.falls_through and flow.kind != "call"


def _note(instruction: Instruction, isa: Isa, site_of: Mapping[int, int], name_of: NameOf) -> str:
    """Return "-> NAME" for an instruction of a trampoline that jumps to or calls an address with a
    name; "" for any other instruction.

    Args:
        instruction: the instruction.
        isa: the kernel's ISA.
        site_of: address of each trampoline's site, by the trampoline's address.
        name_of: returns the name of an address of the kernel, "" if it has none.
    """
    flow = isa.flow(instruction.code, instruction.address)
    if flow.target is None:
        return ""
    site = site_of.get(flow.target)
    if site is not None:
        return f"-> trampoline of {name_of(site)}"
    name = name_of(flow.target)
    return f"-> {name}" if name else ""
