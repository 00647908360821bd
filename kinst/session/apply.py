"""Stage that writes a trace's plan into the machine and, at the end of the trace, removes it.

Tested by tests/fake/test_runs.py and tests/session/test_trapped_cpu.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from kinst.core.columns import I64, U64, Bools, ragged
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError, TargetError
from kinst.core.layout import HEADER_ACTIVE, HEADER_CLOCK, HEADER_RAISE
from kinst.core.machine import LivePatch, Planter
from kinst.core.return_addresses import EndedCode, around, pointers_into, with_ways_back
from kinst.core.trapped import let_pass
from kinst.core.units import counted
from kinst.patch.patches import NO_PATCHES, Patches
from kinst.patch.plan import Plan, PlannedRuns
from kinst.session.values import EnabledSite, StartedMachine, TracePlan

BOOT_AGAIN = "the traced kernel should be booted again"
STILL_ON = "; what kinst switched on stays on, since the kernel kept its switches locked"
MOST_PLACES = 5  # addresses that one message names
SWITCHING, PAUSE = 10.0, 0.005  # seconds to wait for the kernel's own changes of switches
FEW = 1000  # up to so many patches are read and written one by one
JOINED = 64  # patches at most so many bytes apart are written at once, with the text between them


class Planted(Protocol):
    """Trace whose code and data are in a machine's scratch, and whose patches can be planted and
    unplanted.

    Attributes:
        hidden: after unplant(), the number of functions that the kernel's own tracer cannot trace,
            because kinst had planted them and the tracer was in use during unplant().
    """

    hidden: int

    def plant(self) -> str:
        """Write the patches into the kernel's text.

        Each run gets one jump or, if a thread may be inside the run, a patch for each of its sites.
        Returns a sentence that names such runs and says why; "" if there are no such runs.

        Raises KinstError, before anything is written, if the live text differs from the text that
        the plan was made for.
        """
        ...

    def stopped_at(self, address: int) -> Sequence[EnabledSite]:
        """Return the stop-planted probes whose breakpoint is at this address."""
        ...

    def unplant(self) -> str:
        """Remove all patches and breakpoints from the kernel.

        Returns a sentence that compares the kernel's text with the text before plant(); "" if no
        patch was written.

        Raises TargetError, which says what may remain in the kernel, if a patch cannot be removed.
        """
        ...


def apply(plan: TracePlan, machine: StartedMachine) -> Planted:
    """Write a plan's code and data into scratch, and return an object that plants its patches."""
    fill(plan)
    planter = machine.target.planter
    if planter is not None:
        return PlantedRunning(plan, machine, planter)
    return PlantedStopped(plan, machine)


def fill(plan: TracePlan) -> None:
    """Write a plan's site descriptors, clause code, trampolines and trap table into scratch."""
    view, scratch = plan.placed.memory.view, plan.placed.scratch

    def put(offset: int, data: bytes | bytearray) -> None:
        view[offset : offset + len(data)] = data

    put(scratch.strings, plan.descriptors.strings)
    for at, data in plan.descriptors.data:
        put(at, data)
    put(scratch.traps, plan.traps)
    if plan.code is not None:
        put(plan.code.address - scratch.address, plan.code.code)
        put(HEADER_CLOCK, plan.code.clock)
        if plan.code.raise_hook >= 0:
            put(HEADER_RAISE, (plan.code.address + plan.code.raise_hook).to_bytes(8, "little"))
    for text in (plan.hooks.text, plan.sites.text, plan.sites.stubs):
        if text:
            put(text.address - scratch.address, text.block)


@dataclass(frozen=True, slots=True)
class LiveText:
    """Copy of the kernel's text at one moment.

    Attributes:
        address: virtual address of the first byte.
        data: the bytes.
    """

    address: int
    data: bytes

    def holds(self, patches: Patches) -> Bools:
        """Return, for each patch, whether all of its bytes lie in this copy.

        False for patches in modules: the copy has only the kernel's own text.
        """
        start = self.offsets(patches)
        return (start >= 0) & (start + patches.size <= len(self.data))

    def offsets(self, patches: Patches) -> I64:
        """Return, for each patch, its offset from the start of this copy, negative for a patch
        before it.
        """
        return (patches.address - np.uint64(self.address)).view(np.int64)


NO_TEXT = LiveText(0, b"")


def compared(before: LiveText, after: LiveText) -> str:
    """Return a sentence that says whether, and where first, two copies of the kernel's text
    differ.
    """
    size = len(before.data)
    if before.data == after.data:
        return f"kernel text is as before ({size} bytes compared)"
    pairs = np.frombuffer(before.data, np.uint8) != np.frombuffer(after.data, np.uint8)
    where = np.flatnonzero(pairs)
    return (
        f"the kernel itself changed {len(where)} of {size} bytes of its text meanwhile, "
        f"the first at {before.address + int(where[0]):#x}; kinst's patches are all undone"
    )


