"""Tests of kinst; CONTRIBUTING.md says which folder has what."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # of the checkout
