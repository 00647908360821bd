"""Translation of a request's programs that are written for another tracer.

Tested by tests/session/test_translate.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kinst.core.errors import DError, ProgramInD
from kinst.dlang.vocabulary.translation import translate
from kinst.session.request import Request


def translation_of(request: Request, compile_: Callable[[Request], object]) -> ProgramInD | None:
    """Return the translation into D of a request's programs that do not compile; None if they have
    no word of another tracer that kinst can translate.

    Args:
        compile_: compiles a request's programs. Raises DError if they are wrong.
    """
    programs = tuple(replace(one, text=translate(one.text)) for one in request.programs)
    if programs == request.programs:
        return None
    texts = tuple((one.text, new.text) for one, new in zip(request.programs, programs, strict=True))
    try:
        compile_(replace(request, programs=programs))
    except DError as error:
        return ProgramInD(texts, str(error))
    return ProgramInD(texts)
