"""D's subroutines on both machines, against the Dynamic Tracing Guide.

Each program is compiled once; its arguments are registers and strings in the kernel's memory, so
hypothesis can try many.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.core import layout as lay
from tests.codegen.codegen_rig import CYCLES, NOW, PID, PPID, RIGS, HostRig, Rig
from tests.codegen.subroutines_rig import (
    ERRORS,
    NULL,
    STRSIZE,
    A,
    Value,
    check,
    compiled,
    expression,
    few,
    ints,
    longs,
    many,
    rigs,
    run,
    texts,
)

both = pytest.mark.parametrize("rig", RIGS)


@many
@given(texts, texts)
def test_strlen_and_strjoin(s: bytes, u: bytes) -> None:
    check("trace(strlen(S)); trace(strjoin(S, T));", [len(s), s + u], s, u)


@given(st.integers(25, 40), st.integers(25, 40))
@many
def test_strjoin_of_what_does_not_fit(a: int, b: int) -> None:
    """A string of strsize bytes has one of them for its NUL."""
    s, u = b"x" * a, b"y" * b
    fits = a + b < STRSIZE
    check("trace(strjoin(S, T));", [s + u] if fits else (lay.FAULT_NOSCRATCH, 0), s, u)


@pytest.mark.parametrize("size", [STRSIZE - 2, STRSIZE - 1, STRSIZE, STRSIZE + 1, 4 * STRSIZE])
def test_a_string_of_the_kernel_is_cut_before_anything_is_done_with_it(size: int) -> None:
    """A string of strsize bytes has one of them for its NUL (the Dynamic Tracing Guide,
    "strsize")."""
    s = (b"0123456789" * 30)[:size]
    seen = s[: STRSIZE - 1]
    body = 'trace(strlen(S)); trace(index(S, "9", 61)); trace(substr(S, -3)); trace(S == T);'
    check(body, [len(seen), seen.find(b"9", 61), seen[-3:], 1], s, seen)


@many
@given(few, few)
def test_strstr(s: bytes, u: bytes) -> None:
    at = s.find(u)
    # Compared with NULL, "" is equal (dtrace_strncmp() of illumos and FreeBSD).
    check("trace(strstr(S, T) == NULL);", [int(at < 0 or not s[at:])], s, u)
    check("trace(strstr(S, T));", NULL if at < 0 else [s[at:]], s, u)


@many
@given(few, st.sampled_from(b"ab/.,\0c"))
def test_strchr_and_strrchr(s: bytes, c: int) -> None:
    whole = s + b"\0"
    first, last = whole.find(bytes([c])), whole.rfind(bytes([c]))
    missing = [int(first in (-1, len(s))), int(last in (-1, len(s)))]
    check("trace(strchr(S, I) == NULL); trace(strrchr(S, I) == NULL);", missing, s, b"", c)
    expected = NULL if first < 0 else [s[first:], s[last:]]
    check("trace(strchr(S, I)); trace(strrchr(S, I));", expected, s, b"", c)


def perl_index(s: bytes, u: bytes, start: int) -> int:
    """Compute Perl's index(), to which the Guide refers (perlfunc): positions are clamped to the
    string."""
    return s.find(u, min(max(start, 0), len(s)))


def perl_rindex(s: bytes, u: bytes, start: int) -> int:
    """Compute Perl's rindex(): the last occurrence that begins at or before start."""
    if start < 0:
        return -1 if u else 0
    return s.rfind(u, 0, min(start, len(s)) + len(u))


@many
@given(few, few, ints)
def test_index_and_rindex(s: bytes, u: bytes, start: int) -> None:
    check(
        "trace(index(S, T)); trace(rindex(S, T)); trace(index(S, T, I)); trace(rindex(S, T, I));",
        [s.find(u), s.rfind(u), perl_index(s, u, start), perl_rindex(s, u, start)], s, u, start,
    )  # fmt: skip


