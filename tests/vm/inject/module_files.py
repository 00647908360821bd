"""Modules with faults, built for the kernel of a guest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from kinst.kernels.fetch import Prepared
from tests import ROOT
from tests.vm.command import KINST, SECONDS
from tools.kernel_headers import module_for


def built(name: str, prepared: Prepared, folder: Path) -> Path:
    """Build the module of tests/programs/NAME_module for the fetched kernel of amd64."""
    sources = ROOT / f"tests/programs/{name}_module"
    (module,) = module_for("amd64", prepared.modules.name, sources, folder / name)
    return module


def summary_of(folder: Path, *words: str, status: int) -> dict[str, Any]:
    """Run `kinst inject` or `kinst race`, and return its summary.

    Args:
        status: the exit status to expect.
    """
    path = folder / "summary.json"
    command = [str(KINST), *words, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status, done
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary
