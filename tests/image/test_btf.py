"""kinst/image/btf.py: member offsets against gdb's reading of the DWARF, and damaged data."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.core.errors import KinstError
from kinst.image.btf import Btf, open_btf, parse_btf
from kinst.image.elf import Elf, open_elf
from kinst.kernels.fetch import Prepared

MEMBERS = [
    ("task_struct", "pid"), ("task_struct", "tgid"), ("task_struct", "comm"),
    ("task_struct", "real_parent"), ("task_struct", "cred"), ("task_struct", "se.sum_exec_runtime"),
    ("task_struct", "thread.sp"), ("cred", "uid.val"), ("cred", "egid"), ("pt_regs", "ip"),
    ("dyn_ftrace", "flags"), ("ftrace_page", "records"), ("timekeeper", "tkr_mono.mult"),
    ("page", "lru.next"), ("page", "_refcount"), ("page", "compound_head"), ("inode", "i_nlink"),
    ("inode", "i_rcu"), ("sk_buff", "dev_scratch"), ("sk_buff", "tail"), ("file", "f_path.dentry"),
    ("mm_struct", "pgd"), ("clocksource", "name"), ("dentry", "d_lockref.count"),
]  # fmt: skip


@pytest.fixture(scope="module")
def elf(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug)


@pytest.fixture(scope="module")
def btf(elf: Elf) -> Btf:
    found = open_btf(elf)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def gdb(prepared: Prepared) -> dict[str, int]:
    """Return offsets, sizes and constants that gdb prints for the same file: half a minute."""
    questions = {f"{s}.{m}": f"&((struct {s}*)0)->{m}" for s, m in MEMBERS}
    questions |= {f"sizeof {s}.{m}": f"sizeof(((struct {s}*)0)->{m})" for s, m in MEMBERS}
    questions |= {f"struct {s}": f"sizeof(struct {s})" for s, _ in MEMBERS}
    questions |= {c: c for c in ("FTRACE_FL_DISABLED", "FTRACE_FL_ENABLED", "PIDTYPE_SID")}
    command = ["gdb", "-nx", "-batch", str(prepared.debug)]
    for question in questions.values():
        command += ["-ex", f"p/x (unsigned long)({question})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    values = [int(v, 16) for v in re.findall(r"^\$\d+ = (0x[0-9a-f]+)", done.stdout, re.M)]
    assert len(values) == len(questions), done.stderr
    return dict(zip(questions, values, strict=True))


@pytest.mark.full
def test_members_are_gdbs(btf: Btf, gdb: dict[str, int]) -> None:
    for struct_name, path in MEMBERS:
        member = btf.member(struct_name, path)
        assert btf.offset(struct_name, path) == gdb[f"{struct_name}.{path}"], path
        assert member.size == gdb[f"sizeof {struct_name}.{path}"], path
        assert btf.size(struct_name) == gdb[f"struct {struct_name}"], struct_name


@pytest.mark.full
def test_constants_are_gdbs(btf: Btf, gdb: dict[str, int]) -> None:
    for name in ("FTRACE_FL_DISABLED", "FTRACE_FL_ENABLED", "PIDTYPE_SID"):
        assert btf.enumerator(name) == gdb[name], name
    assert btf.enumerator("NO_SUCH_CONSTANT") is None


def test_bitfields_are_told(btf: Btf) -> None:
    # pt_regs.ip is whole; task_struct.in_execve is one bit (include/linux/sched.h).
    assert btf.member("task_struct", "in_execve").bits == 1
    assert btf.member("pt_regs", "ip").bits == 0
    with pytest.raises(KinstError, match="is a bit-field, which has no offset in bytes"):
        btf.offset("task_struct", "in_execve")


def test_what_is_missing_is_named(btf: Btf) -> None:
    with pytest.raises(KinstError, match="no struct no_such_struct"):
        btf.offset("no_such_struct", "x")
    with pytest.raises(KinstError, match="struct task_struct has no member pidd"):
        btf.offset("task_struct", "pidd")
    with pytest.raises(KinstError, match=r"has no member pid\.x"):
        btf.member("task_struct", "pid.x")
    assert btf.has("task_struct", "pid") and not btf.has("task_struct", "pidd")
    assert btf.has("task_struct") and not btf.has("no_such_struct")


def test_cache_is_used_and_survives_damage(elf: Elf, tmp_path: Path) -> None:
    cache = tmp_path / "new" / "kinst"
    expected = open_btf(elf, cache)
    assert expected is not None
    (saved,) = cache.iterdir()
    assert elf.build_id in saved.name
    whole = saved.read_bytes()
    for content in (whole, whole[: len(whole) // 2], b"", b"\x93NUMPY nonsense", whole[:-4]):
        saved.write_bytes(content)
        again = open_btf(elf, cache)
        assert again is not None and len(again) == len(expected)
        assert again.offset("task_struct", "pid") == expected.offset("task_struct", "pid")
    assert [p.name for p in cache.iterdir()] == [saved.name]


def sample() -> bytes:
    """struct s { int a; union { int b; }; int c[3]; struct s *p; int f : 5; };  made by hand."""
    strings = b"\0s\0a\0b\0c\0p\0f\0int\0"
    at = {n: strings.index(b"\0" + n.encode() + b"\0") + 1 for n in ("s", "a", "b", "c", "p", "f")}
    types = struct.pack("<4I", strings.index(b"int"), 1 << 24, 4, 32)  # 1: int
    types += struct.pack("<6I", 0, 5 << 24 | 1, 4, at["b"], 1, 0)  # 2: union { int b; }
    types += struct.pack("<6I", 0, 3 << 24, 0, 1, 1, 3)  # 3: int[3]
    types += struct.pack("<3I", 0, 2 << 24, 5)  # 4: struct s *
    types += struct.pack("<3I", at["s"], 1 << 31 | 4 << 24 | 5, 40)  # 5: struct s
    for name, kind, bit, bits in (("a", 1, 0, 0), ("", 2, 32, 0), ("c", 3, 64, 0),
                                  ("p", 4, 192, 0), ("f", 1, 259, 5)):  # fmt: skip
        types += struct.pack("<3I", at.get(name, 0), kind, bits << 24 | bit)
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return head + types + strings


def test_by_hand() -> None:
    btf = parse_btf(sample(), "hand")
    assert [btf.offset("s", m) for m in "abcp"] == [0, 4, 8, 24]
    assert [btf.member("s", m).size for m in "abcp"] == [4, 4, 12, 8]
    field = btf.member("s", "f")
    assert (field.bit, field.bits, field.offset) == (259, 5, 32)
    assert btf.size("s") == 40 and len(btf) == 5


@given(data=st.data())
def test_damaged_data_never_crashes(data: st.DataObject) -> None:
    content = bytearray(sample())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5)):
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for raw in (bytes(content), sample()[:cut]):
        try:
            btf = parse_btf(raw, "damaged")
            for member in "abcpf":
                btf.has("s", member)
            btf.enumerator("a")
        except KinstError as error:
            assert "damaged" in str(error)
