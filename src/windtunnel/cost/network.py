"""Collectives and messages between nodes: the quickest of NCCL's algorithms and protocols, and how sure that is.

Within a node the constants are those of `collectives`; between nodes a hop takes the network's latency, times a factor
by protocol, and the group has its share of the node's NICs. The algorithms (NVIDIA/nccl, src/graph/tuning.cc):

- *ring*: each chunk passes all ranks, and leaves a node once. As much passes the NICs as the links within the node.
- *tree* (all-reduces): chains in the nodes, two binary trees between them, each of half the data. Hops grow with the
  logarithm of the nodes. With more than two nodes each sends twice what it brings; with two, once.
- *NVLS tree* (all-reduces on NVSwitch of Hopper and later): the switch adds within a node, trees between them.
- *messages*: each rank sends through its own NICs, all-to-all to all others. (PXN hands a message to the GPU beside the
  right NIC, so that no NIC is worse than another.)

What nccl-tests measured on the network corrects all of it: by how much more or less that took at each size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from windtunnel.cost.collectives import PEER_TO_PEER, Band, Collectives, Path, collective_kind, size_class, traffic
from windtunnel.cost.files import read
from windtunnel.networks import Network, Spread, Table

_BARRIER_BYTES = 4
LEAST_ROWS = 10
"""Of a network with fewer measured times its bands are those of networks without any."""
LL, LL128, SIMPLE = "LL", "LL128", "Simple"


class Protocol(NamedTuple):
    """What a protocol costs beside its price within a node: microseconds, latencies a hop, and share of the rate.

    `hop` is of an all-reduce of `full_bytes` or more, whose chunks pass a hop one after another, as many of them as the
    protocol's buffer has steps. What is smaller has fewer chunks, and the smallest passes at one latency. A collective
    that passes the ring once does not wait for sums to come back: `once` is its `hop`.
    """

    base_us: float
    hop: float
    share: float
    once: float = 0.0
    full_bytes: float = 0.0

    def latencies(self, kind: str, size: float) -> float:
        """Latencies that a hop of a collective of this size takes."""
        if not self.full_bytes:
            return self.hop
        most = self.hop if kind == "all_reduce" else self.once
        return 1.0 + (most - 1.0) * min(1.0, size / self.full_bytes)


class NetworkConstants(NamedTuple):
    """What all networks have in common: protocols by name, and what trees and messages reach of the NICs' rate.

    `peer_hop` is how many latencies each rank that is sent to costs beside the first, `peer_low_share` what messages
    by LL reach.
    """

    protocols: dict[str, Protocol]
    tree_share: float
    peer_share: float
    peer_hop: float
    peer_low_share: float


class Reach(NamedTuple):
    """What a network takes: microseconds a hop, share of the NICs' rate, and whether rows of it were fitted ("own"), of
    one with its kind of transport ("other"), or none of these ("unlike")."""

    latency_us: float
    share: float
    distance: str


class Between:
    """Collectives among GPUs of one model on several nodes."""

    def __init__(
        self,
        network: Network,
        inside: Collectives,
        constants: NetworkConstants | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.network = network
        self.inside = inside
        self.constants = constants or fitted()
        self.reach = reach or reach_of(network)
        self._corrections = [self._correction(table) for table in network.measured]

    def time_us(self, name: str, size_bytes: int, spread: Spread) -> float:
        """Microseconds of a collective in which each rank brings `size_bytes`."""
        kind, size = _kind(name, size_bytes)
        found = self._modelled_us(kind, size, spread)
        return found * self._corrected(kind, _total(kind, size, spread.ranks)) if self._corrections else found

    def band(self, name: str, size_bytes: int, spread: Spread) -> Band:
        """Within which factors of `time_us` four of five measured times lay, in cross-validation."""
        kind, size = _kind(name, size_bytes)
        if self._domains(spread) == 1:
            return self.inside.band(name, size_bytes, spread.ranks)
        family = "peer" if kind in PEER_TO_PEER else "ring"
        distance = "own" if self._corrections else self.reach.distance
        return bands()[distance, family, size_class(_total(kind, size, spread.ranks))]

    # ------------------------------------------------------------------ the model

    def _domains(self, spread: Spread) -> int:
        return spread.domains(self.network.nodes_per_nvlink)

    def _modelled_us(self, kind: str, size: int, spread: Spread) -> float:
        domains = self._domains(spread)
        if domains == 1:
            return self.inside.time_us(kind, size, spread.ranks)
        found = min(self._candidates(kind, size, spread.ranks, domains, self._rate(spread, domains)))
        within = -(-spread.ranks // domains)
        return max(found, self.inside.time_us(kind, size, within)) if within > 1 and kind != "send" else found

    def _rate(self, spread: Spread, domains: int) -> float:
        """Bytes a microsecond that a group has of the NICs of a domain, one way."""
        net, per_domain = self.network, -(-spread.ranks // domains)
        nics, gpus = net.nics_per_node * net.nodes_per_nvlink, net.gpus_per_node * net.nodes_per_nvlink
        near = min(nics, per_domain * max(1.0, nics / gpus))
        return min(near, nics / spread.sharing) * net.nic_bandwidth_bytes_per_s / 1e6 / net.oversubscription

    def _candidates(self, kind: str, size: int, ranks: int, nodes: int, rate: float) -> Iterator[float]:
        if kind in PEER_TO_PEER:
            yield from self._peer_us(kind, size, ranks, nodes, rate)
            return
        shared = rate * self.reach.share
        latency = self.reach.latency_us
        per_node = -(-ranks // nodes)
        hops, chunk = traffic(kind, size, ranks)
        between = (2 if kind == "all_reduce" else 1) * (nodes - 1)
        levels = 2 * math.ceil(math.log2(nodes))
        chained = kind in ("broadcast", "reduce")
        algorithms = self._algorithms(kind, per_node)
        for path, protocol in self._protocols():
            begin = path.base_us + protocol.base_us
            wire = shared * protocol.share
            through = min(path.rate, wire) if per_node > 1 else wire
            hop_us = latency * protocol.latencies(kind, size)
            steps = path.hop_us * (hops - between) + hop_us * between
            if "Ring" in algorithms:
                yield begin + steps + (size if chained else chunk * (hops + path.own)) / through
            if "Tree" in algorithms:
                through = wire * self.constants.tree_share / (1 if nodes == 2 else 2)
                if per_node > 1:
                    through = min(path.rate / 2, through)
                yield begin + 2 * path.hop_us * (per_node - 1) + hop_us * levels + size / through
        if "NVLSTree" in algorithms:
            hop = self.constants.protocols[SIMPLE].latencies(kind, size)
            through = shared * self.constants.tree_share / (1 if nodes == 2 else 2)
            for path in self.inside.paths["switch"]:
                yield path.base_us + latency * hop * levels + size / min(path.rate, through)

    def _algorithms(self, kind: str, per_node: int) -> list[str]:
        """Those that NCCL has for a collective; of an all-reduce those that the settings leave, if they leave any."""
        if kind != "all_reduce":
            return ["Ring"]
        switched = 0 < self.inside.switch_ranks <= per_node
        return _left(["Ring", "Tree", *(["NVLSTree"] if switched else [])], self.network.algorithms)

    def _protocols(self) -> Iterator[tuple[Path, Protocol]]:
        """The candidates within a node, each with the protocol's part between nodes."""
        paths = self.inside.paths["ring"]
        of = dict(zip((LL, LL128, SIMPLE) if len(paths) > 2 else (LL, SIMPLE), paths, strict=True))
        for name in _left(list(of), self.network.protocols):
            yield of[name], self.constants.protocols[name]

    def _peer_us(self, kind: str, size: int, ranks: int, nodes: int, rate: float) -> Iterator[float]:
        """Messages: what a rank sends and gets passes its own NICs, and its links for what stays in the node.

        Small ones go by LL, at a latency, others by Simple, whose sender and receiver tell each other what is free.
        """
        per_node = -(-ranks // nodes)
        own = rate / per_node * self.reach.share * self.constants.peer_share
        away = 1 if kind == "send" else ranks - per_node
        more = self.reach.latency_us * self.constants.peer_hop * (away - 1)
        _, chunk = traffic(kind, size, ranks)
        inside = 0.0
        if kind != "send" and per_node > 1:
            inside = self.inside.time_us(kind, round(chunk * per_node), per_node)
        of = dict(zip((LL, SIMPLE), self.inside.paths["peer"], strict=True))
        for name in _left(list(of), self.network.protocols):
            path, protocol = of[name], self.constants.protocols[name]
            begin = path.base_us + protocol.base_us + self.reach.latency_us * protocol.latencies(kind, chunk)
            share = self.constants.peer_low_share if name == LL else 1.0
            yield max(begin + more + away * chunk / (own * share), inside)

    # ------------------------------------------------------------------ what was measured

    def _correction(self, table: Table) -> tuple[str, list[tuple[float, float]]]:
        """By how much more than modelled a table's collective took: logarithms of the factor by those of the size."""
        spread = Spread(table.ranks, table.nodes)
        points = []
        for size, time_us in zip(table.size_bytes, table.time_us, strict=True):
            brought = max(1, size // table.ranks) if table.collective in ("all_gather", "gather") else size
            points.append((math.log(size), math.log(time_us / self._modelled_us(table.collective, brought, spread))))
        return table.collective, points

    def _corrected(self, kind: str, total: float) -> float:
        own = [points for name, points in self._corrections if name == kind]
        points = own[0] if own else self._corrections[0][1]
        at = math.log(max(1.0, total))
        if at <= points[0][0] or len(points) == 1:
            return math.exp(points[0][1])
        for (left, low), (right, high) in pairwise(points):
            if at <= right:
                return math.exp(low + (high - low) * (at - left) / (right - left))
        return math.exp(points[-1][1])


def _left(some: list[str], allowed: Sequence[str]) -> list[str]:
    """Those of some algorithms or protocols that are allowed; all where none is."""
    return [name for name in some if name in allowed] or some


def _kind(name: str, size_bytes: int) -> tuple[str, int]:
    kind = collective_kind(name)
    return ("all_reduce", _BARRIER_BYTES) if kind == "barrier" else (kind, size_bytes)


def _total(kind: str, size: float, ranks: int) -> float:
    """The size as nccl-tests counts it."""
    return size * ranks if kind in ("all_gather", "gather") else size


def reach_of(network: Network) -> Reach:
    """The latency and share of a network: its own facts, those fitted on it, or its kind of transport's."""
    rows = read("network")
    own = next((row for row in rows["network"] if row["key"] == network.key), None)
    known = own or next((row for row in rows["transport"] if row["name"] == network.transport), None)
    if known is None:
        known = next(row for row in rows["transport"] if row["name"] == "infiniband")
    distance = "own" if own is not None and own["rows"] >= LEAST_ROWS else "other" if known["rows"] else "unlike"
    return Reach(network.latency_us or known["latency_us"], network.share or known["share"], distance)


@cache
def fitted() -> NetworkConstants:
    """The constants that all networks have in common."""
    rows = read("network")
    protocols = {
        row["name"]: Protocol(**{key: value for key, value in row.items() if key != "name"}) for row in rows["protocol"]
    }
    common = rows["common"][0]
    return NetworkConstants(
        protocols, common["tree_share"], common["peer_share"], common["peer_hop"], common["peer_low_share"]
    )


@cache
def bands() -> dict[tuple[str, str, str], Band]:
    """The bands by distance, family and class of size."""
    return {
        (row["distance"], row["family"], row["size"]): Band(row["low"], row["high"], row["distance"])
        for row in read("network")["band"]
    }
