"""Fit what collectives take between nodes on published nccl-tests rows, and cross-validate, one network left out.

The rows are those of `tools/corpus/nccl_nodes.csv`, each with its source. What all networks have in common (the
protocols, what trees and messages reach) and of each network the latency of a hop and the share of its NICs' rate are
found by a pattern search for the least mean of |log(predicted / measured)|, cut at 0.7; rows from 16 MiB on count four
times. A network without rows gets the median of those with its kind of transport. Rows that were published because
something was wrong ("problem") are not fitted and are not in the bands: the tables show them by themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np

from tools import fitting
from tools.corpus import tables
from tools.docs import figures
from tools.fitting import Array, Mask, search, verbatim
from windtunnel import gpus, networks
from windtunnel.cost.collectives import Collectives, size_class
from windtunnel.cost.network import LL, LL128, SIMPLE, Between, NetworkConstants, Protocol, Reach
from windtunnel.networks import Spread

HEAD = (
    "Collectives between nodes: written by tools/calibration/calibrate_network.py; do not edit by hand.",
    "See cost/network.py. band: measured over predicted time; four of five rows lie in it in cross-validation.",
)
CUTS = (3.0, 0.7)
"""Of the logarithmic errors, first so that the search finds the way from far away, then so that outliers count less."""
HEAVY_BYTES, HEAVY = 16 << 20, 4.0
FOLDS = 5
LEAST_ROWS, LEAST_NETWORKS, HELD = 10, 3, 0.8
PROBLEM = "problem"
ASSUMED = (
    ("roce", "infiniband", "assumed: as InfiniBand"),
    ("sockets", "tcpxo", "assumed: as GPUDirect-TCPXO, the nearest that was measured"),
    ("tcpxo", "efa", "assumed: as EFA, a plugin of a cloud whose messages a host process drives too"),
    ("tcpx", "efa", "assumed: as EFA, a plugin of a cloud whose messages a host process drives too"),
)
"""Transports without rows: whose latency and share they get."""
GENERATIONS = {"efa-2": 1.0, "efa-3": 0.65, "efa-4": 0.65 / 1.18}
"""Latencies of EFA's later generations, of which one is taken for another where only that has rows: AWS says of p5en
that EFAv3 has up to 35 % less latency than p5's, and of p6-b200 that collectives are up to 18 % faster than p5en's."""


@dataclass(frozen=True)
class NetworkRow:
    """One measured collective between nodes; `size_bytes` as nccl-tests counts it."""

    network: str
    kind: str
    gpu: str
    ranks: int
    nodes: int
    size_bytes: int
    time_us: float
    problem: bool
    algorithms: str
    protocols: str

    @property
    def family(self) -> str:
        return "peer" if self.kind in ("all_to_all", "send") else "ring"

    @property
    def setting(self) -> tuple[str, ...]:
        return self.network, self.gpu, self.algorithms, self.protocols

    @property
    def network_as_run(self) -> networks.Network:
        return _network_as_run(self.network, self.algorithms, self.protocols)

    @property
    def brought_bytes(self) -> int:
        return max(1, self.size_bytes // self.ranks) if self.kind == "all_gather" else self.size_bytes


def rows() -> list[NetworkRow]:
    """Every row between nodes; those of one NVLink are the links' own matter."""
    found = []
    for r in tables.read("nccl_nodes.csv"):
        kind = "send" if r["collective"] == "sendrecv" else r["collective"]
        found.append(
            NetworkRow(r["network"], kind, r["gpu"], int(r["n_ranks"]), int(r["n_nodes"]), int(r["size_bytes"]),
                float(r["time_us"]), r["notes"].startswith(PROBLEM), r["algorithms"], r["protocols"])
        )  # fmt: skip
    return [row for row in found if row.network != "gb200-nvl72"]


@cache
def _inside(gpu: str) -> Collectives:
    return Collectives(gpus.find(gpu))


@cache
def _network(key: str) -> networks.Network:
    return networks.find(key, "")


