"""Traces in files, whoever wrote them: understudy, torch.profiler or torch.cuda.memory."""

from __future__ import annotations

import json
from pathlib import Path

from understudy.errors import FileFormatError
from understudy.measure import kineto, snapshot
from understudy.trace.trace import Trace

PICKLE = b"\x80"


def load(path: str | Path) -> Trace:
    """The trace in a file: one of `understudy run --trace`, a profile (Kineto), or a memory snapshot.

    Raises:
        FileFormatError: the file is none of them.
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(4096)
    if kineto.is_kineto(head):
        return kineto.load(path)
    if head[:1] == PICKLE:
        return snapshot.load(path)
    try:
        return Trace.load(Path(path))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}; write it again with `understudy run --trace`") from error
