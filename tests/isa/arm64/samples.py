"""Instructions for tests/isa/test_isa_contract.py."""

from __future__ import annotations

NOP = bytes.fromhex("1f2003d5")
CALL = bytes.fromhex("10000094")  # 0x40 bytes after its start
# For GNU as: the first register gets the value of the second.
MOVE = "mov {0}, {1}"
