"""Errors that kinst raises.  Every error that a user can cause is a KinstError.

DError is an error in a D program, and has its place there.  TargetError is an error of the traced
machine, GoneError of a machine that has ended by itself.
"""

from kinst.core.errors import DError, GoneError, KinstError, ScratchUsedUpError, TargetError

__all__ = ["DError", "GoneError", "KinstError", "ScratchUsedUpError", "TargetError"]
