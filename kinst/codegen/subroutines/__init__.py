"""Generators of D's subroutines, one module for each theme; load_all() finds every module of this
folder without a list.

For each subroutine there is one generator function, with the subroutine's prototype in a decorator.
The prototypes are from libdtrace (the table of globals in dt_open.c) and the Dynamic Tracing Guide,
"Actions and Subroutines":

    @subroutine("string basename(const char *)")
    def basename(firing: Firing, args: Args) -> Lowered:

The generator emits the code of one call and returns the call's result.  `args` are the values of
the arguments, in order.  A string result may be NULL.

A subroutine that fails ends the clause with one of DTrace's faults: invalid address for a string
that is NULL, out of scratch space for text that does not fit, illegal operation for a bad base
(uts/common/dtrace/dtrace.c, dtrace_dif_subr()).

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache

from kinst.codegen.subroutines.arguments import SubroutineCode
from kinst.core.members import member_names
from kinst.dlang.vocabulary.subroutines import Prototype


@cache
def load_all() -> Mapping[str, SubroutineCode]:
    """Return the generator of every subroutine, by the subroutine's name in D."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in member_names(__path__)]
    values = [value for module in modules for value in vars(module).values()]
    return {one.prototype.name: one for one in values if isinstance(one, SubroutineCode)}


@cache
def prototypes() -> Mapping[str, Prototype]:
    """Return the prototype of every subroutine, by the subroutine's name in D (for
    Environment.subroutines).
    """
    return {name: one.prototype for name, one in load_all().items()}