def test_index_and_rindex_of_all_short_texts() -> None:
    whole = [bytes(s) for size in range(4) for s in itertools.product(b"ab", repeat=size)]
    for s, u, start in itertools.product(whole, whole[:7], (-1, 0, 1, 3)):
        expected: list[Value] = [perl_index(s, u, start), perl_rindex(s, u, start)]
        check("trace(index(S, T, I)); trace(rindex(S, T, I));", expected, s, u, start)


def perl_substr(s: bytes, start: int, count: int | None) -> bytes:
    """Compute Perl's substr() by positions.

    A negative start or count is taken from the end; positions outside the string are cut off.
    """
    size = len(s)
    first = start + size if start < 0 else start
    if count is None:
        last = size
    elif count < 0:
        last = size + count
    else:
        last = first + count
    if first < 0:
        # Before the string: only if the count reaches into it, and no count from the end does.
        if (count is None or count >= 0) and last > 0:
            first = 0
        else:
            return b""
    return s[first:last] if first < last else b""


@many
@given(few, ints, ints)
def test_substr(s: bytes, start: int, count: int) -> None:
    body = "trace(substr(S, I)); trace(substr(S, I, J));"
    whole = perl_substr(s, start, None)
    if start + len(s) < 0:
        # A missing count is strsize.
        whole = perl_substr(s, start, STRSIZE)
    check(body, [whole, perl_substr(s, start, count)], s, b"", start, count)


@many
@given(few, st.sampled_from([b",", b",.", b"/", b"", b"ab"]))
def test_strtok(s: bytes, u: bytes) -> None:
    """Tokens of strtok(3), one in each action, then NULL."""
    tokens = [x for x in re.split(b"[%s]" % re.escape(u), s) if x] if u else [s] if s else []
    assert not tokens or tokens == [x for x in tokens if x]
    wanted = tokens[:3]
    body = "trace(strtok(S, T));" + "trace(strtok(NULL, T));" * (len(wanted) - 1)
    check(body if wanted else "trace(strtok(S, T) == NULL);", wanted or [1], s, u)


def test_strtok_at_its_end() -> None:
    body = 'trace(strtok(S, ",")); trace(strtok(NULL, ",") == NULL);'
    check(body, [b"a", 1], b",a,,")
    check(body, [b"a", 1], b"a")
    check(body.replace("S,", "T,") + 'trace(strtok(NULL, ",") == NULL);', [b"a", 1, 1], b"", b"a")
    check('trace(strtok(NULL, ","));', NULL)
    check('trace(strtok(strjoin(S, ",b"), ",")); trace(strtok(NULL, ","));', [b"a", b"b"], b"a")


@pytest.mark.parametrize("nothing", ["NULL", "0", "(char *)0", "stringof((char *)0)"])
def test_strtok_without_delimiters_is_an_error(nothing: str) -> None:
    check(f"trace(strtok(S, {nothing}));", NULL, b"abc")


def test_strtok_goes_on_in_the_next_clause() -> None:
    for rig in RIGS:
        program = compiled(
            'kinst::f:0 { trace(strtok("one two", " ")); } kinst::f:0 { trace(strtok(NULL, " ")); }'
        )
        one = rig(program, {7: (0, 1)}, strsize=STRSIZE)
        one.fire(7)
        one.fire(7)
        got = [r.data.split(b"\0")[0] for r in one.records(one.slot)]
        assert got == [b"one", b"two"] * 2


def posix_basename(path: bytes) -> bytes:
    """Compute basename(1) of POSIX, step by step."""
    if not path:
        return b"."
    if not path.strip(b"/"):
        return b"/"
    return path.rstrip(b"/").rpartition(b"/")[2]


def posix_dirname(path: bytes) -> bytes:
    """Compute dirname(1) of POSIX, step by step."""
    if path and not path.strip(b"/"):
        return b"/"
    path = path.rstrip(b"/")
    if b"/" not in path:
        return b"."
    return path[: path.rindex(b"/")].rstrip(b"/") or b"/"


