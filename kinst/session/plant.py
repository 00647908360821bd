"""Planting a plan in a target, and taking it out again, whatever happened in between."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kinst.core.columns import U64, Bools, ragged
from kinst.core.errors import KinstError, TargetError
from kinst.core.held import EndedCode, around, with_ways_back, words_in
from kinst.core.machine import Target
from kinst.core.trapped import let_pass
from kinst.patch.patches import NO_PATCHES, Patches
from kinst.patch.plan import Plan, PlannedRuns
from kinst.session.live_text import NO_TEXT, LiveText, compared
from kinst.session.values import EnabledSite, TracedMachine

BOOT_AGAIN = "the traced kernel should be booted again"
MOST_PLACES = 5  # that one message names
FEW = 1000  # patches that are read and written one by one
JOINED = 64  # bytes of text between two patches that are written as they are, to write once


class Planted:
    """What is in the target now.  plant() is called with the machine stopped.

    Where the machine can be read while it runs, all of its text is read then, and while it stands
    only what a few patches need."""

    def __init__(self, traced: TracedMachine, target: Target) -> None:
        self._target = target
        self._isa = traced.isa
        self._personality = traced.personality
        self._range = traced.text
        self._before = NO_TEXT
        self._brief = target.abilities.reads_running  # the machine is to stand for a short time
        self._patches = NO_PATCHES
        self._hooks = NO_PATCHES
        self._exits = NO_PATCHES
        self._steps: dict[int, int] = {}  # into jumps of two instructions: to where they lead
        self._claimed: Sequence[tuple[int, bytes]] = ()
        self._unloaded = ""  # what became of patches in modules
        self.hidden = 0  # call sites of ftrace's that it is kept off for good: it is in use
        self._stops: dict[int, list[EnabledSite]] = {}

    def look(self) -> None:
        """Read what the text is before anything is planted, if the machine may run meanwhile."""
        if self._brief:
            self._before = self._read_text()

    def _text_for(self, patches: Patches) -> LiveText:
        """The text now or, for a few patches in a machine that is to stand for a short time, none:
        they are looked at one by one then, as those in modules are."""
        return NO_TEXT if self._brief and len(patches) <= FEW else self._read_text()

    def _read_text(self) -> LiveText:
        low, high = self._range
        return LiveText(low, self._target.read(low, high - low))

    def _differs(self, text: LiveText, patches: Patches, expected: bytes) -> Bools:
        """At which patches the bytes are not the expected ones (as Patches.new and old have
        them)."""
        inside = text.holds(patches)
        there = patches.take(np.flatnonzero(inside))
        size = there.size
        now = np.frombuffer(text.data, np.uint8)[ragged(text.offsets(there), size)]
        wanted = np.frombuffer(expected, np.uint8)[ragged(patches.start[:-1][inside], size)]
        wrong = np.zeros(len(patches), np.bool_)
        wrong[np.flatnonzero(inside)[np.repeat(np.arange(len(there)), size)[now != wanted]]] = True
        for k in np.flatnonzero(~inside).tolist():
            low, high = patches.start[k : k + 2].tolist()
            at = int(patches.address[k])
            wrong[k] = self._target.read(at, high - low) != expected[low:high]
        return wrong

    def _writes(self, text: LiveText, patches: Patches, data: bytes) -> list[tuple[int, bytes]]:
        """The writes of data (as Patches.new and old have it) at the places of patches: few and
        large, with what is between near ones as it is in `text`."""
        inside = text.holds(patches)
        there = patches.take(np.flatnonzero(inside))
        start, size = text.offsets(there), there.size
        new = np.frombuffer(text.data, np.uint8).copy()
        new[ragged(start, size)] = np.frombuffer(data, np.uint8)[
            ragged(patches.start[:-1][inside], size)
        ]
        order = np.argsort(start, kind="stable")
        start, end = start[order], (start + size)[order]
        apart = np.flatnonzero(start[1:] - end[:-1] > JOINED)
        firsts = start[np.concatenate([[0], apart + 1]).astype(np.int64)[: len(start)]]
        lasts = end[np.concatenate([apart, [len(end) - 1]]).astype(np.int64)[: len(end)]]
        writes = [
            (text.address + low, new[low:high].tobytes())
            for low, high in zip(firsts.tolist(), lasts.tolist(), strict=True)
        ]
        for k in np.flatnonzero(~inside).tolist():
            low, high = patches.start[k : k + 2].tolist()
            writes.append((int(patches.address[k]), data[low:high]))
        return writes

    def plant(self, hooks: Patches, plan: Plan, ended: Sequence[EndedCode] = ()) -> str:
        """Write the patches, the hooks' and the sites'.

        ended: code of earlier traces.  Returns which runs are planted as single sites, and why, in
        a sentence; "" for none.

        Raises KinstError, with nothing written, where the live text is not what was planned on.
        """
        entered = self._entered(plan.runs, ended)
        sites = plan.patches + _of_runs(plan.runs, entered)
        patches = hooks + sites
        if not patches:
            return ""
        text = self._text_for(patches)
        if not self._brief:
            self._before = text
        changed = np.flatnonzero(self._differs(text, patches, patches.old))
        if len(changed):
            at = int(patches.address[changed[0]])
            raise KinstError(
                f"the kernel changed its text at {at:#x} while the plan was made", "run kinst again"
            )
        if self._personality is not None:
            over = _insides(plan.runs, ~entered)
            self._claimed = self._personality.claims([*patches.address.tolist(), *over.tolist()])
            self._target.write_text(self._claimed)
        self._patches, self._hooks, self._exits = sites, hooks, plan.exits
        self._steps = self._steps_of(plan.runs, entered)
        self._target.write_text(self._writes(text, patches, patches.new))
        return self._told(plan.runs, entered)

    def _entered(self, runs: PlannedRuns, ended: Sequence[EndedCode]) -> Bools:
        """Of which runs a CPU, or a word of memory, holds an address inside: somebody may be about
        to go on there."""
        insides = runs.insides
        if not len(insides):
            return np.zeros(len(runs), np.bool_)
        starts = runs.patches.address
        ranges = [(int(starts.min()), int(max(insides.max(), starts.max())) + 16)]
        ranges += around(ended)
        held = words_in(self._target, ranges)
        if held is None:
            return np.ones(len(runs), np.bool_)
        # Somebody may be there, or in code that leads back there.
        held = with_ways_back(held, ended)
        wrong = np.isin(insides, held)
        before = np.concatenate([[0], np.cumsum(wrong)])
        entered: Bools = before[runs.inside_at[1:]] > before[runs.inside_at[:-1]]
        step = self._isa.RUN_STEP
        # What is at a jump's second instruction when it is taken out must have come by the first.
        return entered | np.isin(starts + np.uint64(step), held) if step else entered

    def _steps_of(self, runs: PlannedRuns, entered: Bools) -> dict[int, int]:
        """Of the jumps that are written: the address of the second instruction, where they have
        one, to where they lead.  Nothing in memory was that address before, inside of a run, so
        what is when they are taken out is the program counter of who had come so far."""
        step = self._isa.RUN_STEP
        if not step:
            return {}
        starts, goals = runs.patches.address[~entered], runs.goal[~entered]
        return dict(zip((starts + np.uint64(step)).tolist(), goals.tolist(), strict=True))

    def _told(self, runs: PlannedRuns, entered: Bools) -> str:
        found = np.flatnonzero(entered)
        if not len(found):
            return ""
        some = runs.patches.address[found[:MOST_PLACES]].tolist()
        more = ", ..." if len(found) > MOST_PLACES else ""
        return (
            f"{len(found)} of {len(runs)} runs are planted one by one, because a program counter or"
            f" a word of memory points into them: {', '.join(map(self._place, some))}{more}"
        )

    def _place(self, address: int) -> str:
        function = self._personality.function_at(address) if self._personality else None
        return f"{function.name}+{address - function.address}" if function else f"{address:#x}"

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

        What fails is tried once more, whatever was raised: no memory, a second Ctrl-C; what is no
        TargetError is raised when all is undone.  Raises TargetError that says what may remain in
        the kernel when it cannot be undone.
        """
        torn: BaseException | None = None
        try:
            return self._undo()
        except TargetError:
            pass
        except BaseException as error:
            torn = error
        try:
            told = self._undo()
            if torn is not None:
                raise torn
            return told
        except TargetError as error:
            remains = self._remains()
            hint = error.hint or (BOOT_AGAIN if remains else "")
            raise TargetError(f"{error.message}{remains}", hint) from error

    def _remains(self) -> str:
        """What of kinst may be left in the kernel, for the end of a message; "" for nothing."""
        hooks = self._hooks.address.tolist()
        places = [*self._patches.address.tolist(), *hooks, *self._stops]
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
            self._unloaded = self._restore_sites()
        if self._hooks:
            self._hooks = self._restore(self._hooks, NO_TEXT)
            _need_none(self._hooks)
        if self._claimed and self._personality is not None:
            released = self._personality.releases(self._claimed)
            self._target.write_text(released)
            self.hidden = len(self._claimed) - len(released)
        self._claimed = ()
        if not self._before.data:
            return ""
        if self._brief:
            self._target.resume()
        return compared(self._before, self._read_text()) + self._unloaded

    def _restore_sites(self) -> str:
        """Write the sites' original bytes back, and say what became of patches that are not there.
        No CPU is on its way to a hook then."""
        patches = self._patches
        here = patches.take(np.flatnonzero(self._still_there(patches)))
        if self._steps:
            self._target.move(self._steps)
        self._patches = self._restore(here, self._text_for(here))
        self._target.write_text([(p.address, p.new) for p in self._exits])
        _need_none(self._patches)
        if self._hooks:
            delta = self._personality.facts.trap_pc_delta if self._personality else 0
            let_pass(self._target, self._target.read, self._isa, patches.address, delta)
        gone = len(patches) - len(here)
        return f"; {gone} patches went with a module that was unloaded" if gone else ""

    def _restore(self, patches: Patches, text: LiveText) -> Patches:
        """Write original bytes back; which patches are there all the same."""
        self._target.write_text(self._writes(text, patches, patches.old))
        after = self._text_for(patches) if text.data else text
        return patches.take(np.flatnonzero(self._differs(after, patches, patches.old)))

    def _still_there(self, patches: Patches) -> Bools:
        """Not those in a module that was unloaded since: whatever is there now is not kinst's to
        write."""
        there = self._before.holds(patches)
        for k in np.flatnonzero(~there).tolist():
            patch = patches[k]
            with suppress(TargetError):
                there[k] = self._target.read(patch.address, len(patch.new)) == patch.new
        return there


def _need_none(left: Patches) -> None:
    if left:
        raise TargetError(f"{len(left)} patches could not be undone", BOOT_AGAIN)


def _insides(runs: PlannedRuns, which: Bools) -> U64:
    """The instructions that the jumps of some runs lie over, but not at."""
    count = np.diff(runs.inside_at)[which]
    return runs.insides[ragged(runs.inside_at[:-1][which], count)]


def _of_runs(runs: PlannedRuns, entered: Bools) -> Patches:
    """One patch of each run but, where it is entered, those that it has instead."""
    first, last = runs.instead_at[:-1][entered], runs.instead_at[1:][entered]
    return runs.patches.take(np.flatnonzero(~entered)) + runs.instead.take(
        ragged(first, last - first)
    )
