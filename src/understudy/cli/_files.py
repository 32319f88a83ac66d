"""Traces in files, whoever wrote them: understudy, torch.profiler or torch.cuda.memory."""

from __future__ import annotations

from pathlib import Path

from understudy import foreign
from understudy.measure import kineto, snapshot
from understudy.trace.trace import Trace

PICKLE = b"\x80"


def load(path: str | Path) -> Trace:
    """The trace in a file: one of `understudy run --trace`, a profile (Kineto), or a memory snapshot.

    Raises:
        FileFormatError: the file is none of them.
        OSError: the file cannot be read.
    """
    head = foreign.read_bytes(path, 4096)
    if kineto.is_kineto(head):
        return kineto.load(path)
    if head[:1] == PICKLE:
        return snapshot.load(path)
    return Trace.load(Path(path))
