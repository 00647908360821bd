"""The type of a site that is to be planted, with the work to do at each hit.

Tested by tests/patch/test_plan.py.
"""

from __future__ import annotations

from kinst.core.bodies import Body
from kinst.core.dataclass import dataclass
from kinst.core.probe import Site


@dataclass(frozen=True, slots=True)
class WantedSite:
    """An instruction that is to be displaced, and the work that its trampoline does at a hit.

    Attributes:
        site: the instruction.
        way: how the instruction is planted: "jump" or "trap". An instruction without a probe has
            "gate" if it gets a jump of its own, and "" if it only belongs to a run.
        bodies: the parts of the work at a hit (core/bodies.py), in order.
        following: live bytes after the instruction.
        rerun_prefix: code of the instructions before this one that the trampoline runs again after
            the work (Isa.rerun_starts); b"" for none.
        marks: number in which the ISA's scan of the code noted facts about the instruction
            (core.columns.Columns); 0 for none.
    """

    site: Site
    way: str
    bodies: tuple[Body, ...]
    following: bytes
    rerun_prefix: bytes = b""
    marks: int = 0
