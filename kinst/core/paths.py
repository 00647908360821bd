"""Where kinst keeps things on the host."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for what can be fetched or made again: $XDG_CACHE_HOME/kinst or ~/.cache/kinst.

    A relative $XDG_CACHE_HOME is ignored, as the XDG base directory specification demands.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "kinst"
