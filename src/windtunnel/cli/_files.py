"""Traces in files, whoever wrote them: windtunnel, torch.profiler, torch.cuda.memory or NCCL's Flight Recorder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel import foreign
from windtunnel.errors import FileFormatError
from windtunnel.measure import kineto, snapshot
from windtunnel.ranks import flight_recorder
from windtunnel.trace.trace import Trace

PICKLE = b"\x80"


def load_dumps(paths: Sequence[str | Path]) -> Trace | None:
    """What Flight Recorder's dumps of a job's ranks hold, as a trace of what is wrong; None where `paths` are no dumps.

    Raises:
        FileFormatError: some are dumps and others not, or one is damaged.
        OSError: a file cannot be read.
    """
    kinds = [foreign.read_bytes(path, 4096) for path in paths]
    dumps = [head[:1] == PICKLE and flight_recorder.is_dump(head) for head in kinds]
    if not any(dumps):
        return None
    if not all(dumps):
        raise FileFormatError(f"{paths[dumps.index(False)]} is not a dump of Flight Recorder, but the others are")
    ranks = flight_recorder.load(paths)
    trace = Trace()
    trace.facts.update(source="measured", world_size=len(ranks), processes=len(ranks), gpus=[], devices=[])
    for note in flight_recorder.wrong(ranks):
        trace.remark(note)
    return trace


def load(path: str | Path) -> Trace:
    """The trace in a file: one of `windtunnel run --trace`, a profile (Kineto), or a memory snapshot.

    Raises:
        FileFormatError: the file is none of them.
        OSError: the file cannot be read.
    """
    head = foreign.read_bytes(path, 4096)
    if kineto.is_kineto(head):
        try:
            return kineto.load(path)
        except FileFormatError as error:
            return _snapshot_of(path, error)
    if head[:1] == PICKLE:
        return snapshot.load(path)
    return Trace.load(Path(path))


def _snapshot_of(path: str | Path, error: FileFormatError) -> Trace:
    """The memory snapshot in a JSON file that is no profile; raises `error` where it is none either."""
    try:
        return snapshot.load(path)
    except FileFormatError:
        raise error from None