@cache
def _network_as_run(key: str, algorithms: str, protocols: str) -> networks.Network:
    """A network under a run's own NCCL_ALGO and NCCL_PROTO."""
    changes = {"algorithms": algorithms.split(), "protocols": protocols.split()}
    return msgspec.structs.replace(_network(key), **{name: words for name, words in changes.items() if words})


COMMON = ("LL share", "LL128 base", "LL128 hop", "LL128 share", "Simple base", "Simple hop", "Simple once",
          "Simple full", "tree share", "peer share", "peer hop", "peer low share")  # fmt: skip
# The longest base of Simple and the least latency of a hop are NCCL's own: a hop between nodes takes 14.0 us by Simple
# and 2.7 by LL (src/graph/tuning.cc, `hwLat`).
START = np.log(np.array([0.02, 16.0, 1.2, 0.23, 8.0, 6.0, 2.0, 2e7, 0.86, 0.97, 0.05, 0.05]))
LOW = np.log(np.array([0.004, 0.5, 1.0, 0.05, 1.0, 1.0, 1.0, 4e6, 0.5, 0.5, 0.001, 0.01]))
HIGH = np.log(np.array([0.6, 300.0, 10.0, 0.95, 11.3, 30.0, 30.0, 6e7, 1.0, 1.0, 1.0, 0.5]))
LATENCY, SHARE = (2.7, 2000.0), (0.2, 1.0)
SMALL_BYTES, ENOUGH = 8 << 20, 3
"""A network's latency is fitted where so many rows are smaller, its share where one is from `HEAVY_BYTES` on."""


class NetworkModel:
    """The constants as a vector of logarithms: the common ones, then latency and share of each network with rows."""

    def __init__(self, chosen: list[NetworkRow]) -> None:
        self.count = Counter(row.network for row in chosen)
        self.keys = keys = sorted(self.count)
        small = [row.network for row in chosen if row.size_bytes < SMALL_BYTES]
        large = {row.network for row in chosen if row.size_bytes >= HEAVY_BYTES}
        self.has_latency = [small.count(key) >= ENOUGH for key in keys]
        self.has_share = [key in large for key in keys]
        own = np.array([self.has_latency, self.has_share]).T.ravel()
        self.free = [i for i in range(len(COMMON) + len(own)) if i < len(COMMON) or own[i - len(COMMON)]]
        self.start = np.concatenate([START, np.log(np.array([[30.0, 0.85]] * len(keys))).ravel()])
        self.low = np.concatenate([LOW, np.log(np.array([[LATENCY[0], SHARE[0]]] * len(keys))).ravel()])
        self.high = np.concatenate([HIGH, np.log(np.array([[LATENCY[1], SHARE[1]]] * len(keys))).ravel()])

    def constants(self, at: Array) -> NetworkConstants:
        ll_share, base, hop, share, simple_base, simple_hop, once, full, *others = np.exp(at[: len(COMMON)]).tolist()
        protocols = {
            LL: Protocol(0.0, 1.0, ll_share),
            LL128: Protocol(base, hop, share),
            SIMPLE: Protocol(simple_base, simple_hop, 1.0, once, full),
        }
        return NetworkConstants(protocols, *others)

    def reaches(self, at: Array) -> dict[str, Reach]:
        """Of each network with rows; where they do not tell the latency or the share, that of its transport."""
        own = np.exp(at[len(COMMON) :]).reshape(-1, 2).tolist()
        latencies = {key: a for key, (a, _), known in zip(self.keys, own, self.has_latency, strict=True) if known}
        shares = {key: b for key, (_, b), known in zip(self.keys, own, self.has_share, strict=True) if known}
        found = {}
        for key in self.keys:
            transport = _network(key).transport
            latency = latencies.get(key) or _latency(latencies, self.count, transport)
            found[key] = Reach(latency, shares.get(key) or _median(shares, self.count, transport), "own")
        return found

    def predict(self, at: Array, chosen: list[NetworkRow]) -> Array:
        constants, known = self.constants(at), self.reaches(at)
        models: dict[tuple[str, ...], Between] = {}
        found = []
        for row in chosen:
            model = models.get(row.setting)
            if model is None:
                reach = known.get(row.network) or usual(known, self.count, _network(row.network).transport)
                model = Between(row.network_as_run, _inside(row.gpu), constants, reach)
                models[row.setting] = model
            found.append(model.time_us(row.kind, row.brought_bytes, Spread(row.ranks, row.nodes)))
        return np.array(found)

    def fit(self, chosen: list[NetworkRow]) -> Array:
        measured = np.log(np.array([row.time_us for row in chosen]))
        # Each network counts alike, however many sizes somebody printed.
        weights = np.array(
            [(HEAVY if row.size_bytes >= HEAVY_BYTES else 1.0) / self.count[row.network] ** 0.5 for row in chosen]
        )

        def loss_within(cut: float) -> Callable[[Array], float]:
            def loss(at: Array) -> float:
                errors = np.abs(np.log(self.predict(at, chosen)) - measured)
                return float(np.average(np.minimum(errors, cut), weights=weights))

            return loss

        def move(at: Array, i: int, step: float) -> Array:
            tried = at.copy()
            tried[i] = np.clip(tried[i] + step, self.low[i], self.high[i])
            return tried

        options: dict[str, Any] = {"least": 5e-3, "grow": 1.3, "gain": 1e-6, "rounds": 25}
        at = self.start
        for cut in CUTS:
            at = search(at, self.free, loss_within(cut), move, shrink=lambda step: 0.6 * step, **options)
        return at


