"""Collectives of the GPUs of one node: the quickest of NCCL's algorithms and protocols, and how sure that is.

A ring passes chunks of `size / ranks` on, `hops` times, and handles a chunk of its own besides; what one costs depends
on NCCL's protocol: LL (8-byte flags, least latency), LL128 (128-byte lines, NVLink only), Simple (fences, all of the
bandwidth). So each candidate is a line over the size,

    time = base + hop * hops + chunk * (hops + own) / rate

the form of NCCL's own tuning model (NVIDIA/nccl, src/graph/tuning.cc, `ncclTopoTuneModel` and `ncclTopoGetAlgoTime`),
and the collective takes the least of them, so it grows with the size. A message has no chunk of its own.

From five ranks on, GPUs on an NVSwitch of Hopper and later let the switch add (NVLS): all-reduces have one more
candidate, whose traffic does not depend on the ranks. In one node NCCL's tree is a chain with as many hops as the ring
("2 * ((nRanks / nNodes - 1) * intraLat" there), so it is no candidate of its own here.

The constants are in `data/collectives.toml`, by kind of link, fitted and cross-validated by `make calibrate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from windtunnel.cost.files import read
from windtunnel.gpus import Gpu
from windtunnel.trace.plain import Json

KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "send",
}
_BY_LENGTH = sorted(KINDS, key=len, reverse=True)
PEER_TO_PEER = frozenset({"all_to_all", "gather", "scatter", "send"})
_ELEMENT_BYTES = 4

SMALL_BYTES, LARGE_BYTES = 128 << 10, 16 << 20


@cache
def collective_kind(name: str) -> str:
    """The kind of a collective by its framework name, such as "c10d::allreduce_" or "nccl:all_reduce"."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((KINDS[key] for key in _BY_LENGTH if key in letters), "all_reduce")


class Path(NamedTuple):
    """One algorithm with one protocol: microseconds, bytes a microsecond, and chunks of its own."""

    base_us: float
    hop_us: float
    rate: float
    own: float
    crowd: float = 0.0

    def time_us(self, ranks: Any, hops: Any, chunk_bytes: Any, width: float = 1.0) -> Any:
        """The time of `hops` chunks after one another, on `width` of the link; numbers or arrays alike.

        `crowd` says how ranks get in one another's way where all share one path: the rate falls with (2 / ranks) to it.
        """
        rate = self.rate * width * (2.0 / ranks) ** self.crowd
        return self.base_us + self.hop_us * hops + chunk_bytes * (hops + self.own) / rate


class Band(NamedTuple):
    """The 80 % interval of the true time as factors of the predicted one, and how far the nearest data is.

    `distance` is "own" (this GPU with this operation and number of ranks was measured), "generation" (its kind of link
    was) or "borrowed" (another kind of link was).
    """

    low: float
    high: float
    distance: str


def traffic(kind: str, size: Any, ranks: Any) -> tuple[Any, Any]:
    """(hops, bytes of the chunk that each passes on) where each rank brings `size` bytes."""
    if kind == "all_reduce":
        return 2 * (ranks - 1), size / ranks
    if kind in ("all_gather", "gather"):
        return ranks - 1, size
    if kind == "send":
        return 1, size
    return ranks - 1, size / ranks


def size_class(total_bytes: float) -> str:
    """Which of three classes of size bands are kept for: "small", "medium" or "large"."""
    return "small" if total_bytes < SMALL_BYTES else "medium" if total_bytes < LARGE_BYTES else "large"


