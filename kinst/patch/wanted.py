"""Sites to plant, with the work at each.

Tested by tests/patch/test_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.bodies import Body
from kinst.core.probe import Site


@dataclass(frozen=True, slots=True)
class WantedSite:
    """A site whose hits run in the target.

    Attributes:
        site: the instruction.
        way: "jump" or "trap"; for an instruction without a probe "gate" if it has a jump of its
            own, or "" if it is displaced because it is in a run.
        bodies: the work at a hit.
        following: live bytes after it.
        rerun_prefix: live bytes before it that are run again (Isa.rerun_starts).
        marks: as in core.columns.Columns.
    """

    site: Site
    way: str
    bodies: tuple[Body, ...]
    following: bytes
    rerun_prefix: bytes = b""
    marks: int = 0
