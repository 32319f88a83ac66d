"""Fit the constants of collectives in one node on published nccl-tests rows, and cross-validate them.

The rows are those of `tools/corpus/nccl_single_node.csv.gz` (aiconfigurator's: A100, H100, B200, GB200, L40S) and
`nccl_published.csv` (what people published; of these only V100-PCIE is fitted). The constants are those of
`windtunnel.cost.collectives.Path`: a pattern search finds those with the least mean of |log(predicted / measured)|, cut
at 0.7, over the medians of rows of equal system, operation, ranks, type and size, of which those from 64 MiB on count
four times. Bands are the 10 and 90 % quantiles of measured over predicted time where the row's size was left out of the
fit ("own"), where its operation with that number of ranks was ("generation"), and where all of its kind of link was
("borrowed").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tools import fitting
from tools.corpus import tables
from tools.fitting import Array, Mask, Tables, Verbatim, forget, search, verbatim
from windtunnel import gpus
from windtunnel.cost.collectives import Collectives, Path, size_class, traffic

HEAD = (
    "Collectives in one node: written by tools/calibration/calibrate_collectives.py; do not edit by hand.",
    "A candidate takes base_us + hop_us * hops + chunk * (hops + own) / (share * the link's rate one way); see",
    "cost/collectives.py. crowd: the rate falls with (2 / ranks) to it; assumed_crowd: for other models.",
    "band: measured over predicted time, 10 and 90 % quantiles in cross-validation over so many rows.",
)
GPUS = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "b200_sxm": "B200-180GB",
    "gb200": "GB200-186GB",
    "l40s": "L40S",
    "v100_pcie": "V100-PCIe-32GB",
}
ELEMENT_BYTES = {"half": 2, "int8": 1}
CUT = 0.7
HEAVY_BYTES, HEAVY = 64 << 20, 4.0  # what training waits for are large messages: their rows count four times
FOLDS = 7


@dataclass(frozen=True)
class CollectiveRow:
    """One measured collective: `total_bytes` as nccl-tests counts them, the gathered size for all-gathers."""

    system: str
    kind: str
    ranks: int
    switch: bool  # whether a switch can add this type: NVLS knows no int8
    total_bytes: int
    time_us: float

    @property
    def family(self) -> str:
        return "peer" if self.kind == "all_to_all" else "ring"

    @property
    def brought_bytes(self) -> int:
        return self.total_bytes // self.ranks if self.kind == "all_gather" else self.total_bytes


@dataclass(frozen=True)
class Link:
    """A kind of link: which systems show it, and where each candidate's search begins (base, hop, share, own)."""

    name: str
    systems: tuple[str, ...]
    models: tuple[str, ...]
    nominal: float  # bytes a microsecond, one direction
    ring: dict[str, tuple[float, float, float, float]]
    peer: dict[str, tuple[float, float, float, float]]
    switch_ranks: int = 0
    crowded: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


_RING = {"LL": (8.0, 1.0, 0.06, 0.5), "LL128": (11.0, 1.2, 0.4, 0.5), "Simple": (30.0, 3.0, 0.7, 0.5)}
_PEER = {"LL": (8.0, 0.5, 0.06, 0.5), "Simple": (14.0, 0.5, 0.7, 0.5)}
_HOST = {"LL": (5.0, 1.0, 0.3, 0.5), "Simple, few channels": (15.0, 2.0, 0.6, 0.5), "Simple": (50.0, 5.0, 0.9, 0.5)}
_PCIE = {"LL": (10.0, 0.6, 0.3, 0.5), "Simple": (20.0, 3.0, 0.6, 0.5)}
LINKS = (
    Link("nvlink3", ("a100_sxm",), ("A100-SXM4-40GB", "A100-SXM4-80GB"), 300e3, _RING, _PEER,
         extra={"generations": ["ampere", "ampere-86", "ada"]}),
    Link("nvlink4", ("h100_sxm",), ("H100-SXM5-80GB",), 450e3, _RING, _PEER, 5, extra={"generations": ["hopper"]}),
    Link("nvlink5", ("b200_sxm", "gb200"), ("B200-180GB", "GB200-186GB"), 900e3, _RING, _PEER, 6,
         extra={"generations": ["blackwell", "blackwell-120"]}),
    Link("pcie", ("v100_pcie",), ("V100-PCIe-32GB",), 15.75e3, _PCIE, {}),
    Link("pcie-staged", ("l40s",), ("L40S",), 31.5e3, _HOST, _HOST, crowded=True,
         extra={"assumed_crowd": Verbatim(1.0)}),
)  # fmt: skip
NVLINK2 = "Borrowed: NVLink 3's constants; large all-reduces on eight V100 reach 132 of 150 GB/s (DGX-1V, nccl-tests)."


