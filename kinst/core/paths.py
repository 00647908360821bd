"""Folders of the host in which kinst keeps files.

Tested by tests/kernels/test_fetch.py."""

from __future__ import annotations

import os
from pathlib import Path

from kinst.core.errors import KinstError


def cache_folder() -> Path:
    """Return kinst's cache folder: $XDG_CACHE_HOME/kinst or ~/.cache/kinst. Every file in it can be
    fetched or made again.

    If $XDG_CACHE_HOME is relative, it is ignored, as the XDG base directory specification demands.
    Raises KinstError if $HOME is not set and the system knows no home folder of this user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "kinst"
    try:
        return Path.home() / ".cache/kinst"
    except RuntimeError:
        raise KinstError(
            f"user {os.getuid()} has no home folder", "HOME or XDG_CACHE_HOME names one"
        ) from None
