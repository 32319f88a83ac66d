"""A rehearsal whose ranks all do the same: few of them are played, where that gives exactly what all of them give.

That is so for data parallelism alone: every collective is one of all ranks, no rank sends a message to another, and the
ranks that were played for comparison did the same at the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path

from windtunnel import cluster, launch
from windtunnel.ranks.alike import group_sizes
from windtunnel.ranks.fold import Fold
from windtunnel.trace.trace import Trace

LEAST_RANKS = 3
"""Of fewer ranks each is played anyway."""


def play(
    program: launch.Program, ranks: int, folder: Path, cwd: Path, attempt: Callable[[Fold], launch.Ended]
) -> tuple[launch.Ended, launch.Result] | None:
    """Play a program's ranks on one machine: what every rank left; None where all of them must run."""
    fold = cluster.begin(Fold(ranks, ranks), cluster.uses_of(program, Fold(ranks, ranks), cwd))
    if fold.is_whole or ranks < LEAST_RANKS:
        return None
    ended = attempt(fold)
    if ended.code or cluster.changes_in(folder):
        return None
    result = launch.collect(folder)
    traces = cluster.by_rank(result)
    if set(traces) != set(fold.played) or len(result.traces) != len(traces) or result.lost:
        return None
    if cluster.unlike(fold, result) or cluster.unequal_times(fold, result) or not _is_data_parallel(traces, ranks):
        return None
    result.traces = everybody(fold, traces)
    return ended, result


def _is_data_parallel(traces: Mapping[int, Trace], ranks: int) -> bool:
    """Whether all collectives are of all ranks."""
    return all(group_sizes(trace) <= {1, ranks} for trace in traces.values())


def everybody(fold: Fold, traces: Mapping[int, Trace]) -> list[Trace]:
    """A trace of each rank: those that were not played did what the first of their class did, with their own batches
    if those that were played have batches of their own."""
    shared = len({str(trace.facts.get("batches", rank)) for rank, trace in traces.items()}) < len(traces)
    found = []
    for rank in range(fold.world):
        trace = traces.get(rank)
        if trace is None:
            trace = copy(traces[fold.first_of[rank]])
            devices = [{**device, "physical": rank} for device in trace.facts.get("devices", ())]
            facts = {**trace.facts, "rank": rank, "devices": devices}
            trace.facts = facts if shared else {**facts, "batches": f"of rank {rank}"}
        found.append(trace)
    return found