def rows() -> list[CollectiveRow]:
    """Every row of one node that has constants of its own to fit or to check."""
    found = []
    for r in tables.read("nccl_single_node.csv.gz"):
        kind = "all_to_all" if r["op_name"] == "alltoall" else r["op_name"]
        size = int(r["elements"]) * ELEMENT_BYTES[r["nccl_dtype"]]
        time_us = 1000.0 * float(r["latency_ms"])
        found.append(CollectiveRow(r["system"], kind, int(r["num_gpus"]), r["nccl_dtype"] != "int8", size, time_us))
    for r in published():
        if r["gpu"] == "Tesla V100-PCIE-32GB":
            size, time_us = int(r["size_bytes"]), float(r["time_us"])
            found.append(CollectiveRow("v100_pcie", r["collective"], int(r["n_ranks"]), True, size, time_us))
    return found


def published() -> list[dict[str, str]]:
    """What people published of nccl-tests on one node, as text."""
    return tables.read("nccl_published.csv")


def medians(chosen: Iterable[CollectiveRow]) -> list[CollectiveRow]:
    """One row for rows that differ in nothing but their time."""
    groups = defaultdict(list)
    for r in chosen:
        groups[r.system, r.kind, r.ranks, r.switch, r.total_bytes].append(r.time_us)
    return [CollectiveRow(*key, float(np.median(times))) for key, times in groups.items()]


class RowArrays:
    """What of rows a prediction needs, as arrays."""

    def __init__(self, chosen: list[CollectiveRow]) -> None:
        self.ranks = np.array([r.ranks for r in chosen], dtype=float)
        self.size = np.array([r.total_bytes for r in chosen], dtype=float)
        self.peer = np.array([r.family == "peer" for r in chosen])
        self.switch = np.array([r.kind == "all_reduce" and r.switch for r in chosen])
        passed = [traffic(r.kind, r.brought_bytes, r.ranks) for r in chosen]
        self.hops, self.chunk = np.array(passed, dtype=float).T


