"""Planting a plan in a target, and taking it out again, whatever happened in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinst.core.errors import KinstError, TargetError
from kinst.core.machine import Target
from kinst.patch.plan import Patch, remaining, restore
from kinst.session.values import EnabledSite, TracedMachine

BOOT_AGAIN = "the traced kernel should be booted again"


@dataclass(frozen=True, slots=True)
class Text:
    """The kernel's text at one moment: bytes from `address` on."""

    address: int
    data: bytes

    def at(self, address: int, size: int) -> bytes:
        """Bytes at an address, or nothing where they lie outside."""
        start = address - self.address
        inside = start >= 0 and start + size <= len(self.data)
        return self.data[start : start + size] if inside else b""


class Planted:
    """What is in the target now.  plant() and unplant() are called with the machine stopped."""

    def __init__(self, traced: TracedMachine, target: Target) -> None:
        self._target = target
        self._personality = traced.personality
        self._range = traced.text
        self._before = Text(0, b"")
        self._patches: tuple[Patch, ...] = ()
        self._exits: Sequence[Patch] = ()
        self._claimed: Sequence[tuple[int, bytes]] = ()
        self._comparison = ""
        self._stops: dict[int, list[EnabledSite]] = {}

    def _read_text(self) -> Text:
        low, high = self._range
        return Text(low, self._target.read(low, high - low))

    def _bytes(self, text: Text, patch: Patch) -> bytes:
        """What is at a patch's place; modules lie outside of the kernel's own text."""
        size = len(patch.old)
        return text.at(patch.address, size) or self._target.read(patch.address, size)

    def plant(
        self, hooks: Sequence[Patch], sites: Sequence[Patch], exits: Sequence[Patch] = ()
    ) -> None:
        """Write the patches: hooks first, since a trap may be hit as soon as it stands.

        exits: what leads threads out of chains once the patches are undone (Plan.exits).

        Raises KinstError, with nothing written, where the live text is not what was planned on.
        """
        patches = (*hooks, *sites)
        if not patches:
            return
        self._before = self._read_text()
        for patch in patches:
            if self._bytes(self._before, patch) != patch.old:
                raise KinstError(
                    f"the kernel changed its text at {patch.address:#x} while the plan was made",
                    "run kinst again",
                )
        if self._personality is not None:
            self._claimed = self._personality.claims([p.address for p in patches])
            self._target.write_text(self._claimed)
        self._patches, self._exits = patches, exits
        self._target.write_text([(p.address, p.new) for p in patches])

    def plant_stop(self, enabled: EnabledSite) -> None:
        """Insert the breakpoint of a stop-planted probe."""
        assert enabled.probe.site is not None
        address = enabled.probe.site.address
        there = self._stops.setdefault(address, [])
        if not there:
            self._target.insert_breakpoint(address)
        there.append(enabled)

    def stopped_at(self, address: int) -> Sequence[EnabledSite]:
        """The stop-planted probes at this address."""
        return self._stops.get(address, ())

    def unplant(self) -> str:
        """Stop the machine, undo everything and say how the text compares to what it was (""
        without patches).

        What fails is tried once more.  Raises TargetError that says what may remain in the
        kernel when it cannot be undone.
        """
        try:
            return self._undo()
        except TargetError:
            pass
        try:
            return self._undo()
        except TargetError as error:
            remains = self._remains()
            hint = error.hint or (BOOT_AGAIN if remains else "")
            raise TargetError(f"{error.message}{remains}", hint) from error

    def _remains(self) -> str:
        """What of kinst may be left in the kernel, for the end of a message; "" for nothing."""
        places = [*(p.address for p in self._patches), *self._stops]
        if not places:
            return ""
        number = "1 site" if len(places) == 1 else f"{len(places)} sites"
        return f"; {number} may still be planted in the kernel, the first at {min(places):#x}"

    def _undo(self) -> str:
        self._target.stop()
        for address in list(self._stops):
            self._target.remove_breakpoint(address)
            del self._stops[address]
        if self._patches:
            self._comparison = self._restore()
        if self._claimed and self._personality is not None:
            self._target.write_text(self._personality.releases(self._claimed))
        self._claimed = ()
        return self._comparison

    def _restore(self) -> str:
        """Write the original bytes back, and say how the text compares to what it was."""
        patches = self._patches
        here = [p for p in patches if self._still_there(p)]
        self._target.write_text(restore(here))
        self._target.write_text([(p.address, p.new) for p in self._exits])
        after = self._read_text()
        left = remaining(here, {p.address: self._bytes(after, p) for p in here})
        if left:
            self._patches = tuple(left)
            raise TargetError(f"{len(left)} patches could not be undone", BOOT_AGAIN)
        self._patches = ()
        gone = len(patches) - len(here)
        unloaded = f"; {gone} patches went with a module that was unloaded" if gone else ""
        return compared(self._before, after) + unloaded

    def _still_there(self, patch: Patch) -> bool:
        """False for a patch in a module that was unloaded since: whatever is there now is not
        kinst's to write."""
        low, high = self._range
        if low <= patch.address < high:
            return True
        try:
            return self._target.read(patch.address, len(patch.new)) == patch.new
        except TargetError:
            return False


def compared(before: Text, after: Text) -> str:
    """How the kernel's text compares to what it was, in a sentence."""
    size = len(before.data)
    if before.data == after.data:
        return f"kernel text is as before ({size} bytes compared)"
    pairs = np.frombuffer(before.data, np.uint8) != np.frombuffer(after.data, np.uint8)
    where = np.flatnonzero(pairs)
    return (
        f"the kernel itself changed {len(where)} of {size} bytes of its text meanwhile, "
        f"the first at {before.address + int(where[0]):#x}; kinst's patches are all undone"
    )
