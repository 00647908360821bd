"""Instructions for tests/isa/test_isa_contract.py."""

from __future__ import annotations

NOP = bytes.fromhex("13000000")
CALL = bytes.fromhex("ef000004")  # 0x40 bytes after its start
# For GNU as: the first register gets the value of the second.
MOVE = ".option norvc\nmv {0}, {1}"
