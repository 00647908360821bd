"""The errors that kinst raises: every one that a user can cause is a KinstError.

DError is of a D program, and knows its place there; TargetError of the traced machine.
"""

from kinst.core.errors import DError, KinstError, TargetError

__all__ = ["DError", "KinstError", "TargetError"]
