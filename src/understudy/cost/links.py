"""Transfers: what a copy between host and devices, between two devices, or a collective of several takes."""

from __future__ import annotations

import re
from math import ceil, log2
from typing import Any

from understudy.cost.operators import read
from understudy.gpus import Gpu

_RELATIVE = {"kepler": "volta", "pascal": "volta", "turing": "volta", "ampere-86": "ampere", "ada": "ampere"}
_RELATIVES = {**_RELATIVE, "blackwell-120": "blackwell"}

COLLECTIVES = {
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


def collective_kind(name: str) -> str:
    """The kind of a collective by its framework name, such as "c10d::allreduce_" or "nccl:all_reduce"."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    for key in sorted(COLLECTIVES, key=len, reverse=True):
        if key in letters:
            return COLLECTIVES[key]
    return "all_reduce"


class Links:
    """The links of a node whose GPUs are all of one model. Times in whole nanoseconds."""

    def __init__(self, gpu: Gpu) -> None:
        data = read("links")
        pcie, device, nvlink = data["pcie"], data["device"], data["nvlink"]
        generation = _RELATIVES.get(gpu.generation, gpu.generation)
        nominal = gpu.pcie_bandwidth_bytes_per_s
        self.pinned_rate: float = nominal * pcie["efficiency"][str(gpu.pcie_generation)]
        self.pageable_rate: float = 1.0 / (1.0 / self.pinned_rate + 1.0 / pcie["host_copy_bytes_per_s"])
        self.pcie_latency_ns: float = 1000.0 * pcie["latency_us"]
        self.pageable_latency_ns: float = 1000.0 * pcie["pageable_latency_us"]
        self.device_rate: float = gpu.memory_bandwidth_bytes_per_s * device["efficiency"] / 2.0
        self.device_latency_ns: float = 1000.0 * device["latency_us"]
        self.has_nvlink = gpu.nvlink_bandwidth_bytes_per_s > 0
        self._collective: dict[str, Any] = data["collective"]
        if self.has_nvlink:
            self.pair_share: float = nvlink["pair_share"][generation]
            self.peer_rate: float = (
                gpu.nvlink_bandwidth_bytes_per_s * self.pair_share * nvlink["efficiency"][generation]
            )
            self.peer_latency_ns: float = 1000.0 * nvlink["latency_us"]
            efficiency = self._collective["nvlink_efficiency"][generation]
            self.bus_rate: float = gpu.nvlink_bandwidth_bytes_per_s * efficiency
        else:
            self.pair_share = 1.0
            staged = pcie["staged_efficiency"][str(gpu.pcie_generation)]
            self.peer_rate = nominal * (pcie["peer_efficiency"] if gpu.peer_access else staged)
            self.peer_latency_ns = 1000.0 * pcie["peer_latency_us" if gpu.peer_access else "staged_latency_us"]
            self.bus_rate = nominal * self._collective["pcie_efficiency"]

    def use(self, measured: dict[str, float]) -> None:
        """Take measured rates and latencies of copies (bytes a second, microseconds) in place of the modelled ones."""
        self.pinned_rate = measured.get("pinned_bytes_per_s", self.pinned_rate)
        self.pageable_rate = measured.get("pageable_bytes_per_s", self.pageable_rate)
        self.device_rate = measured.get("device_bytes_per_s", self.device_rate)
        self.pcie_latency_ns = 1000.0 * measured.get("pinned_latency_us", self.pcie_latency_ns / 1000.0)
        self.pageable_latency_ns = 1000.0 * measured.get("pageable_latency_us", self.pageable_latency_ns / 1000.0)
        self.device_latency_ns = 1000.0 * measured.get("device_latency_us", self.device_latency_ns / 1000.0)

    def copy_ns(self, size_bytes: int, source: int, destination: int, pinned: bool) -> int:
        """A copy of `size_bytes` between two devices' indices, where -1 is the host."""
        if source >= 0 and source == destination:
            rate, latency = self.device_rate, self.device_latency_ns
        elif source >= 0 and destination >= 0:
            rate, latency = self.peer_rate, self.peer_latency_ns
        elif pinned:
            rate, latency = self.pinned_rate, self.pcie_latency_ns
        else:
            rate, latency = self.pageable_rate, self.pageable_latency_ns
        return round(latency + 1e9 * size_bytes / rate)

    def collective_ns(self, name: str, size_bytes: int, ranks: int) -> int:
        """A collective of `ranks` GPUs of one node, where each brings `size_bytes`: the quicker of ring and tree."""
        kind = collective_kind(name)
        base: float = 1000.0 * self._collective["base_us"]
        if ranks <= 1:
            return round(base + (0 if kind == "barrier" else 1e9 * size_bytes / self.device_rate))
        step: float = 1000.0 * self._collective["step_us"]["nvlink" if self.has_nvlink else "pcie"]
        rate = min(self.bus_rate, self.bus_rate * self.pair_share * (ranks - 1)) if self.has_nvlink else self.bus_rate
        if kind == "send":
            return round(base + 1e9 * size_bytes / self.peer_rate)
        moved, hops = _traffic(kind, ranks)
        ring = hops * step + 1e9 * size_bytes * moved / rate
        levels = 2 * ceil(log2(ranks)) if kind == "all_reduce" else ceil(log2(ranks))
        tree = levels * step + 1e9 * size_bytes * max(moved, 1.0) * 1.1 / rate
        return round(base + (min(ring, tree) if kind in ("all_reduce", "broadcast", "reduce") else ring))


def _traffic(kind: str, ranks: int) -> tuple[float, int]:
    """(bytes over the busiest link per byte of one rank's input, hops of the ring)."""
    n = ranks
    if kind == "all_reduce":
        return 2.0 * (n - 1) / n, 2 * (n - 1)
    if kind == "all_gather":
        return float(n - 1), n - 1
    if kind in ("reduce_scatter", "all_to_all"):
        return (n - 1) / n, n - 1
    if kind in ("gather", "scatter"):
        return float(n - 1) if kind == "gather" else (n - 1) / n, n - 1
    if kind == "barrier":
        return 0.0, 2 * (n - 1)
    return 1.0, n - 1
