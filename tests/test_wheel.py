"""`pip install .` installs the whole package, both commands, man pages, examples, completion."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

import pytest

from kinst import __version__
from tests import ROOT

PAGES = sorted(ROOT.glob("docs/*.[1-9]"))
DATA = f"kinst-{__version__}.data/data/share"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel from a copy, because setuptools leaves its work files in the source
    folder."""
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build")
    for name in ("kinst", "docs", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", "out", "."], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "deprecat" not in done.stderr.lower(), done.stderr
    (file,) = (source / "out").glob("*.whl")
    return zipfile.ZipFile(file)


def below(folder: str) -> set[str]:
    """Return every file of a source folder except those that Python generates."""
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(p.relative_to(ROOT)) for p in files if "__pycache__" not in p.parts}


def test_the_package_is_whole(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if name.startswith("kinst/")}
    assert names == below("kinst")
    assert "kinst/systems/linux/guest/guest_init.sh" in names
    assert "kinst/systems/linux/d/psinfo.d" in names
    assert not [name for name in wheel.namelist() if name.startswith(("tests", "bench", "setup"))]


def test_man_pages_and_examples(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if name.startswith(DATA)}
    pages = {f"{DATA}/man/man{page.suffix[1:]}/{page.name}" for page in PAGES}
    assert len(pages) == 3
    examples = {f"{DATA}/kinst/{name}" for name in below("examples")}
    assert len(examples) > 100
    shells = {
        f"{DATA}/bash-completion/completions/kinst.bash", f"{DATA}/zsh/site-functions/_kinst",
    }  # fmt: skip
    assert names == pages | examples | shells
    for name in pages:
        assert wheel.read(name) == (ROOT / "docs" / Path(name).name).read_bytes()


def test_metadata(wheel: zipfile.ZipFile) -> None:
    folder = f"kinst-{__version__}.dist-info"
    metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert metadata["License-Expression"] == "BSD-2-Clause"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    points = ConfigParser()
    points.read_string(wheel.read(f"{folder}/entry_points.txt").decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dict(points["console_scripts"]) == project["scripts"]
    required = metadata.get_all("Requires-Dist", [])
    needed = {re.split(r"[<>=]", line)[0] for line in required if "extra ==" not in line}
    assert needed == {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.skipif(not shutil.which("man"), reason="there is no man(1) here")
def test_man_renders_it_without_warnings(page: Path) -> None:
    command = ["man", "--warnings=w", "-l", str(page)]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stderr == ""
    for word in ("NAME", "SYNOPSIS", "DESCRIPTION", page.stem):
        assert word in done.stdout