@many
@given(few)
def test_basename_and_dirname(s: bytes) -> None:
    body = "trace(basename(S)); trace(dirname(S));"
    check(body, [posix_basename(s), posix_dirname(s)], s)


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        (b"", b""), (b"/", b"/"), (b"a", b"a"), (b"/a/b", b"/a/b"), (b"//a///b", b"/a/b"),
        (b"/a/./b", b"/a/b"), (b"/a/../b", b"/b"), (b"/a/b/../../c", b"/c"), (b"/../a", b"/a"),
        (b"/a/..", b"/"), (b"/a/b/..", b"/a/"), (b"/a/...", b"/a/..."), (b"/a/.b/c", b"/a/.b/c"),
        (b"/a/..b/c", b"/a/..b/c"), (b"a//b/./c", b"a/b/c"),
        (b"/usr/bin/../lib/./x", b"/usr/lib/x"),
    ],
)  # fmt: skip
def test_cleanpath(path: bytes, clean: bytes) -> None:
    """The Guide: "/./" and "/../" elements are removed; links are not followed."""
    check("trace(cleanpath(S));", [clean], path)


@many
@given(st.binary(max_size=80).map(lambda b: b.replace(b"\0", b"z")))
def test_case(s: bytes) -> None:
    seen = s[: STRSIZE - 1]
    check("trace(toupper(S)); trace(tolower(S));", [seen.upper(), seen.lower()], s)


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def in_base(value: int, base: int) -> bytes:
    """Print like C's %#o, %#x and %d; other bases without a prefix, unsigned."""
    if base == 10:
        return str(value).encode()
    value &= (1 << 64) - 1
    rest, text = value, ""
    while rest:
        rest, digit = divmod(rest, base)
        text = DIGITS[digit] + text
    prefix = {8: "0", 16: "0x"}.get(base, "")
    whole = prefix + text if value else {16: "0x0"}.get(base, "0")
    return whole.encode()[: STRSIZE - 1]  # as any recorded string is cut


@many
@given(longs | st.integers(-3, 40), st.integers(2, 36))
def test_lltostr(value: int, base: int) -> None:
    body = "trace(lltostr(K)); trace(lltostr(K, I));"
    check(body, [str(value).encode(), in_base(value, base)], b"", b"", base, 0, value)


@many
@given(longs, st.integers(2, 36), st.sampled_from(["", " ", "\t +", "  ", "+"]), st.data())
def test_strtoll(value: int, base: int, front: str, data: st.DataObject) -> None:
    text, rest = "", abs(value)
    while rest:
        rest, digit = divmod(rest, base)
        text = DIGITS[digit] + text
    text = ("-" if value < 0 else "") + (text or "0")
    if value >= 0:
        text = front + text
    if base == 16 and data.draw(st.booleans()):
        text = re.sub(r"(?=[0-9a-z])", "0x", text, count=1)
    if data.draw(st.booleans()):
        text = text.upper().replace("0X", data.draw(st.sampled_from(["0x", "0X"])))
    tail = data.draw(st.sampled_from(["", "!", " 7", ":"]))
    if len(text + tail) < STRSIZE:
        check("trace(strtoll(S, I));", [value], (text + tail).encode(), b"", base)
    if base == 10:
        check("trace(strtoll(S));", [value], (text + tail).encode())


@pytest.mark.parametrize("base", [-1, 0, 1, 37, 1 << 20])
def test_bad_bases_are_illegal_operations(base: int) -> None:
    check("trace(lltostr(K, I));", (lay.FAULT_ILLOP, 0), b"", b"", base)
    check("trace(strtoll(S, I));", (lay.FAULT_ILLOP, 0), b"12", b"", base)


@many
@given(longs)
def test_byte_order(value: int) -> None:
    raw = struct.pack("<q", value)
    expected: list[Value] = [int.from_bytes(raw[:size], "big") for size in (2, 4, 8)]
    for way in ("hton", "ntoh"):
        body = f"trace({way}s(K)); trace({way}l(K)); trace({way}ll(K));"
        check(body, expected, b"", b"", 0, 0, value)


