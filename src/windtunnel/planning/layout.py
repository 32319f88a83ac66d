"""Where a candidate runs, as one text: the GPUs of a machine, "8xA100", or of a cluster's machines, "64x8xA100"."""

from __future__ import annotations

import re

from windtunnel import gpus
from windtunnel.gpus import Gpu
from windtunnel.ranks import fold

CLUSTER = re.compile(r"\d+x\d+x")


def is_cluster(spec: str) -> bool:
    """Whether the ranks of several machines, or of one, are played."""
    return CLUSTER.match(spec) is not None


def nodes(spec: str) -> int:
    """How many machines it has.

    Raises:
        UsageError: it is no cluster, though it looks like one.
    """
    return fold.parse(spec)[0] if is_cluster(spec) else 1


def machine(spec: str) -> str:
    """The GPUs of one of its machines, as `gpus.parse` reads them.

    Raises:
        UsageError: it is no cluster, though it looks like one.
    """
    if not is_cluster(spec):
        return spec
    _, per_node, model = fold.parse(spec)
    return f"{per_node}x{model}"


def models(spec: str) -> tuple[Gpu, ...]:
    """The GPUs of one of its machines.

    Raises:
        UsageError: it names no GPUs.
    """
    return gpus.parse(machine(spec))
