"""The string subroutines of D in Python, by the Dynamic Tracing Guide's "Actions and Subroutines".

Where the Guide refers to Perl or to C's library, these functions do the same as those.
"""

from __future__ import annotations

from tests.vm.language.d_model import BADADDR, LONG, NOSCRATCH, STRSIZE, FaultError, World

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def join(a: bytes, b: bytes) -> bytes:
    if len(a) + len(b) > STRSIZE - 1:
        raise FaultError(NOSCRATCH)
    return a + b


def substr(s: bytes, index: int, length: int | None) -> bytes:
    """Return a substring.

    A negative index counts from the end, and a negative length leaves so many characters at the
    end. Characters before the string are cut off.  If the index is before the string and the
    length does not reach into it, as no negative length does, the result is empty (illumos,
    dtrace.c: the subroutine substr).
    """
    size = len(s)
    if index < 0:
        index += size
        if index < 0 and length is not None:
            length += index
            if length <= 0:
                return b""
        index = max(index, 0)
    if index > size:
        return b""
    if length is None:
        return s[index:]
    end = size + length if length < 0 else index + length
    return s[index : max(end, index)]


def index_of(s: bytes, t: bytes, start: int | None) -> int:
    return s.find(t, min(max(start or 0, 0), len(s)))


def rindex_of(s: bytes, t: bytes, start: int | None) -> int:
    """Return the last index of a part; `start` is the last position at which it may begin."""
    if start is None:
        return s.rfind(t)
    if start < 0:
        return 0 if not t else -1
    return s.rfind(t, 0, min(start, len(s)) + len(t))


def rest(s: bytes, at: int) -> bytes | None:
    """Return the result of strchr(), strrchr() and strstr(): NULL if nothing was found."""
    return None if at < 0 else s[at:]


def strtok(world: World, s: bytes | None, delimiters: bytes) -> bytes | None:
    """Return the next token.

    If `s` is NULL, constant or not, continue in the string of the last call; without such a call
    in this firing, address 0 is read.
    """
    if s is not None:
        world.tokens = (s, 0)
    if world.tokens is None:
        raise FaultError(BADADDR)
    text, at = world.tokens
    while at < len(text) and text[at] in delimiters:
        at += 1
    if at == len(text):
        world.tokens = (text, at)
        return None
    end = at
    while end < len(text) and text[end] not in delimiters:
        end += 1
    world.tokens = (text, min(end + 1, len(text)))
    return text[at:end]


def lltostr(value: int, base: int) -> bytes:
    """Return a number as text: base 10 is signed, others use the 64 bits; 8 and 16 have C's prefix
    (0: 0, 0x0)."""
    value = LONG.fit(value)
    rest_ = abs(value) if base == 10 else value & (1 << 64) - 1
    found = ""
    while rest_:
        rest_, digit = divmod(rest_, base)
        found = _DIGITS[digit] + found
    sign = "-" if base == 10 and value < 0 else ""
    prefix = {8: "0" if found else "", 16: "0x"}.get(base, "")
    return (sign + prefix + (found or "0")).encode()


def strtoll(s: bytes, base: int) -> int:
    """Compute C's strtoll() of digits that fit."""
    text = s.decode().lstrip(" \t\n")
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-") if text[:1] in ("+", "-") and text[1:2] not in ("+", "-") else text
    if base == 16 and text.startswith("0x") and text[2:3] and text[2] in _DIGITS[:16]:
        text = text[2:]
    found = 0
    for letter in text.lower():
        digit = _DIGITS.find(letter)
        if not 0 <= digit < base:
            break
        found = found * base + digit
    return sign * found


def basename(s: bytes) -> bytes:
    """Compute POSIX basename(1)."""
    if not s:
        return b"."
    return s.rstrip(b"/").rpartition(b"/")[2] or b"/"


def dirname(s: bytes) -> bytes:
    """Compute POSIX dirname(1)."""
    if s and not s.strip(b"/"):
        return b"/"
    head, slash, _ = s.rstrip(b"/").rpartition(b"/")
    if not slash:
        return b"."
    return head.rstrip(b"/") or b"/"


def cleanpath(s: bytes) -> bytes:
    """Clean an absolute path whose last part is a name."""
    parts: list[bytes] = []
    for part in s.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/" + b"/".join(parts)
