"""Options of -x and of #pragma D option, with dtrace(1)'s names and defaults (Dynamic Tracing
Guide, "Options and Tunables").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from kinst.core.dataclass import dataclass
from kinst.core.endings import STATUS_OF
from kinst.core.errors import KinstError
from kinst.core.layout import MOST_SPECULATIONS
from kinst.core.stability import attributes

_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Options:
    """The values of all D options: sizes in bytes, rates as periods in nanoseconds."""

    agghist: bool = False
    aggpack: bool = False
    aggpercpu: bool = False
    aggrate: int = _SECOND
    aggsize: int = 4 << 20
    aggsortkey: bool = False
    aggsortkeypos: int = 0
    aggsortpos: int = 0
    aggsortrev: bool = False
    aggzoom: bool = False
    amin: str = ""
    argref: bool = False
    bufpolicy: str = "switch"
    bufresize: str = "auto"
    bufsize: int = 4 << 20
    cleanrate: int = _SECOND // 101
    cpp: bool = False
    cpu: int = -1  # the only CPU to trace; -1 for all CPUs
    defaultargs: bool = False
    destructive: bool = False
    droptags: bool = False
    dynvarsize: int = 1 << 20
    encoding: str = ""
    errtags: bool = False
    evaltime: str = "exec"
    fail: str = ""
    flowindent: bool = False
    jstackframes: int = 50
    jstackstrsize: int = 512
    nspec: int = 1
    queuesize: int = 64 << 20
    quiet: bool = False
    rawbytes: bool = False
    specsize: int = 32 << 10
    stackframes: int = 20
    stackindent: int = 14
    statusrate: int = _SECOND
    strsize: int = 256
    switchrate: int = _SECOND
    temporal: bool = True
    ustackframes: int = 100
    version: str = ""
    zdefs: bool = False

    def with_option(self, name: str, value: str | None) -> Options:
        """Return these options with one option changed.

        Raises KinstError for an unknown option or a bad value.

        Args:
            value: the option's value as text; None if the user gave only the name.
        """
        parse = _PARSERS.get(name)
        if parse is None:
            near = get_close_matches(name[:40], [*_PARSERS, *OWN_NAMES], 1)
            every = " ".join(sorted((*_PARSERS, *OWN_NAMES)))
            hint = f"did you mean {near[0]}?" if near else f"known: {every}"
            raise KinstError(f"unknown option {name[:40]!r}", hint)
        changed: dict[str, Any] = {name: parse(name, value)}
        return replace(self, **changed)


_Value = bool | int | str

_SIZE = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]{1,25})([kKmMgGtT]?)\Z")

_RATE = re.compile(r"(0[xX][0-9a-fA-F]{1,25}|[0-9]{1,25})([a-zA-Z]*)\Z")

_UNITS = {
    "": 1, "ns": 1, "nsec": 1, "us": 10**3, "usec": 10**3, "ms": 10**6, "msec": 10**6,
    "s": _SECOND, "sec": _SECOND, "m": 60 * _SECOND, "min": 60 * _SECOND,
    "h": 3600 * _SECOND, "hour": 3600 * _SECOND, "d": 86400 * _SECOND, "day": 86400 * _SECOND,
}  # fmt: skip


def _bad(name: str, value: str | None, hint: str) -> KinstError:
    if value is None:
        return KinstError(f"option {name!r} needs a value", hint)
    return KinstError(f"invalid value {value[:40]!r} for option {name!r}", hint)


def parse_boolean(name: str, value: str | None) -> bool:
    """Parse the value of a flag (dt_opt_runtime()).

    True: no value, a number other than 0, on, yes, enable, enabled, true or set. False: 0, off, no,
    disable, disabled, false, unset or an empty value. Raises KinstError for any other value.
    """
    word = "on" if value is None else value.lower()
    number = re.fullmatch("[0-9]{1,19}", word)
    if word in ("on", "yes", "enable", "enabled", "true", "set") or (number and int(word)):
        return True
    if word in ("", "off", "no", "disable", "disabled", "false", "unset") or number:
        return False
    raise _bad(name, value, "on or off")


def parse_size(name: str, value: str | None, least: int = 1) -> int:
    """Parse a size: a number, alone or followed by k, m, g or t (powers of 1024). Return bytes,
    from `least` to 2**63 - 1. Raises KinstError.
    """
    match = _SIZE.match(value or "")
    hint = "bytes, or a number with k, m, g or t"
    if match is None:
        raise _bad(name, value, hint)
    digits, unit = match.groups()
    number = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits)
    size = number << (10 * " kmgt".index(unit.lower() or " "))
    if not least <= size < 2**63:
        raise _bad(name, value, hint)
    return size


def parse_rate(name: str, value: str | None, least: int = 1) -> int:
    """Parse a period, or a frequency with the unit hz, and return the period in nanoseconds, from
    `least` to 2**63 - 1. Units are ns us ms s m h d or their long forms; a number without a unit is
    in nanoseconds. Raises KinstError.
    """
    match = _RATE.match(value or "")
    hint = "a number with ns, us, ms, s, min, h, d or hz"
    if match is None:
        raise _bad(name, value, hint)
    digits, unit = match.group(1), match.group(2).lower()
    number = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits)
    if unit == "hz":
        period = number and _SECOND // number
    elif unit in _UNITS:
        period = number * _UNITS[unit]
    else:
        raise _bad(name, value, hint)
    if not least <= period < 2**63:
        raise _bad(name, value, hint)
    return period


def parse_frequency(name: str, value: str | None) -> int:
    """Parse a rate that may be 0, which means as often as possible. Return the period in
    nanoseconds. Raises KinstError.
    """
    return parse_rate(name, value, 0)


def parse_cleanrate(name: str, value: str | None) -> int:
    """Parse the option cleanrate: how often the consumer frees deleted elements of associative
    arrays. Return the period in nanoseconds. The value 0 means one second, the longest period that
    dtrace(1) uses (dtrace_state_go()). Raises KinstError.
    """
    return parse_rate(name, value, 0) or _SECOND


def parse_number(name: str, value: str | None) -> int:
    if value is None or not re.fullmatch("[0-9]{1,9}", value):
        raise _bad(name, value, "a number, 0 or more")
    return int(value)


def parse_speculations(name: str, value: str | None) -> int:
    count = parse_number(name, value)
    if count > MOST_SPECULATIONS:
        raise _bad(name, value, f"at most {MOST_SPECULATIONS}")
    return count


def parse_frames(name: str, value: str | None) -> int:
    frames = parse_number(name, value)
    if not frames:
        raise _bad(name, value, "1 or more")
    return frames


def parse_buffer(name: str, value: str | None) -> int:
    """Parse the size of a buffer and return it in bytes. The size may be 0 if the program does not
    need the buffer.
    """
    return parse_size(name, value, 0)


def parse_strsize(name: str, value: str | None) -> int:
    size = parse_size(name, value)
    if size >= 2**32:
        raise _bad(name, value, "less than 4g")
    return size


def parse_fail(name: str, value: str | None) -> str:
    """Parse the conditions that make a trace fail, with commas between them, or "all", or "none".
    Return them with commas, worst first. Raises KinstError.
    """
    words = (value or "").split(",")
    if words in (["all"], ["none"]):
        return ",".join(STATUS_OF) if words == ["all"] else ""
    if not {*words} <= STATUS_OF.keys():
        raise _bad(name, value, f"{', '.join(STATUS_OF)}, with commas; all or none")
    return ",".join(word for word in STATUS_OF if word in words)


def parse_attributes(name: str, value: str | None) -> str:
    """Parse stability attributes such as Evolving/Evolving/Common and return their normal form.
    Raises KinstError.
    """
    try:
        return str(attributes(value or ""))
    except ValueError:
        raise _bad(name, value, "Evolving/Evolving/Common is an example") from None


def parse_version(name: str, value: str | None) -> str:
    """Check that a version of D has existed (libdtrace's _dtrace_versions[]); return it. Raises
    KinstError.
    """
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,4})(?:\.(\d{1,4}))?", value or "")
    if match is None:
        raise _bad(name, value, "1.0 is an example")
    major, minor, micro = (int(part or 0) for part in match.groups())
    if major != 1 or minor > 13 or micro > _MICROS.get(minor, 0):
        raise KinstError(f"version {value} is no version of D", "1.0 to 1.13")
    return value or ""


# The last micro version of each minor version that had micro versions.
_MICROS = {2: 2, 4: 1, 6: 3, 7: 1, 8: 1, 9: 1, 12: 1}


def _one_of(*words: str) -> Callable[[str, str | None], str]:
    def parse(name: str, value: str | None) -> str:
        if value not in words:
            raise _bad(name, value, " or ".join(words))
        return value

    return parse


_PARSERS: dict[str, Callable[[str, str | None], _Value]] = {
    "agghist": parse_boolean,
    "aggpack": parse_boolean,
    "aggpercpu": parse_boolean,
    "aggrate": parse_frequency,
    "aggsize": parse_buffer,
    "aggsortkey": parse_boolean,
    "aggsortkeypos": parse_number,
    "aggsortpos": parse_number,
    "aggsortrev": parse_boolean,
    "aggzoom": parse_boolean,
    "amin": parse_attributes,
    "argref": parse_boolean,
    "bufpolicy": _one_of("fill", "switch", "ring"),
    "bufresize": _one_of("auto", "manual"),
    "bufsize": parse_buffer,
    "cleanrate": parse_cleanrate,
    "cpp": parse_boolean,
    "cpu": parse_number,
    "defaultargs": parse_boolean,
    "destructive": parse_boolean,
    "droptags": parse_boolean,
    "dynvarsize": parse_buffer,
    "encoding": _one_of("ascii", "utf8"),
    "errtags": parse_boolean,
    "fail": parse_fail,
    "evaltime": _one_of("exec", "main", "postinit", "preinit"),
    "flowindent": parse_boolean,
    "jstackframes": parse_frames,
    "jstackstrsize": parse_size,
    "nspec": parse_speculations,
    "queuesize": parse_size,
    "quiet": parse_boolean,
    "rawbytes": parse_boolean,
    "specsize": parse_buffer,
    "stackframes": parse_frames,
    "stackindent": parse_number,
    "statusrate": parse_frequency,
    "strsize": parse_strsize,
    "switchrate": parse_frequency,
    "temporal": parse_boolean,
    "ustackframes": parse_frames,
    "version": parse_version,
    "zdefs": parse_boolean,
}

NAMES = frozenset(_PARSERS)

# Options of the compiler. setopt() may set them, but that has no effect (dtrace_setopt()).
COMPILE_TIME = frozenset(
    ("aggpercpu", "amin", "argref", "cpp", "defaultargs", "droptags", "encoding",
     "errtags", "evaltime", "version", "zdefs")
)  # fmt: skip

# Options that setopt() may change during a trace.
DYNAMIC = frozenset(
    ("agghist", "aggpack", "aggrate", "aggsortkey", "aggsortkeypos", "aggsortpos", "aggsortrev",
     "aggzoom", "flowindent", "quiet", "rawbytes", "stackindent", "switchrate")
)  # fmt: skip

# kinst's own options. session/ reads them, and the parser accepts them unchecked in control lines.
OWN_NAMES = frozenset({"batch", "only", "plant", "scratch"})
parse_only = _one_of("all", "command")
