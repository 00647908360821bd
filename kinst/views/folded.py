"""Folded stacks: a line of text for each stack, with the names of its frames, outermost first, and
its value.

flamegraph.pl and speedscope read this format. The names of frames follow perf and flamegraph.pl: a
frame that the compiler inlined into its caller ends in `_[i]`, and a kernel frame ends in `_[k]` if
the stacks also have frames of a user program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.types import KERNEL as KERNEL_MODULE
from kinst.events import Aggregation, Frame, Key, Stack

INLINED, KERNEL = "_[i]", "_[k]"
# Functions whose values are amounts, so that parts add up to the whole.
_ADD_UP = ("count", "sum")


@dataclass(frozen=True, slots=True)
class FoldedStack:
    """A stack with its value.

    Attributes:
        frames: names, outermost first.
        value: count or sum of the stack.
    """

    frames: tuple[str, ...]
    value: int


def fold(chosen: Aggregation) -> tuple[FoldedStack, ...]:
    """Return the stacks of an aggregation with their values; the values of equal stacks are added
    up, and stacks without a positive value are left out.

    Parts of a key that are not stacks, such as execname or pid, become the outermost frames.

    Args:
        chosen: the aggregation that stacks_of() returned.
    """
    both = len({part.kind for key in chosen.rows for part in key if isinstance(part, Stack)}) > 1
    totals: dict[tuple[str, ...], int] = {}
    for key, value in chosen.rows.items():
        frames = _frames(key, both)
        assert isinstance(value, int)
        totals[frames] = totals.get(frames, 0) + value
    return tuple(FoldedStack(frames, value) for frames, value in totals.items() if value > 0)


def folded_text(stacks: Iterable[FoldedStack]) -> str:
    """Return folded stacks as text: a line "outermost;...;innermost value" for each stack, sorted
    by frames."""
    return "".join(f"{';'.join(one.frames)} {one.value}\n" for one in _sorted(stacks))


def _sorted(stacks: Iterable[FoldedStack]) -> list[FoldedStack]:
    return sorted(stacks, key=lambda one: one.frames)


def _has_stacks(one: Aggregation) -> bool:
    return any(type_ == "stack" for type_ in one.keys)


def stacks_of(aggregations: Sequence[Aggregation], name: str = "") -> Aggregation:
    """Return the aggregation to fold: the one with this name, or the only one whose keys have
    stacks.

    Args:
        aggregations: the aggregations of a trace.
        name: name of the aggregation, with or without "@"; "" for the only one whose keys have
            stacks.

    Raises:
        KinstError: there is no such aggregation; `name` is "" and several have stacks; or the
            function is neither count() nor sum().
    """
    with_stacks = [one for one in aggregations if _has_stacks(one)]
    names = ", ".join(f"@{one.name}" for one in with_stacks)
    if name:
        plain_name = name.removeprefix("@")
        candidates = [one for one in with_stacks if one.name == plain_name]
        if not candidates:
            there = f"those with stacks: {names}" if names else "none has stacks for keys"
            raise KinstError(f"no aggregation @{plain_name} with stacks", there)
    else:
        candidates = with_stacks
        if not candidates:
            raise KinstError("no aggregation has stacks for keys", "@[stack()] = count()")
        if len(candidates) > 1:
            raise KinstError(
                f"{len(candidates)} aggregations have stacks", f"choose one with --by: {names}"
            )
    if candidates[0].function not in _ADD_UP:
        message = (
            f"@{candidates[0].name} is {candidates[0].function}(), and its values do not add up"
        )
        raise KinstError(message, "use count() or sum()")
    return candidates[0]


def _frames(key: Key, both: bool) -> tuple[str, ...]:
    """Return a key as names of frames, outermost first: first the parts of the key that are not
    stacks, then the frames of the user stack, then those of the kernel stack.

    Args:
        key: a key of the aggregation.
        both: whether the aggregation has user and kernel stacks, so that kernel frames get a
            suffix.
    """
    stacks = sorted((p for p in key if isinstance(p, Stack)), key=lambda one: one.kind != "user")
    names = [_clean(_plain(part)) for part in key if not isinstance(part, Stack)]
    for stack in stacks:
        mark = KERNEL if both and stack.kind == "kernel" else ""
        names += [_clean(_named(frame)) + (INLINED if frame.inlined else mark)
                  for frame in reversed(stack.frames)]  # fmt: skip
    return tuple(names)


def _plain(part: object) -> str:
    if isinstance(part, Frame):
        return _named(part)
    return part.hex() if isinstance(part, bytes) else str(part)


def _named(frame: Frame) -> str:
    if frame.function:
        own = frame.module in ("", KERNEL_MODULE)
        return frame.function if own else f"{frame.module}`{frame.function}"
    return frame.module or f"{frame.address:#x}"


def _clean(name: str) -> str:
    """Return a name in which the separators of the format (semicolons and line ends) are
    replaced."""
    return name.replace(";", ":").replace("\n", " ") or "-"
