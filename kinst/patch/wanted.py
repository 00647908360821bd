"""What is to be planted.

Tested by tests/patch/test_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.bodies import Body
from kinst.core.probe import Site


@dataclass(frozen=True, slots=True)
class WantedSite:
    """A site to plant in-target: its way (jump or trap), the work there, the bytes after it and
    those before it that are run again (Isa.rerun_starts).

    way "": nobody asked for it, and it is displaced only because it is in a run.  gate: nor for
    this one, and it has a jump of its own.  marks: as in
    core.columns.Columns."""

    site: Site
    way: str
    bodies: tuple[Body, ...]
    following: bytes
    rerun_prefix: bytes = b""
    marks: int = 0