def usual(known: dict[str, Reach], rows: Counter[str], transport: str) -> Reach:
    """What a network with a transport is taken to have that has no rows."""
    latency = _latency({key: reach.latency_us for key, reach in known.items()}, rows, transport)
    return Reach(latency, _median({key: reach.share for key, reach in known.items()}, rows, transport), "other")


def _latency(known: dict[str, float], rows: Counter[str], transport: str) -> float:
    """The median latency of the networks with a transport, or with another generation of it, or one like it."""
    now = GENERATIONS.get(transport, 0.0)
    of = {key: value * now / GENERATIONS.get(_network(key).transport, math.inf) for key, value in known.items()}
    same = {key: value for key, value in of.items() if value}
    return _middle(same, rows) if same else _median(known, rows, transport)


def _median(known: dict[str, float], rows: Counter[str], transport: str) -> float:
    """The median of the networks with a transport, or one like it, or of all."""
    assumed = {name: like for name, like, _ in ASSUMED}
    return _middle(_with(known, transport) or _with(known, assumed.get(transport, "")) or known, rows)


def _middle(known: dict[str, float], rows: Counter[str]) -> float:
    """The median in which each network counts as often as it has rows, since few rows tell little."""
    return float(np.median([value for key, value in known.items() for _ in range(rows[key])]))


def _with(known: dict[str, float], transport: str) -> dict[str, float]:
    kind = transport.partition("-")[0]
    exact = {key: value for key, value in known.items() if _network(key).transport == transport}
    return exact or {key: value for key, value in known.items() if _network(key).transport.partition("-")[0] == kind}


def fitted_on(chosen: list[NetworkRow]) -> tuple[NetworkModel, Array]:
    model = NetworkModel(chosen)
    return model, model.fit(chosen)


def left_out(chosen: list[NetworkRow], keys: list[Any]) -> Array:
    """What each row is predicted by constants that were fitted without the rows of its key."""

    def predicted(_: object, others: Mask, mine: Mask) -> Array:
        model, at = fitted_on(fitting.chosen(chosen, others))
        return model.predict(at, fitting.chosen(chosen, mine))

    return fitting.left_out(keys, predicted)


COLUMNS = f"{'':34} {'n':>4}  {'median':>6}  {'p90':>6}  {'bias':>7}"


def line(name: str, ratios: Array) -> str:
    """One line of the tables: `ratios` are predicted over measured."""
    errors = np.abs(ratios - 1.0)
    middle, most, bias = np.median(errors), np.quantile(errors, 0.9), np.median(ratios) - 1.0
    return f"{name:34} {len(ratios):4}  {middle:6.1%}  {most:6.1%}  {bias:+7.1%}"


