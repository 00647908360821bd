"""Instructions for tests/isa/test_isa_contract.py."""

from __future__ import annotations

NOP = bytes.fromhex("0f1f440000")
CALL = bytes.fromhex("e83b000000")  # 0x40 bytes after its start
# For GNU as: the first register gets the value of the second.
MOVE = "mov %{1}, %{0}"
