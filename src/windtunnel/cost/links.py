"""Transfers: what a copy between host and devices, between two devices, or a collective of several takes."""

from __future__ import annotations

from functools import cached_property

from windtunnel.cost.collectives import PEER_TO_PEER, Band, Collectives, collective_kind
from windtunnel.cost.files import read
from windtunnel.cost.network import Between
from windtunnel.gpus import Gpu
from windtunnel.networks import Network, Spread, default_for

SWITCH_RINGS, LINK_RINGS = 12, 6
_RELATIVES = {
    "kepler": "volta",
    "pascal": "volta",
    "turing": "volta",
    "ampere-86": "ampere",
    "ada": "ampere",
    "blackwell-120": "blackwell",
}


class Links:
    """The links of nodes whose GPUs are all of one model, and the network between them. Times in whole nanoseconds."""

    def __init__(self, gpu: Gpu, network: Network | None = None) -> None:
        self._gpu, self._network = gpu, network
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
        if self.has_nvlink:
            shares = nvlink["pair_share"]
            self.pair_share: float = shares.get(gpu.key, shares[generation])
            self.peer_rate: float = (
                gpu.nvlink_bandwidth_bytes_per_s * self.pair_share * nvlink["efficiency"][generation]
            )
            self.peer_latency_ns: float = 1000.0 * nvlink["latency_us"]
        else:
            self.pair_share = 1.0
            staged = pcie["staged_efficiency"][str(gpu.pcie_generation)]
            self.peer_rate = nominal * (pcie["peer_efficiency"] if gpu.peer_access else staged)
            self.peer_latency_ns = 1000.0 * pcie["peer_latency_us" if gpu.peer_access else "staged_latency_us"]
        self.collectives = Collectives(gpu, self.pair_share)

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

    def staging_ns(self, size_bytes: int) -> int:
        """What the host takes to copy `size_bytes` of pageable memory to where a device can read it."""
        return max(0, self.copy_ns(size_bytes, -1, 0, False) - self.copy_ns(size_bytes, -1, 0, True))

    @cached_property
    def between(self) -> Between:
        """Collectives of several nodes."""
        return Between(self._network or default_for(self._gpu.key), self.collectives)

    def collective_ns(self, name: str, size_bytes: int, ranks: int, spread: Spread | None = None) -> int:
        """A collective of `ranks` GPUs, of one node unless spread over more, where each brings `size_bytes`."""
        if ranks <= 1:
            kept = 0 if collective_kind(name) == "barrier" else 1e9 * size_bytes / self.device_rate
            return round(1000.0 * self.collectives.launch_us + kept)
        if spread is not None and spread.nodes > 1:
            return round(1000.0 * self.between.time_us(name, size_bytes, spread))
        return round(1000.0 * self.collectives.time_us(name, size_bytes, ranks))

    def collective_share(self, name: str, spread: Spread) -> int:
        """How many of a thousand multiprocessors a collective's kernel takes: a block a channel, which fills one.

        NCCL makes two channels of each ring that it finds (NVIDIA/nccl, src/graph/connect.cc, "Duplication"): between
        nodes a ring a NIC, at most one a GPU; within a node 12 through NVSwitch (its log: "24 coll channels"), as many
        as links without one. Messages are left out: their channels are few, and not published.
        """
        kind = collective_kind(name)
        if spread.ranks <= 1 or kind in PEER_TO_PEER or kind == "barrier":
            return 0
        if spread.nodes > 1:
            network = self.between.network
            rings = min(network.nics_per_node, network.gpus_per_node)
        else:
            rings = 1 if not self.has_nvlink else SWITCH_RINGS if self.pair_share == 1.0 else LINK_RINGS
        return 1000 * 2 * rings // self._gpu.sm_count

    def collective_band(self, name: str, size_bytes: int, ranks: int, spread: Spread | None = None) -> Band:
        """The 80 % interval of such a collective's true time, as factors of the predicted one."""
        if spread is not None and spread.nodes > 1:
            return self.between.band(name, size_bytes, spread)
        return self.collectives.band(name, size_bytes, ranks)
