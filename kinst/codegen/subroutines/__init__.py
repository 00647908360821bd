"""Code of D's subroutines, one module for each theme.

A function here that has the name of a subroutine (dlang/vocabulary/subroutines.py has the
prototypes) is that subroutine: NAME(firing, args) -> its value, args being the values of the
arguments in order.  A string that it returns may be NULL.

Where a subroutine ends in one of DTrace's faults, so does the clause: a string that is NULL is
an invalid address, text that does not fit is want of scratch space, a bad base is an illegal
operation (uts/common/dtrace/dtrace.c, dtrace_dif_subr()).

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType

from kinst.codegen.subroutines.arguments import Subroutine
from kinst.dlang.vocabulary.subroutines import PROTOTYPES


def _own(module: ModuleType) -> Mapping[str, Subroutine]:
    """The subroutines that a module defines itself, by name."""
    found = {name: vars(module)[name] for name in PROTOTYPES.keys() & vars(module).keys()}
    return {name: f for name, f in found.items() if f.__module__ == module.__name__}


@cache
def load_all() -> Mapping[str, Subroutine]:
    """Every subroutine by its name in D."""
    found: dict[str, Subroutine] = {}
    for info in pkgutil.iter_modules(__path__):
        found.update(_own(importlib.import_module(f"{__name__}.{info.name}")))
    return found