groups = st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF, 0xAB, 0x1234]), min_size=8, max_size=8)


@many
@given(st.binary(min_size=4, max_size=4), groups)
def test_inet(four: bytes, words: list[int]) -> None:
    six = struct.pack(">8H", *words)
    body = "trace(inet_ntoa(P)); trace(inet_ntop(2, P)); trace(inet_ntoa6((char *)regs[R_1]));"
    body += " trace(inet_ntop(10, (char *)regs[R_1]));"
    v4 = str(ipaddress.IPv4Address(four)).encode()
    v6 = socket.inet_ntop(socket.AF_INET6, six).encode()
    check(body, [v4, v4, v6, v6], four, six)


@pytest.mark.parametrize("last", [0xFFFF, 0xFFFE, 0x1234])
def test_inet6_with_each_pattern_of_zeros(last: int) -> None:
    """Some of them have an IPv4 address in them."""
    for mask in range(256):
        words = [0xAB00 + n if mask >> n & 1 else 0 for n in range(8)]
        words[5] = last if words[5] else 0
        six = struct.pack(">8H", *words)
        check("trace(inet_ntoa6(P));", [socket.inet_ntop(socket.AF_INET6, six).encode()], six)


def test_inet_of_no_family() -> None:
    check("trace(inet_ntop(I, P));", (lay.FAULT_ILLOP, 3), b"abcd", b"", 3)
    check("trace(inet_ntoa((char *)1));", (lay.FAULT_BADADDR, 1))


def test_devices() -> None:
    """Linux: the low 20 bits are the minor number."""
    check("trace(getmajor(K)); trace(getminor(K));", [8, 1], b"", b"", 0, 0, 8 << 20 | 1)


def test_strings_that_cannot_be_read() -> None:
    for body in ("strlen", "toupper", "basename", "cleanpath", "strtoll"):
        check(f"trace({body}((char *)0x55));", (lay.FAULT_BADADDR, 0x55))
    check('trace(strlen(strchr("abc", 120)));', NULL)
    check("trace(strjoin(S, strstr(S, T)));", NULL, b"abc", b"d")


@many
@given(st.binary(min_size=1, max_size=40), st.integers(0, 40), st.integers(0, 30))
def test_alloca_and_bcopy(data: bytes, size: int, skip: int) -> None:
    """Copied bytes are read back through the pointer, in the next action too."""
    data = data.ljust(72, b"\1")
    body = (
        "copy = (char *)alloca(80); bcopy(P + J, copy, I); trace(*copy); trace(copy[I - 1]);"
        " trace(*(uint64_t *)copy); bcopy(copy, copy + 8, 8); trace(((uint64_t *)copy)[1]);"
    )
    size = max(size, 8)
    part = data[skip:][:size]
    signed = [b - 256 if b > 127 else b for b in (part[0], part[-1])]
    first = int.from_bytes(part[:8], "little")
    check(body, [*signed, first, first], data, b"", size, skip)


@both
def test_alloca_has_an_end(rig: type[Rig]) -> None:
    program = compiled(f"kinst::f:0 {{ p = alloca(regs[R_2]); q = alloca(8); trace(1); }} {ERRORS}")
    one = rig(program, {7: (0,)}, error=(1,), strsize=STRSIZE)
    for size, fits in (
        (lay.ARENA - 8, True), (lay.ARENA - 7, False), (1 << 63, False), (0, True),
        ((1 << 64) - 1, False), (lay.ARENA - 8, True),
    ):  # fmt: skip
        assert run(one, b"", b"", size) == ([1] if fits else (lay.FAULT_NOSCRATCH, 0)), size