class LinkModel:
    """The constants of one link as a vector of logarithms, and what they predict."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.names = [("ring", p) for p in link.ring] + [("peer", p) for p in link.peer]
        starts = [*link.ring.values(), *link.peer.values()]
        if link.switch_ranks:
            self.names.append(("switch", "NVLS"))
            starts.append((40.0, 0.01, 0.5, 0.01))
        self.start = np.log(np.array([[*start, 1.5] for start in starts]))
        self.low = np.log(np.array([1.0, 0.01, 1e-3, 0.01, 0.1]))
        self.high = np.log(np.array([1e4, 1e3, 1.0, 1.0, 4.0]))
        free = np.ones_like(self.start, dtype=bool)
        free[:, 4] = link.crowded
        if link.switch_ranks:
            free[-1, [1, 3]] = False
        self.free = [tuple(i) for i in np.argwhere(free)]

    def paths(self, at: np.ndarray, nominal: float | None = None) -> list[tuple[str, str, Path]]:
        """(family, protocol, path) of each candidate, on a link of that nominal rate (bytes a microsecond)."""
        values = np.exp(at)
        rate = nominal or self.link.nominal
        crowded = self.link.crowded
        return [
            (family, protocol, Path(b, h, share * rate, own, crowd if crowded else 0.0))
            for (family, protocol), (b, h, share, own, crowd) in zip(self.names, values.tolist(), strict=True)
        ]

    def predict(
        self, at: np.ndarray, chosen: list[CollectiveRow] | RowArrays, nominal: float | None = None
    ) -> np.ndarray:
        """Microseconds of each row: `Collectives.time_us` on arrays."""
        table = chosen if isinstance(chosen, RowArrays) else RowArrays(chosen)
        switch = table.switch & (table.ranks >= (self.link.switch_ranks or np.inf))
        where = {"ring": ~table.peer, "peer": table.peer, "switch": switch}
        found = np.full(len(table.ranks), np.inf)
        for family, _, path in self.paths(at, nominal):
            if family == "switch":
                times = path.time_us(2.0, 1.0, table.size)
            else:
                times = path.time_us(table.ranks, table.hops, table.chunk)
            found = np.where(where[family] & (times < found), times, found)
        return found

    def fit(self, chosen: list[CollectiveRow]) -> np.ndarray:
        """A pattern search: each constant up or down by a factor, which shrinks where neither helps."""
        if not chosen:
            return self.start
        measured, table = np.log(np.array([r.time_us for r in chosen])), RowArrays(chosen)
        weights = np.where(table.size >= HEAVY_BYTES, HEAVY, 1.0)

        def loss(at: np.ndarray) -> float:
            with np.errstate(divide="ignore"):
                errors = np.abs(np.log(self.predict(at, table)) - measured)
            return float(np.average(np.minimum(errors, CUT), weights=weights))

        def move(at: np.ndarray, i: tuple[int, int], step: float) -> np.ndarray:
            tried = at.copy()
            tried[i] = np.clip(tried[i] + step, self.low[i[1]], self.high[i[1]])
            return tried

        options: dict[str, Any] = {"least": 2e-3, "grow": 1.3, "gain": 1e-7, "rounds": 60}
        return search(self.start, self.free, loss, move, shrink=lambda step: 0.6 * step, **options)


def left_out(model: LinkModel, rows: list[CollectiveRow], fold: Callable[[CollectiveRow], object]) -> Array:
    """What each row is predicted by constants that were fitted without the rows of its fold."""

    def predicted(_: object, others: Mask, mine: Mask) -> Array:
        return model.predict(model.fit(medians(fitting.chosen(rows, others))), fitting.chosen(rows, mine))

    return fitting.left_out([fold(row) for row in rows], predicted)


def size_fold(row: CollectiveRow) -> int:
    return (row.total_bytes.bit_length()) % FOLDS


def group_fold(row: CollectiveRow) -> tuple[str, int]:
    return (row.kind, row.ranks)


def line(name: str, ratios: np.ndarray, inside: np.ndarray | None = None) -> str:
    """One line of the tables: `ratios` are predicted over measured."""
    errors = np.abs(ratios - 1.0)
    middle, worst, bias = np.median(errors), np.quantile(errors, 0.9), np.median(ratios) - 1.0
    text = f"{name:44} {len(ratios):5}  {middle:6.1%}  {worst:6.1%}  {bias:+6.1%}"
    return text if inside is None else f"{text}  {np.mean(inside):5.0%}"


COLUMNS = f"{'':44} {'n':>5}  {'median':>6}  {'p90':>6}  {'bias':>6}"


def quantiles(ratios: np.ndarray) -> tuple[float, float]:
    """The 80 % interval of measured over predicted, which always holds the prediction itself."""
    low, high = np.quantile(1.0 / ratios, [0.1, 0.9])
    return min(float(low), 1.0), max(float(high), 1.0)


def band_rows(distance: str, link: str, chosen: list[CollectiveRow], ratios: np.ndarray) -> list[dict[str, Any]]:
    """The bands of one link or pool: by family and class of size, and over all of both where rows are few."""
    found = []
    for family in ("ring", "peer"):
        mine = np.array([r.family == family for r in chosen]) if chosen else np.zeros(0, dtype=bool)
        for name in ("small", "medium", "large"):
            here = mine & np.array([size_class(r.total_bytes) == name for r in chosen])
            picked = here if here.sum() >= 10 else mine if mine.sum() >= 10 else np.ones(len(chosen), dtype=bool)
            low, high = quantiles(ratios[picked])
            found.append(
                {"distance": distance, "link": link, "family": family, "size": name, "low": round(low, 3),
                 "high": round(high, 3), "rows": int(picked.sum())}
            )  # fmt: skip
    return found


def inside_other_folds(
    chosen: list[CollectiveRow], ratios: np.ndarray, fold: Callable[[CollectiveRow], object]
) -> np.ndarray:
    """Whether each row lies in the band that the residuals of the other folds give."""
    folds = np.array([hash(fold(r)) for r in chosen])
    cells = np.array([hash((r.family, size_class(r.total_bytes))) for r in chosen])
    found = np.zeros(len(chosen), dtype=bool)
    for i in range(len(chosen)):
        others = (folds != folds[i]) & (cells == cells[i])
        others = others if others.sum() >= 10 else folds != folds[i]
        low, high = quantiles(ratios[others])
        found[i] = low <= 1.0 / ratios[i] <= high
    return found


@dataclass
class Fitted:
    """One link with its constants, its rows, and what cross-validation gave."""

    model: LinkModel
    at: np.ndarray
    rows: list[CollectiveRow]
    by_size: np.ndarray
    by_group: np.ndarray | None

    @property
    def times(self) -> np.ndarray:
        return np.array([r.time_us for r in self.rows])


def fit_all() -> list[Fitted]:
    """Fit every link three ways: on all its rows, with sizes left out, and with operations and ranks left out."""
    everything = rows()
    found = []
    for link in LINKS:
        chosen = [r for r in everything if r.system in link.systems]
        model = LinkModel(link)
        groups = {group_fold(r) for r in chosen}
        by_group = left_out(model, chosen, group_fold) if len(groups) > 1 else None
        by_size = left_out(model, chosen, size_fold)
        found.append(Fitted(model, model.fit(medians(chosen)), chosen, by_size, by_group))
    return found


def borrowed(fitted: list[Fitted], prefix: str) -> tuple[list[CollectiveRow], np.ndarray]:
    """The rows of links whose names begin so, predicted by the constants of each other one of them."""
    same = [one for one in fitted if one.model.link.name.startswith(prefix)]
    chosen: list[CollectiveRow] = []
    ratios = []
    for source in same:
        families = {family for family, _ in source.model.names}
        for target in same:
            picked = [r for r in target.rows if r.family in families]
            if source is not target and picked:
                times = source.model.predict(source.at, picked, target.model.link.nominal)
                chosen += picked
                ratios.append(times / np.array([r.time_us for r in picked]))
    return chosen, np.concatenate(ratios)


def report(fitted: list[Fitted]) -> list[dict[str, Any]]:
    """Print the cross-validated errors; returns the bands."""
    found: list[dict[str, Any]] = []
    ways = (
        ("sizes left out", "own", size_fold, lambda one: one.by_size),
        ("operations and ranks left out", "generation", group_fold, lambda one: one.by_group),
    )
    for words, distance, fold, predicted in ways:
        print(f"\n{words}\n{COLUMNS}  inside the 80 % band of the other folds")
        pool, coverage = [], []
        for one in fitted:
            times = predicted(one)
            if times is None:
                continue
            ratios = times / one.times
            inside = inside_other_folds(one.rows, ratios, fold)
            found += band_rows(distance, one.model.link.name, one.rows, ratios)
            pool.append(ratios)
            coverage.append(inside)
            for system in one.model.link.systems:
                mine = np.array([r.system == system for r in one.rows])
                print(line(GPUS[system], ratios[mine], inside[mine]))
        print(line("all", np.concatenate(pool), np.concatenate(coverage)))
    print(f"\nanother kind of link's constants\n{COLUMNS}")
    for prefix in ("nvlink", "pcie"):
        chosen, ratios = borrowed(fitted, prefix)
        print(line(f"{prefix}, borrowed", ratios))
        found += band_rows("borrowed", prefix, chosen, ratios)
    return found


def write(fitted: list[Fitted], bands: list[dict[str, Any]]) -> None:
    """Write the data file."""
    found: Tables = []
    for one in fitted:
        found += link_tables(one)
        if one.model.link.name == "nvlink3":
            found += nvlink2_tables(one)
    fitting.write("collectives", HEAD, [*found, *(("band", verbatim(row)) for row in bands)])
    forget()


def link_tables(one: Fitted) -> Tables:
    """One link's constants."""
    link = one.model.link
    measured: dict[str, set[int]] = defaultdict(set)
    for r in one.rows:
        measured[r.kind].add(r.ranks)
    row: dict[str, Any] = {"name": link.name, "models": list(link.models), **link.extra}
    row["measured"] = {kind: sorted(n) for kind, n in sorted(measured.items())}
    row |= {"switch_ranks": link.switch_ranks} if link.switch_ranks else {}
    row["source"] = f"fitted: {len(one.rows)} rows of nccl-tests on {', '.join(GPUS[s] for s in link.systems)}"
    paths = [(f, p, path, path.rate / link.nominal) for f, p, path in one.model.paths(one.at)]
    if not link.peer:
        paths += [("peer", p, path, share) for f, p, path, share in paths if f == "ring"]
    return [("link", row), *path_tables(paths)]


