"""Tracebacks of tests without windtunnel's own frames: they end at the program's or a library's line, as on a GPU."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType

OURS = str(Path(__file__).parent)
SHOWN = tuple(f"{OURS}/{name}" for name in ("train", "libraries", "experiments", "programs"))
"""What a program calls by itself."""


def shorten(error: BaseException) -> None:
    """Leave our frames out of an error's traceback, and of those of the errors that led to it."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if one.__context__ is not None and not _outside(one.__context__.__traceback__):
            one.__suppress_context__ = True  # an error within, of which nobody was to hear
        one.__traceback__ = _without(one.__traceback__)
        todo += [one.__cause__, one.__context__]


def _chain(first: TracebackType | None) -> list[TracebackType]:
    found = []
    while first is not None:
        found.append(first)
        first = first.tb_next
    return found


def _ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(OURS) and not file.startswith(SHOWN)


def _outside(first: TracebackType | None) -> list[TracebackType]:
    """The frames that are neither ours nor called by ours alone: below the last one of the program there are none."""
    kept: list[TracebackType] = []
    waiting: list[TracebackType] = []  # of libraries that we have called, unless they call the program again
    for one in _chain(first):
        if _ours(one.tb_frame):
            waiting = waiting or [one]
        elif waiting and str(one.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "torch":
            waiting.append(one)
        else:
            kept += [past for past in waiting if not _ours(past.tb_frame)]
            waiting = []
            kept.append(one)
    return kept


def _without(first: TracebackType | None) -> TracebackType | None:
    """The same traceback with the frames outside alone; as it was where there are none."""
    kept = _outside(first)
    if not kept:
        return first
    for one, following in pairwise([*kept, None]):
        if one is not None:
            one.tb_next = following
    return kept[0]
