"""Errors that the library raises. Every error that a user can cause is a KinstError.

DError is an error in a D program, with its position there. TargetError is an error of the traced
machine; GoneError says that the machine has ended by itself."""

from kinst.core.errors import (
    DError,
    GoneError,
    KinstError,
    ProgramInD,
    ScratchUsedUpError,
    TargetError,
)

__all__ = ["DError", "GoneError", "KinstError", "ProgramInD", "ScratchUsedUpError", "TargetError"]