def nvlink2_tables(one: Fitted) -> Tables:
    """A V100's NVLink, of which no rows are there: NVLink 3's constants, and what NCCL reaches at large sizes."""
    row = {"#": NVLINK2, "name": "nvlink2", "models": [], "generations": ["volta", "turing", "pascal", "kepler"]}
    source = "assumed: NVLink 3's; Simple's share is of 132 of 150 GB/s on eight V100 (nccl-tests)"
    paths = []
    for family, protocol, path in one.model.paths(one.at):
        simple = protocol == "Simple"
        share = 0.88 if simple else path.rate / one.model.link.nominal
        paths.append((family, protocol, path._replace(own=0.01) if simple else path, share))
    return [("link", row | {"measured": {}, "borrowed": True, "source": source}), *path_tables(paths)]


def path_tables(paths: list[tuple[str, str, Path, float]]) -> Tables:
    """Candidates: (family, protocol, constants, share of the link's nominal rate)."""
    found: Tables = []
    for family, protocol, path, share in paths:
        row = {"protocol": protocol, "base_us": path.base_us, "hop_us": path.hop_us, "share": share, "own": path.own}
        found.append((f"link.path.{family}", row | ({"crowd": path.crowd} if path.crowd else {})))
    return found


def check() -> None:
    """Print the error of the constants as they are, by GPU, operation and ranks, and on rows that were not fitted."""
    print(f"\nthe constants as they are, every row\n{COLUMNS}  inside the band")
    groups: dict[tuple[str, str, int], list[CollectiveRow]] = defaultdict(list)
    for r in rows():
        groups[r.system, r.kind, r.ranks].append(r)
    everything: list[tuple[float, bool]] = []
    for (system, kind, ranks), chosen in sorted(groups.items()):
        found = [compare(GPUS[system], kind, ranks, r.brought_bytes, r.time_us) for r in chosen]
        everything += found
        print(line(f"{GPUS[system]} {kind} {ranks}", *map(np.array, zip(*found, strict=True))))
    print(line("all", *map(np.array, zip(*everything, strict=True))))
    print(f"\npublished elsewhere, not fitted (sizes from 1 MiB on)\n{COLUMNS}  inside the band")
    for (key, kind, ranks), found in sorted(unseen().items()):
        print(line(f"{key} {kind} {ranks}", *map(np.array, zip(*found, strict=True))))