class Collectives:
    """Collectives among GPUs of one model in one node.

    `pair_share` is the share of a GPU's links that lead to one other GPU: less than 1.0 for NVLink without a switch,
    where few ranks cannot use all of them.
    """

    def __init__(self, gpu: Gpu, pair_share: float = 1.0) -> None:
        self.link = link_name(gpu)
        row = _links()[self.link]
        nominal = (gpu.nvlink_bandwidth_bytes_per_s or gpu.pcie_bandwidth_bytes_per_s) / 1e6
        self._own: dict[str, list[int]] = row["measured"] if gpu.key in row["models"] else {}
        self._borrowed: bool = row.get("borrowed", False)
        self._pair_share = pair_share
        self.switch_ranks: int = row.get("switch_ranks", 0)
        paths = {
            family: tuple(
                Path(p["base_us"], p["hop_us"], p["share"] * nominal, p["own"], p.get("crowd", 0.0)) for p in ps
            )
            for family, ps in row["path"].items()
        }
        if gpu.key not in row["models"] and "assumed_crowd" in row:
            paths = {family: tuple(p._replace(crowd=row["assumed_crowd"]) for p in ps) for family, ps in paths.items()}
            self._borrowed = True
        self.paths: Mapping[str, tuple[Path, ...]] = paths
        self.launch_us = paths["ring"][0].base_us

    def time_us(self, name: str, size_bytes: int, ranks: int) -> float:
        """Microseconds of a collective in which each of two or more `ranks` brings `size_bytes`."""
        kind = collective_kind(name)
        if kind == "barrier":
            kind, size_bytes = "all_reduce", _ELEMENT_BYTES
        return min(self._candidates(kind, size_bytes, ranks))

    def _candidates(self, kind: str, size: int, ranks: int) -> Iterator[float]:
        hops, chunk = traffic(kind, size, ranks)
        width = min(1.0, self._pair_share * (1 if kind == "send" else ranks - 1))
        paths = self.paths["peer" if kind in PEER_TO_PEER else "ring"]
        if kind == "send":  # all of it goes to the other rank
            paths = tuple(path._replace(own=0.0) for path in paths)
        if kind in ("broadcast", "reduce"):
            # NCCL passes small slices on along the chain: each link carries everything once, whatever the ranks.
            yield from (
                p.base_us + p.hop_us * hops + p._replace(base_us=0, hop_us=0, own=0).time_us(ranks, 1, size, width)
                for p in paths
            )
            return
        yield from (path.time_us(ranks, hops, chunk, width) for path in paths)
        if kind == "all_reduce" and 0 < self.switch_ranks <= ranks:
            yield from (path.time_us(2, 1, size) for path in self.paths["switch"])

    def band(self, name: str, size_bytes: int, ranks: int) -> Band:
        """Within which factors of `time_us` four of five measured times lay, in cross-validation."""
        kind = collective_kind(name)
        if kind == "barrier":
            kind, size_bytes = "all_reduce", _ELEMENT_BYTES
        family = "peer" if kind in PEER_TO_PEER else "ring"
        total = size_bytes * ranks if kind in ("all_gather", "gather") else size_bytes
        rest = (family, size_class(total))
        if ranks in self._own.get(kind, ()):
            return bands()["own", self.link, *rest]
        general = None if self._borrowed else bands().get(("generation", self.link, *rest))
        return general or bands()["borrowed", "nvlink" if self.link.startswith("nvlink") else "pcie", *rest]


def link_name(gpu: Gpu) -> str:
    """Which entry of `data/collectives.toml` holds the constants of a GPU's links."""
    for name, row in _links().items():
        if gpu.key in row["models"]:
            return name
    if not gpu.nvlink_bandwidth_bytes_per_s:
        return "pcie" if gpu.peer_access else "pcie-staged"
    return next(name for name, row in _links().items() if gpu.generation in row.get("generations", ()))


@cache
def _links() -> Json:
    return {row["name"]: row for row in read("collectives")["link"]}


@cache
def bands() -> dict[tuple[str, str, str, str], Band]:
    """The bands by distance, link ("nvlink" or "pcie" for borrowed ones), family and class of size."""
    return {
        (row["distance"], row["link"], row["family"], row["size"]): Band(row["low"], row["high"], row["distance"])
        for row in read("collectives")["band"]
    }
