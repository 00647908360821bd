"""The errors that kinst raises: every one that a user can cause is a KinstError.

DError is of a D program, and knows its place there; TargetError of the traced machine,
and GoneError of one that has ended by itself.
"""

from kinst.core.errors import DError, GoneError, KinstError, ScratchUsedUpError, TargetError

__all__ = ["DError", "GoneError", "KinstError", "ScratchUsedUpError", "TargetError"]