def show(words: str, chosen: list[NetworkRow], times: Array) -> None:
    """The errors of predictions, by network, family and class of size."""
    ratios = times / np.array([row.time_us for row in chosen])
    print(f"\n{words}\n{COLUMNS}")
    for key in sorted({(row.network, row.kind) for row in chosen}):
        mine = np.array([(row.network, row.kind) == key for row in chosen])
        print(line(" ".join(key), ratios[mine]))
    for name in ("small", "medium", "large"):
        mine = np.array([size_class(row.size_bytes) == name for row in chosen])
        if mine.any():
            print(line(f"all, {name}", ratios[mine]))
    print(line("all", ratios))


def band_rows(distance: str, chosen: list[NetworkRow], times: Array) -> list[dict[str, Any]]:
    """The bands: by family and class of size, over all classes or families where rows or networks are few.

    "own" are the quantiles of rows. "other" and "unlike" are as wide either way: what is known of other networks does
    not say on which side one lies, and each of them counts as much as another.
    """
    networks_of = np.array([row.network for row in chosen])
    ratios = np.array([row.time_us for row in chosen]) / times
    found = []
    for family in ("ring", "peer"):
        mine = np.array([row.family == family for row in chosen])
        for name in ("small", "medium", "large"):
            here = mine & np.array([size_class(row.size_bytes) == name for row in chosen])
            wanted = 1 if distance == "own" else LEAST_NETWORKS
            enough = (one for one in (here, mine) if one.sum() >= LEAST_ROWS and len(set(networks_of[one])) >= wanted)
            picked = next(enough, mine | True)
            band = _plain(ratios[picked]) if distance == "own" else _symmetric(ratios[picked], networks_of[picked])
            low, high = round(min(band[0], 1.0), 3), round(max(band[1], 1.0), 3)
            row = {"distance": distance, "family": family, "size": name, "low": low, "high": high}
            found.append(row | {"rows": int(picked.sum())})
    return found


def _plain(ratios: Array) -> tuple[float, float]:
    low, high = np.quantile(ratios, [0.1, 0.9])
    return float(low), float(high)


def _symmetric(ratios: Array, names: Array) -> tuple[float, float]:
    """Within which factor, either way, four of five rows lie, when each network counts alike."""
    off = np.abs(np.log(ratios))
    order = np.argsort(off)
    weights = np.array([1.0 / np.sum(names == name) for name in names])[order]
    factor = float(np.exp(np.interp(HELD, (np.cumsum(weights) - weights / 2) / weights.sum(), off[order])))
    return 1.0 / factor, factor


def held(chosen: list[NetworkRow], times: Array) -> Mask:
    """Which rows lie in the band that other networks' rows give; `times` were predicted with each network left out."""
    known = kinds(chosen)
    inside = np.zeros(len(chosen), dtype=bool)
    for key in {row.network for row in chosen}:
        mine = np.array([row.network == key for row in chosen])
        bands = left_out_bands(fitting.chosen(chosen, ~mine), times[~mine], known[~mine])
        distance = "other" if known[mine][0] else "unlike"
        found = {(band["family"], band["size"]): band for band in bands if band["distance"] == distance}
        for i in np.flatnonzero(mine).tolist():
            band = found[chosen[i].family, size_class(chosen[i].size_bytes)]
            inside[i] = band["low"] <= chosen[i].time_us / times[i] <= band["high"]
    return inside


def left_out_bands(chosen: list[NetworkRow], times: Array, known: Mask) -> list[dict[str, Any]]:
    """The bands of networks without rows: "other" of all, "unlike" of those whose kind of transport no other has.

    What is unlike all others is known no better than they are.
    """
    other = band_rows("other", chosen, times)
    alone = known if known.all() else ~known
    unlike = band_rows("unlike", fitting.chosen(chosen, alone), times[alone])
    for mine, others in zip(unlike, other, strict=True):
        mine |= {"low": min(mine["low"], others["low"]), "high": max(mine["high"], others["high"])}
    return [*other, *unlike]


def kinds(chosen: list[NetworkRow]) -> Mask:
    """Which rows are of a network whose kind of transport another one with rows has."""
    shared = Counter(_kind(key) for key in {row.network for row in chosen})
    return np.array([shared[_kind(row.network)] > 1 for row in chosen])


