"""The exception that ended the program, noted for the checks: CPython leaves it in `sys`."""

from __future__ import annotations

import sys

from windtunnel.seam.sites import Sites
from windtunnel.trace.operation import UNKNOWN_SITE, Note, Site
from windtunnel.trace.trace import Trace

MOST = 2_000
"""Characters of an error's text that are kept."""
MOST_CAUSES = 4
ASKED = "CUDA error"
"""In what CUDA says to a program that has not come to use a GPU."""


def remark(trace: Trace, is_idle: bool) -> None:
    """Note the exception that ends this process, at the innermost line of the program; nothing if none does.

    `is_idle` says that the process used no GPU: then only an error of CUDA's is of interest.
    """
    error = getattr(sys, "last_value", None)
    if error is None or (is_idle and ASKED not in str(error)):
        return
    sites = Sites(trace.sites)
    place, at = UNKNOWN_SITE, error.__traceback__
    while at is not None:
        if sites.is_program(at.tb_frame):
            number = sites.of(at.tb_frame)
            place = Site(trace.sites[number].file, at.tb_lineno, trace.sites[number].function)
        at = at.tb_next
    trace.remark(Note("uncaught-error", place, (("text", _text(error)),)))


def _text(error: BaseException) -> str:
    """What it says, and in further lines what those say that it follows from."""
    texts: list[str] = []
    following: BaseException | None = error
    while following is not None and len(texts) < MOST_CAUSES:
        texts.append(f"{type(following).__name__}: {following}"[:MOST])
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return "\n".join(texts)
