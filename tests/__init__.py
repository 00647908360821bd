"""Tests of kinst; CONTRIBUTING.md describes the folders."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the checkout