PUBLISHED = {
    "A100": "A100-SXM4-80GB",
    "H100": "H100-SXM5-80GB",
    "H200": "H200-SXM-141GB",
    "B200": "B200-180GB",
    "Tesla K80": "K80",
}


def unseen() -> dict[tuple[str, str, int], list[tuple[float, bool]]]:
    """Published rows of one node that no constant saw, compared. Small ones are left out: some hold host overhead."""
    found: dict[tuple[str, str, int], list[tuple[float, bool]]] = defaultdict(list)
    for r in published():
        key = next((key for name, key in PUBLISHED.items() if r["gpu"].startswith(name)), None)
        if key is None or "NVLS_ENABLE=0" in r["notes"] or not r["time_us"]:
            continue
        ranks, size = int(r["n_ranks"]), int(float(r["size_bytes"]))
        if size >= 1 << 20:
            brought = size // ranks if r["collective"] == "all_gather" else size
            found[key, r["collective"], ranks].append(
                compare(key, r["collective"], ranks, brought, float(r["time_us"]))
            )
    return found


def compare(key: str, kind: str, ranks: int, brought_bytes: int, time_us: float) -> tuple[float, bool]:
    """(predicted over measured, whether the measured time lies in the band)."""
    model = _models.setdefault(key, Collectives(gpus.find(key)))
    predicted, band = model.time_us(kind, brought_bytes, ranks), model.band(kind, brought_bytes, ranks)
    return predicted / time_us, band.low <= time_us / predicted <= band.high


_models: dict[str, Collectives] = {}


def calibrate() -> None:
    """Fit, cross-validate and write the constants, and print the errors that they make."""
    fitted = fit_all()
    write(fitted, report(fitted))
    _models.clear()
    check()
