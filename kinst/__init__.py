"""kinst: trace any instruction and any inline function of a running kernel with D.

    import kinst
    with kinst.boot() as machine:
        result = machine.run("kinst::vfs_read:0 { @[execname] = count(); }", "ls")
        print(result.aggregations)

docs/api.md describes the library.  Each name of this module is imported when it is first used. So
commands that do not use the library start quickly.

Tested by tests/test_api_docs.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kinst.errors import DError, KinstError, TargetError
from kinst.version import __version__

if TYPE_CHECKING:
    from kinst.api import (
        Machine,
        Program,
        Trace,
        attach,
        boot,
        expand_in_file,
        host,
        kernel_files,
        live,
        process,
    )  # fmt: skip
    from kinst.inlines import InlineFunction, inline_functions
    from kinst.results import Records, Result, Table

__all__ = [
    "DError", "InlineFunction", "KinstError", "Machine", "Program", "Records", "Result", "Table",
    "TargetError", "Trace", "__version__", "attach", "boot", "expand_in_file", "host",
    "inline_functions", "kernel_files", "live", "process",
]  # fmt: skip

_PLACES = {
    **dict.fromkeys(("InlineFunction", "inline_functions"), "kinst.inlines"),
    **dict.fromkeys(("Records", "Result", "Table"), "kinst.results"),
}


def __getattr__(name: str) -> Any:
    """Import a name of the library when it is first used, and return its value (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'kinst' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "kinst.api")), name)
