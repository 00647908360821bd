"""What the checker holds of translators and of their uses (translators.py)."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import DType, StructType
from kinst.dlang import typed
from kinst.dlang.syntax import tree


@dataclass(frozen=True, slots=True)
class Translator:
    """source: the type of its parameter.  made: the structure whose members it defines.
    lazily: its expressions are checked only where they are used."""

    node: tree.Translator
    source: DType
    made: StructType
    lazily: bool = False


@dataclass(frozen=True, slots=True)
class Translation(typed.Expr):
    """xlate < type > (source).  Only its members are values: none is left in a program that the
    checker has accepted.

    source: of the type of the translator's parameter."""

    translator: Translator
    source: typed.Expr