def test_only_the_clause_s_own_memory_is_written() -> None:
    check("bcopy(P, P, 4); trace(1);", (lay.FAULT_BADADDR, A), b"abcd")
    check("bcopy(P, (char *)0x77, 4); trace(1);", (lay.FAULT_BADADDR, 0x77), b"abcd")
    check("p = alloca(8); bcopy((char *)9, p, 4); trace(1);", (lay.FAULT_BADADDR, 9))
    for body in ("bcopy(P, p, 9)", "bcopy(P, p + 4, 5)", "bcopy(P, p - 1, 2)",
                 "bcopy(P, p, (uint64_t)-1)"):  # fmt: skip
        for rig in rigs(f"p = (char *)alloca(8); {body}; trace(1);"):
            got = run(rig, b"abcdefghijkl")
            assert isinstance(got, tuple) and got[0] == lay.FAULT_BADADDR
    check("p = (char *)alloca(8); bcopy(P, p + 4, 4); trace(p[7]);", [ord("d")], b"abcd")


def test_memref() -> None:
    check("trace(memref(P, I)[0]); trace(memref(P, I)[1]);", [A, 12], b"", b"", 12)


@pytest.mark.parametrize("rig", RIGS)
def test_rand_is_splitmix64(rig: type[Rig]) -> None:
    """The first numbers of S. Vigna's generator from 1234567 on are those that are published;
    rand() is an int."""
    run = rig(compiled("kinst::f:0 { trace(rand()); }"), {7: (0,)}, strsize=STRSIZE)
    run.write(run.scratch.state_of(run.slot) + lay.STATE_RANDOM, struct.pack("<Q", 1234567))
    for wanted in (
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
        16408922859458223821,
    ):  # fmt: skip
        run.consume(run.slot)
        run.fire(7)
        (record,) = run.records(run.slot)
        assert run.fields(record) == [struct.pack("<I", wanted & 0xFFFFFFFF)]


@both
def test_rand_begins_with_the_time(rig: type[Rig]) -> None:
    """The first state of a CPU is an odd number from its clock; all ones is a state like any
    other."""
    mask = (1 << 64) - 1
    run = rig(compiled("kinst::f:0 { trace(rand()); }"), {7: (0,)}, strsize=STRSIZE)
    place = run.scratch.state_of(run.slot) + lay.STATE_RANDOM
    cycles = NOW if rig is HostRig else CYCLES
    for state, before in ((0, cycles | 1), (mask, mask), (1, 1)):
        run.write(place, struct.pack("<Q", state))
        run.fire(7)
        after = before + 0x9E3779B97F4A7C15 & mask
        assert run.read(place, 8) == struct.pack("<Q", after)


@both
def test_rand_is_spread(rig: type[Rig]) -> None:
    one = rig(compiled("kinst::f:0 { trace(rand()); }"), {7: (0,)}, strsize=STRSIZE)
    found = []
    for _ in range(200):
        one.consume(one.slot)
        one.fire(7)
        (record,) = one.records(one.slot)
        found.append(int.from_bytes(record.data[:4], "little"))
    assert len(set(found)) > 195
    for bit in range(32):
        ones = sum(value >> bit & 1 for value in found)
        assert 50 < ones < 150, bit


def test_progenyof() -> None:
    body = "trace(progenyof(I)); trace(progenyof(J));"
    host = HostRig(compiled(f"kinst::f:0 {{ {expression(body)} }}"), {7: (0,)}, strsize=STRSIZE)
    assert run(host, b"", b"", PID, PPID) == [1, 1]
    assert run(host, b"", b"", PID + 1, PPID + 1) == [0, 0]


def test_nothing_before_a_string_is_part_of_it() -> None:
    for count in (1, 2, 5, 20):
        for before in range(1, 8):
            check("trace(substr(S, I, J));", [b"abc"[: max(0, count - before)]], b"abc", b"",
                  -3 - before, count)  # fmt: skip


def test_all_letters_are_digits() -> None:
    for text in (b"z", b"Zz", b"yZ", b"zzzz"):
        check("trace(strtoll(S, 36));", [int(text, 36)], text)