def _read_text(machine: StartedMachine) -> LiveText:
    low, high = machine.text
    return LiveText(low, machine.target.read(low, high - low))


class PlantedStopped:
    """Implementation of Planted for a machine that is stopped while patches are written.

    If memory can be read while the machine runs, the machine is stopped only briefly: kinst copies
    the kernel's whole text before the stop. During the stop, kinst copies the text again or, if
    there are few patches (FEW), reads only the bytes at each patch.
    """

    def __init__(self, plan: TracePlan, machine: StartedMachine) -> None:
        self._plan = plan
        self._machine = machine
        self._target = machine.target
        self._before = NO_TEXT
        # Whether the machine should be stopped only briefly.
        self._brief = machine.target.abilities.reads_running
        self._patches = NO_PATCHES
        self._hooks = NO_PATCHES
        self._exits = NO_PATCHES
        # Address of the second instruction of each two-instruction jump -> the jump's target.
        self._steps: dict[int, int] = {}
        self._claimed: Sequence[tuple[int, bytes]] = ()
        self._switched: frozenset[int] = frozenset()  # what kinst has turned on for this trace
        self._left_on = False  # whether the kernel did not let kinst turn them off
        self._unloaded = ""  # what became of patches in modules
        self._stops: dict[int, list[EnabledSite]] = {}
        self.hidden = 0

    def _text_for(self, patches: Patches) -> LiveText:
        """Return a copy of the kernel's text, for work on these patches.

        Returns NO_TEXT if the patches are few and the machine should be stopped only briefly. The
        caller then reads memory at each patch.
        """
        return NO_TEXT if self._brief and len(patches) <= FEW else _read_text(self._machine)

    def _differs(self, text: LiveText, patches: Patches, expected: bytes) -> Bools:
        """Return, for each patch, whether memory at the patch differs from the expected bytes.

        Args:
            text: copy of the kernel's text; patches outside of it are compared with memory.
            expected: the expected bytes of all patches, one patch after another.
        """
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
        """Return writes (address, bytes) that put `data` at the patches; near patches share one
        write.

        Args:
            text: copy of the kernel's text, which has the bytes between near patches; a patch
                outside of it gets a write of its own.
            data: the bytes to write for all patches, one patch after another.
        """
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

    def plant(self) -> str:
        """Stop the machine, write the patches of hooks and sites, and insert the breakpoints."""
        plan, machine = self._plan, self._machine
        if self._brief:
            self._before = _read_text(machine)
        sites = (*plan.placement.planted, *plan.placement.stopped)
        switches = frozenset(one.enabled.switch for one in sites if one.enabled.switch)
        self._target.stop()
        told = self._write_patches(plan.hooks.patches, plan.sites, plan.ended)
        for stopped in plan.placement.stopped:
            self._insert_stop(stopped.enabled, stopped.site.address)
        if switches and not self._switch(switches, on=True):
            raise KinstError(
                "the kernel has not finished switching on the code of tracepoints (static keys)",
                "run kinst again",
            )
        return told

    def _switch(self, switches: frozenset[int], *, on: bool) -> bool:
        """Turn on or off the kernel's own switches (static keys) that must be on so that control
        reaches some of the sites.

        The kernel may have stopped in the middle of changing switches itself. Then kinst lets the
        machine run briefly, stops it and tries again. Returns False if the kernel has not finished
        after SWITCHING seconds.

        Args:
            switches: addresses of the switches (EnabledSite.switch).
        """
        system, deadline = self._machine.system, time.monotonic() + SWITCHING
        while (writes := system.switched(switches, on=on)) is None:
            if time.monotonic() > deadline:
                return False
            self._target.resume()
            time.sleep(PAUSE)
            self._target.stop()
        if on:
            self._switched = switches
        self._target.write_switches(writes)
        return True

    def _write_patches(self, hooks: Patches, plan: Plan, ended: Sequence[EndedCode]) -> str:
        runs = plan.runs
        entered = self._entered(runs, ended)
        if self._machine.facts.only_counts and entered.any():
            # Planted one by one, the sites of such a run would need traps.
            where = self._place(int(runs.patches.address[entered][0]))
            raise KinstError(f"a thread may be inside the run at {where}", "run kinst again")
        sites = plan.patches + _of_runs(runs, entered)
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
        over = _insides(runs, ~entered)
        system = self._machine.system
        self._claimed = system.claims([*patches.address.tolist(), *over.tolist()])
        self._target.write_text(self._claimed)
        self._patches, self._hooks, self._exits = sites, hooks, plan.exits
        self._steps = self._steps_of(runs, entered)
        self._target.write_text(self._writes(text, patches, patches.new))
        return self._told(runs, entered)

    def _entered(self, runs: PlannedRuns, ended: Sequence[EndedCode]) -> Bools:
        """Return, for each run, whether a thread may be inside it.

        A thread may be inside a run if a program counter or a possible return address points into
        the run, or into code of an ended trace that leads back into the run. If memory cannot be
        searched, the result is True for all runs.

        Args:
            ended: code of earlier traces that threads may still be in.
        """
        insides = runs.insides
        if not len(insides):
            return np.zeros(len(runs), np.bool_)
        starts = runs.patches.address
        ranges = [(int(starts.min()), int(max(insides.max(), starts.max())) + 16)]
        ranges += around(ended)
        live = pointers_into(self._target, ranges)
        if live is None:
            return np.ones(len(runs), np.bool_)
        # A thread may be in a run, or in code that leads back into it.
        live = with_ways_back(live, ended)
        wrong = np.isin(insides, live)
        before = np.concatenate([[0], np.cumsum(wrong)])
        entered: Bools = before[runs.inside_at[1:]] > before[runs.inside_at[:-1]]
        step = self._machine.isa.RUN_STEP
        # When the jump is removed, a word that holds the address of its second instruction must
        # belong to a thread that has executed the first.  So no such word may exist now.
        return entered | np.isin(starts + np.uint64(step), live) if step else entered

    def _steps_of(self, runs: PlannedRuns, entered: Bools) -> dict[int, int]:
        """Map the address of the second instruction of each two-instruction jump to the jump's
        target.

        When the jump is removed, a thread that has executed only the jump's first instruction must
        continue at the target. Its program counter, in a register or in memory, is the address of
        the second instruction. Any word with this address is such a program counter, because no
        word had this address when the jump was written.

        Args:
            entered: for each run, True if it has no jump because a thread may be inside it.
        """
        step = self._machine.isa.RUN_STEP
        if not step:
            return {}
        starts, targets = runs.patches.address[~entered], runs.target[~entered]
        return dict(zip((starts + np.uint64(step)).tolist(), targets.tolist(), strict=True))

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
        function = self._machine.system.function_at(address)
        return f"{function.name}+{address - function.address}" if function else f"{address:#x}"

    def _insert_stop(self, enabled: EnabledSite, address: int) -> None:
        """Insert a debugger's breakpoint for a stop-planted probe, unless there is a breakpoint
        already.
        """
        there = self._stops.setdefault(address, [])
        if not there:
            self._target.insert_breakpoint(address)
        there.append(enabled)

    def stopped_at(self, address: int) -> Sequence[EnabledSite]:
        return self._stops.get(address, ())

    def unplant(self) -> str:
        """Stop the machine, and remove all patches and breakpoints.

        After any exception (out of memory, a second Ctrl-C) the removal is tried once more. An
        exception other than TargetError is raised again once everything is removed.
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
        """Return a part of an error message, which says how many sites may still be planted.

        "" if no site may still be planted.
        """
        hooks = self._hooks.address.tolist()
        places = [*self._patches.address.tolist(), *hooks, *self._stops]
        if not places:
            return ""
        return (
            f"; {counted(len(places), 'site')} may still be planted in the kernel,"
            f" the first at {min(places):#x}"
        )

    def _undo(self) -> str:
        self._target.stop()
        if self._switched:
            self._left_on = not self._switch(self._switched, on=False)
            self._switched = frozenset()
        for address in list(self._stops):
            self._target.remove_breakpoint(address)
            del self._stops[address]
        if self._patches:
            self._unloaded = self._restore_sites()
        if self._hooks:
            self._hooks = self._restore(self._hooks, NO_TEXT)
            _need_none(self._hooks)
        if self._claimed:
            released = self._machine.system.releases(self._claimed)
            self._target.write_text(released)
            self.hidden = len(self._claimed) - len(released)
        self._claimed = ()
        if not self._before.data:
            return ""
        if self._brief:
            self._target.resume()
        told = compared(self._before, _read_text(self._machine)) + self._unloaded
        return told + STILL_ON if self._left_on else told

    def _restore_sites(self) -> str:
        """Write the original bytes over the sites' patches.

        Then wait, for at most 2.5 seconds, until each CPU that has hit one of the breakpoints has
        also passed the hook that handles it. Returns text for a message about patches that vanished
        with an unloaded module; "" if there are none.
        """
        patches = self._patches
        here = patches.take(np.flatnonzero(self._still_there(patches)))
        if self._steps:
            self._target.move(self._steps)
        self._patches = self._restore(here, self._text_for(here))
        self._target.write_text([(p.address, p.new) for p in self._exits])
        _need_none(self._patches)
        if self._hooks:
            isa, delta = self._machine.isa, self._machine.facts.trap_pc_delta
            let_pass(self._target, self._target.read, isa, patches.address, delta)
        gone = len(patches) - len(here)
        return f"; {gone} patches went with a module that was unloaded" if gone else ""

    def _restore(self, patches: Patches, text: LiveText) -> Patches:
        """Write original bytes over patches, and return the patches whose bytes are still not
        original.

        Args:
            text: copy of the kernel's text; NO_TEXT to write and compare patches one by one.
        """
        self._target.write_text(self._writes(text, patches, patches.old))
        after = self._text_for(patches) if text.data else text
        return patches.take(np.flatnonzero(self._differs(after, patches, patches.old)))

    def _still_there(self, patches: Patches) -> Bools:
        """Return, for each patch, whether it is still in memory.

        A patch is gone if its module has been unloaded; kinst must not write to such an address.
        """
        there = self._before.holds(patches)
        for k in np.flatnonzero(~there).tolist():
            patch = patches[k]
            with suppress(TargetError):
                there[k] = self._target.read(patch.address, len(patch.new)) == patch.new
        return there


class PlantedRunning:
    """Implementation of Planted for a machine that never stops: the machine itself writes the
    patches.

    kinst gives the machine each patch together with the bytes that must be in memory before. The
    machine writes all patches or none, and removes them again.
    """

    def __init__(self, plan: TracePlan, machine: StartedMachine, planter: Planter) -> None:
        self._plan = plan
        self._machine = machine
        self._planter = planter
        self._before = NO_TEXT
        self._in = False  # whether the patches are in the text
        self.hidden = 0  # the kernel's own locks keep its tracer away

    def plant(self) -> str:
        """Let the machine write the sites' patches, and start the timers of profile-N probes.

        No kernel function is detoured. The machine makes sure that no thread is in the middle of a
        run.
        """
        plan, code, samplers = self._plan.sites, self._plan.code, self._plan.samplers
        self._before = _read_text(self._machine)
        runs = plan.runs.patches
        if code is None or not (plan.patches or runs or samplers):
            return ""
        # The machine writes under the kernel's locks, so claims() is called only for its error: it
        # names the function of a call site that the kernel's own tracer uses now.
        over = (plan.patches.address, runs.address, plan.runs.insides)
        self._machine.system.claims(np.concatenate(over).tolist())
        patches = [LivePatch(p.address, p.old, p.new) for p in plan.patches]
        patches += [LivePatch(p.address, p.old, p.new, several=True) for p in runs]
        hook = code.address + code.trap_hook if len(plan.traps) else 0
        self._in = True
        area = code.address, max(code.end, plan.end)
        exits = [LivePatch(p.address, p.old, p.new) for p in plan.exits]
        active = self._plan.placed.scratch.address + HEADER_ACTIVE
        self._planter.plant(patches, hook, area, active, exits, samplers)
        return ""

    def stopped_at(self, address: int) -> Sequence[EnabledSite]:
        """Return an empty tuple: this machine never stops at a probe."""
        return ()

    def unplant(self) -> str:
        """Let the machine remove all patches.

        Returns a sentence that compares the kernel's text with the text before plant(); "" if
        nothing was planted or the text cannot be read. Raises TargetError if the machine could not
        remove a patch.
        """
        if not self._in:
            return ""
        try:
            left = self._planter.restore()
        except TargetError:
            left = self._planter.restore()
        self._in = False
        if left:
            raise TargetError(
                f"{counted(left, 'site')} could not be restored: a kprobe was put there",
                "they are restored when it is taken off",
            )
        with suppress(TargetError):
            return compared(self._before, _read_text(self._machine))
        return ""


def _need_none(left: Patches) -> None:
    if left:
        raise TargetError(f"{len(left)} patches could not be undone", BOOT_AGAIN)


def _insides(runs: PlannedRuns, which: Bools) -> U64:
    """Return the addresses of the instructions inside the selected runs: all but each run's first
    one.

    Args:
        which: for each run, whether it is selected.
    """
    count = np.diff(runs.inside_at)[which]
    return runs.insides[ragged(runs.inside_at[:-1][which], count)]


def _of_runs(runs: PlannedRuns, entered: Bools) -> Patches:
    """Return the patches to write for runs: one jump for each run or, for a run that a thread may
    be inside, the patches of its sites.

    Args:
        entered: for each run, whether a thread may be inside it.
    """
    first, last = runs.instead_at[:-1][entered], runs.instead_at[1:][entered]
    return runs.patches.take(np.flatnonzero(~entered)) + runs.instead.take(
        ragged(first, last - first)
    )