def _kind(key: str) -> str:
    return _network(key).transport.partition("-")[0]


def figures_of(chosen: list[NetworkRow], predicted: dict[str, Array]) -> dict[str, dict[str, float]]:
    """The rows of docs/figures/networks.json: `predicted` are times of all rows by the name of a figure."""
    made = {name: _errors(chosen, times) for name, times in predicted.items()}
    left, known = predicted["networks"], kinds(chosen)
    inside = held(chosen, left)
    large = np.array([one.size_bytes >= HEAVY_BYTES for one in chosen])
    for name, wanted in (("large", large), ("kind", known), ("no-kind", ~known), ("networks", known | True)):
        made[name] = _errors(fitting.chosen(chosen, wanted), left[wanted])
        made[name]["held"] = round(100 * float(np.mean(inside[wanted])))
    return made


def _errors(chosen: list[NetworkRow], times: Array) -> dict[str, float]:
    errors = np.abs(times / np.array([row.time_us for row in chosen]) - 1.0)
    middle, most = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return {"number": len(errors), "median": round(100 * middle, 1), "p90": round(100 * most, 1)}


def calibrate() -> None:
    """Fit, cross-validate, print the errors, and write the constants and bands."""
    everything = rows()
    chosen = [row for row in everything if not row.problem]
    model, at = fitted_on(chosen)
    show("in sample", chosen, model.predict(at, chosen))
    by_size = left_out(chosen, [row.size_bytes.bit_length() % FOLDS for row in chosen])
    show("sizes left out", chosen, by_size)
    by_network = left_out(chosen, [row.network for row in chosen])
    show("one network left out", chosen, by_network)
    problems = [row for row in everything if row.problem]
    show("published as problems, never fitted", problems, model.predict(at, problems))
    known = kinds(chosen)
    for words, wanted in (("other", known), ("unlike", ~known)):
        inside = held(chosen, by_network)[wanted]
        print(f"{words}: {np.mean(inside):.0%} of {len(inside)} rows in the band that the other networks' rows give")
    bands = [*band_rows("own", chosen, by_size), *left_out_bands(chosen, by_network, known)]
    write(model, at, chosen, bands)
    in_sample = model.predict(at, chosen)
    made = figures_of(chosen, {"fitted": in_sample, "sizes": by_size, "networks": by_network})
    made["problems"] = _errors(problems, model.predict(at, problems))
    figures.record("networks", made)


def write(model: NetworkModel, at: Array, chosen: list[NetworkRow], bands: list[dict[str, Any]]) -> None:
    """Write the data file."""
    constants, known = model.constants(at), model.reaches(at)
    common = {name: value for name, value in constants._asdict().items() if name != "protocols"}
    found: fitting.Tables = [("common", common)]
    found += [("protocol", {"name": name, **one._asdict()}) for name, one in constants.protocols.items()]
    for key, reach in known.items():
        row: dict[str, Any] = {"key": key, "latency_us": reach.latency_us, "share": reach.share}
        row["rows"] = model.count[key]
        found.append(("network", row | {"source": "fitted: nccl-tests on it"}))
    for name in sorted({_network(key).transport for key in networks.names()}):
        reach = usual(known, model.count, name)
        words = {transport: words for transport, _, words in ASSUMED}
        count = sum(model.count[key] for key in known if _kind(key) == name.partition("-")[0])
        row = {"name": name, "latency_us": reach.latency_us, "share": reach.share, "rows": count}
        source = "fitted: the median of its networks" if count else words[name]
        found.append(("transport", row | {"source": source}))
    fitting.write("network", HEAD, [*found, *(("band", verbatim(row)) for row in bands)])
    fitting.forget()


def check() -> None:
    """Print the errors of the constants as they are."""
    everything = rows()
    for words, problem in (("the constants as they are", False), ("published as problems, never fitted", True)):
        chosen = [row for row in everything if row.problem == problem]
        models = {row.setting: Between(row.network_as_run, _inside(row.gpu)) for row in chosen}
        times = [
            models[row.setting].time_us(row.kind, row.brought_bytes, Spread(row.ranks, row.nodes)) for row in chosen
        ]
        show(words, chosen, np.array(times))
