"""Modules of the fetched kernel, in the order in which they must be loaded."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.kernels.fetch import Prepared
from kinst.kernels.kmod import depends, module_name, resolve, unpacked

# net_failover calls failover_register(), which failover has; dummy needs no other module.
NAMES = ("net_failover", "failover", "dummy")


def test_each_after_what_it_needs_and_once(prepared: Prepared) -> None:
    files = resolve(prepared.modules, NAMES)
    assert [module_name(file) for file in files] == ["failover", "net_failover", "dummy"]
    assert all(file.is_file() for file in files)
    assert depends(files[1]) == ("failover",) and depends(files[2]) == ()
    assert (
        resolve(prepared.modules, ("net-failover",)) == files[:2]
    )  # modprobe(8) accepts this spelling
    assert resolve(prepared.modules, ()) == []


def test_an_unknown_module(prepared: Prepared) -> None:
    with pytest.raises(KinstError, match=r"no module is called dumy \(did you mean dummy\?\)"):
        resolve(prepared.modules, ("dumy",))


def test_a_packed_module(prepared: Prepared, tmp_path: Path) -> None:
    (plain,) = resolve(prepared.modules, ("dummy",))
    packed = tmp_path / "dummy.ko.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes(), check=lzma.CHECK_CRC32))
    assert module_name(packed) == "dummy"
    (found,) = resolve(tmp_path, ("dummy",))
    assert found == tmp_path / "dummy.ko" == unpacked(packed)
    assert found.read_bytes() == plain.read_bytes()
    packed.write_bytes(b"no archive")
    found.unlink()
    with pytest.raises(KinstError, match="cannot be unpacked"):
        unpacked(packed)
    shutil.copy(Path("/bin/true"), tmp_path / "true.ko")
    with pytest.raises(KinstError, match="not a kernel module"):
        resolve(tmp_path, ("true",))
