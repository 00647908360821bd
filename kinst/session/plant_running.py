"""Planting in a machine that never stands still: patches are handed over, all or none, with the
bytes that must be there, and taken out by whoever put them in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kinst.core.errors import TargetError
from kinst.core.held import EndedCode
from kinst.core.machine import LivePatch, Planter, Target
from kinst.patch.patches import Patches
from kinst.patch.plan import Plan
from kinst.session.live_text import NO_TEXT, LiveText, compared
from kinst.session.values import EnabledSite, PlantedImage, TracedMachine


class PlantedRunning:
    """What is in the target now.  Same methods as Planted (plant.py)."""

    def __init__(
        self,
        traced: TracedMachine,
        target: Target,
        planter: Planter,
        built: PlantedImage,
        active: int,
    ) -> None:
        """active: see core/machine.py, Planter."""
        self._target = target
        self._planter = planter
        self._personality = traced.personality
        self._range = traced.text
        self._code = built.code
        self._samplers = built.samplers
        self._active = active
        self._before = NO_TEXT
        self._in = False  # the text
        self.hidden = 0  # see session/plant.py: the kernel's own locks keep ftrace off

    def look(self) -> None:
        """Read what the text is before anything is planted."""
        self._before = self._read_text()

    def _read_text(self) -> LiveText:
        low, high = self._range
        return LiveText(low, self._target.read(low, high - low))

    def plant(self, hooks: Patches, plan: Plan, ended: Sequence[EndedCode]) -> str:
        """Write the sites' patches, and start the timers of samples.  There are no hooks.  That
        nobody is in the middle of a run is the machine's to see to.  Raises KinstError with nothing
        planted."""
        assert not hooks
        code, samplers = self._code, self._samplers
        runs = plan.runs.patches
        if code is None or not (plan.patches or runs or samplers):
            return ""
        if self._personality is not None:
            # What is to be written is the machine's to do, under the kernel's locks; a call site
            # that is in use is told here, by the name of its function.
            over = (plan.patches.address, runs.address, plan.runs.insides)
            self._personality.claims(np.concatenate(over).tolist())
        patches = [LivePatch(p.address, p.old, p.new) for p in plan.patches]
        patches += [LivePatch(p.address, p.old, p.new, several=True) for p in runs]
        traps = bool(len(plan.traps))
        hook = code.address + code.trap_hook if traps else 0
        self._in = True
        end = max(code.address + len(code.code), plan.end)
        exits = [LivePatch(p.address, p.old, p.new) for p in plan.exits]
        self._planter.plant(patches, hook, (code.address, end), self._active, exits, samplers)
        return ""

    def plant_stop(self, enabled: EnabledSite) -> None:
        """Never asked for: no site is planted so in such a machine."""
        raise TargetError("a machine that runs on cannot be stop-planted")

    def stopped_at(self, address: int) -> Sequence[EnabledSite]:
        """It never stops."""
        return ()

    def unplant(self) -> str:
        """Take everything out, and say how the text compares to what it was.  Raises TargetError
        that says what is left."""
        if not self._in:
            return ""
        try:
            left = self._planter.restore()
        except TargetError:
            left = self._planter.restore()
        self._in = False
        if left:
            sites = "1 site" if left == 1 else f"{left} sites"
            raise TargetError(
                f"{sites} could not be restored: a kprobe has been put there meanwhile",
                "they are restored when it is taken off",
            )
        with suppress(TargetError):
            return compared(self._before, self._read_text())
        return ""
