"""Planting a plan in a target, and taking it out again, whatever happened in between."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.errors import KinstError, TargetError
from kinst.core.target import Personality, Target
from kinst.patch.plan import Patch, remaining, restore
from kinst.session_probes import Enabled


class Planted:
    """What is in the target now.  plant() and unplant() are called with the machine stopped."""

    def __init__(self, target: Target, personality: Personality | None) -> None:
        self._target = target
        self._personality = personality
        self._patches: tuple[Patch, ...] = ()
        self._claimed: Sequence[tuple[int, bytes]] = ()
        self._stops: dict[int, Enabled] = {}

    def plant(self, hooks: Sequence[Patch], sites: Sequence[Patch]) -> None:
        """Write the patches: hooks first, since a trap may be hit as soon as it stands.

        Raises KinstError, with nothing written, where the live text is not what was planned on.
        """
        patches = (*hooks, *sites)
        if not patches:
            return
        for patch in patches:
            if self._target.read(patch.address, len(patch.old)) != patch.old:
                raise KinstError(
                    f"the kernel changed its text at {patch.address:#x} while the plan was made",
                    "run kinst again",
                )
        if self._personality is not None:
            self._claimed = self._personality.claims([p.address for p in patches])
        self._target.write_text(self._claimed)
        self._patches = patches
        self._target.write_text([(p.address, p.new) for p in patches])

    def plant_stop(self, enabled: Enabled) -> None:
        """Insert the breakpoint of a stop-planted probe."""
        assert enabled.probe.site is not None
        address = enabled.probe.site.address
        self._stops[address] = enabled
        self._target.insert_breakpoint(address)

    def stopped_at(self, address: int) -> Enabled | None:
        """The stop-planted probe at this address."""
        return self._stops.get(address)

    def unplant(self) -> None:
        """Undo everything; raises TargetError that names what remains when it cannot be."""
        for address in list(self._stops):
            self._target.remove_breakpoint(address)
            del self._stops[address]
        patches, self._patches = self._patches, ()
        if not patches:
            return
        self._target.write_text(restore(patches))
        now = {p.address: self._target.read(p.address, len(p.old)) for p in patches}
        left = remaining(patches, now)
        if left:
            raise TargetError(
                f"{len(left)} patches could not be undone, the first at {left[0].address:#x}",
                "the traced kernel should be booted again",
            )
        if self._personality is not None:
            self._target.write_text(self._personality.releases(self._claimed))
        self._claimed = ()
