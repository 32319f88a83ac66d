"""What every fit of the cost model shares: folds, the search, residuals, bands, and the data files that are written."""

from __future__ import annotations

import json
import tomllib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tools import ROOT
from windtunnel.cost import bands, cache, collectives, curves, files, neighbours, network, scales, sustained
from windtunnel.cost.families import (
    attention,
    direct_convolutions,
    fft,
    generated,
    linear_algebra,
    products,
    scans,
    streams,
    winograd,
)

DATA = ROOT / "src" / "windtunnel" / "cost" / "data"
FOLDS = 5
HEAD = "GPU              distance           n  median     p90    bias  inside"
BANDS_HEAD = "Bands: the half-width around the predicted time that holds 80 % of the measured ones."
SINGLE = ("step",)
"""Tables of data files of which there is one."""
OF_EXAM = (
    *(f"convolutions, {one}" for one in ("planes", "planes fp32", "volumes", "volumes fp32")),
    "direct convolutions, others",
)
"""Families of whose kernels only the exam's programs tell: `exam --bands` writes their bands, and fits leave them."""
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Tables = list[tuple[str, dict[str, Any]]]
"""The tables of a data file: the name of each, and its row."""
Found = TypeVar("Found")
Name = TypeVar("Name")
Row = TypeVar("Row")


# Folds and the search.


def fold_of(key: str) -> int:
    """The fold of the rows that share a key."""
    return zlib.crc32(key.encode()) % FOLDS


def left_out(keys: Sequence[Any], predict: Callable[[Any, Mask, Mask], Any]) -> Array:
    """What `predict` says of each key's rows, given the key, the other rows to fit on, and these."""
    found, names = np.empty(len(keys)), list(dict.fromkeys(keys))
    of = np.array([names.index(key) for key in keys])
    for number, name in enumerate(names):
        found[of == number] = predict(name, of != number, of == number)
    return found


def chosen(rows: Sequence[Row], wanted: Mask) -> list[Row]:
    """The rows that are wanted."""
    return [row for row, one in zip(rows, wanted.tolist(), strict=True) if one]


def loss_of(predicted: Array, us: Array, clip: float) -> float:
    """The mean of the logarithmic errors, of which those of outliers count no more than `clip`."""
    return float(np.mean(np.minimum(np.abs(np.log(predicted / us)), clip)))


def search(
    begin: Found,
    names: Iterable[Name],
    loss: Callable[[Found], float],
    move: Callable[[Found, Name, Any], Found | None],
    step: Any = 0.3,
    *,
    least: float = 0.0,
    grow: float = 1,
    shrink: Callable[[Any], Any] = lambda stride: stride // 2,
    gain: float = 1e-6,
    rounds: int | None = None,
) -> Found:
    """Go along one constant after the other, with steps that grow where they help and shrink where not.

    `move` gives what is tried, None where it may not be. With a number of `rounds`, constants whose steps have become
    the `least` are tried on, as long as others are.
    """
    found, best = begin, loss(begin)
    steps = dict.fromkeys(names, step)
    while any(one > least for one in steps.values()) and rounds != 0:
        for name in steps:
            if rounds is None and steps[name] <= least:
                continue
            for change in (steps[name], -steps[name]):
                tried = move(found, name, change)
                if tried is not None and (error := loss(tried)) < best - gain:
                    best, found = error, tried
                    steps[name] *= grow
                    break
            else:
                steps[name] = shrink(steps[name])
        rounds = None if rounds is None else rounds - 1
    return found


# Residuals and the bands that they make.

DURATIONS_US = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
LEAST_OF_DURATION = 20
"""Fewer kernels between two of these durations count with those of the next."""


def half_width(ratio: Array) -> float:
    """The relative half-width that holds 80 % of them."""
    return float(np.quantile(np.abs(ratio - 1.0), 0.8))


def rounded(value: float | np.floating[Any]) -> float:
    """A number with the digits that data files have."""
    return float(f"{value:.4g}")


class Residuals(NamedTuple):
    """Measured over predicted times, how they came about, and the measured microseconds of single kernels."""

    distance: str
    gpu: str
    ratio: Array
    us: Array | None = None

    def width(self) -> float:
        """The relative half-width around the predicted times that holds 80 % of the measured ones."""
        return half_width(self.ratio)

    def by_duration(self) -> dict[str, list[float]]:
        """The same of kernels that are predicted to take about as long, from the shortest on."""
        if self.us is None or len(self.ratio) < 2 * LEAST_OF_DURATION:
            return {}
        predicted = self.us / self.ratio
        of = np.searchsorted(DURATIONS_US, predicted, side="right")
        parts: list[Array] = [np.array([], int)]
        for number in range(len(DURATIONS_US) + 1):
            if len(parts[-1]) >= LEAST_OF_DURATION:
                parts.append(np.array([], int))
            parts[-1] = np.concatenate([parts[-1], np.flatnonzero(of == number)])
        if len(parts[-1]) < LEAST_OF_DURATION:
            parts[-2:] = [np.concatenate(parts[-2:])]
        knots = [rounded(np.median(predicted[part])) for part in parts]
        return {"us": knots, "widths": [rounded(half_width(self.ratio[part])) for part in parts]}

    def report(self, width: float | None = None) -> None:
        """A line of the table; a row counts as inside where the band around its prediction holds its time."""
        errors = np.abs(1.0 / self.ratio - 1.0)
        inside = np.mean(np.abs(self.ratio - 1.0) <= (self.width() if width is None else width))
        print(
            f"{self.gpu:16} {self.distance:14} {len(errors):5} {np.median(errors):7.1%} "
            f"{np.quantile(errors, 0.9):7.1%} {np.median(1.0 / self.ratio) - 1.0:+7.1%} {inside:7.0%}",
            flush=True,
        )

    def figures(self) -> dict[str, float]:
        """The same as a row of the documentation's figures, in percent."""
        errors, bias = np.abs(1.0 / self.ratio - 1.0), np.median(1.0 / self.ratio) - 1.0
        shares = {"median": np.median(errors), "p90": np.quantile(errors, 0.9), "bias": bias}
        return {"number": len(errors)} | {name: round(100 * float(share), 1) for name, share in shares.items()}


def pooled(some: Sequence[Residuals]) -> Residuals:
    """All of them as one."""
    times = [one.us for one in some if one.us is not None]
    us = np.concatenate(times) if len(times) == len(some) else None
    return Residuals(some[0].distance, "", np.concatenate([one.ratio for one in some]), us)


def report_durations(some: Sequence[Residuals]) -> None:
    """How many kernels are inside the bands by duration that others give: of a GPU without it, and without a fold."""
    every = pooled(some)
    assert every.us is not None
    ratio, us = every.ratio, every.us
    of_gpu = np.concatenate([np.full(len(one.ratio), number) for number, one in enumerate(some)])
    of_fold = np.arange(len(ratio)) % FOLDS
    parts = {"": of_fold} | ({one.gpu: of_gpu == number for number, one in enumerate(some)} if len(some) > 1 else {})
    for gpu, of in parts.items():
        held = []
        for key in range(FOLDS) if not gpu else (True,):
            knots = Residuals("", "", ratio[of != key], us[of != key]).by_duration()
            if knots:
                band = bands.KnownBand(0.0, tuple(zip(knots["us"], knots["widths"], strict=True)))
                mine = of == key
                widths = [band.width_at(one) for one in (us / ratio)[mine].tolist()]
                held.append(np.abs(ratio[mine] - 1.0) <= widths)
        if held:
            print(f"{gpu or 'kernels':16} {every.distance:14} left out of the bands by duration: "
                  f"{np.mean(np.concatenate(held)):.0%} inside", flush=True)  # fmt: skip


def report_all(some: Sequence[Residuals]) -> None:
    """A line each, beside the band of them all."""
    for one in some:
        one.report(pooled(some).width())


def report_groups(groups: Sequence[str], ratio: Array) -> None:
    """A line for each group of rows."""
    for group in sorted(set(groups)):
        Residuals("", group, ratio[np.array(groups) == group]).report()


def band_row(family: str, residuals: Residuals, source: str) -> tuple[str, dict[str, Any]]:
    """The band of a family at a distance, and of one GPU where the residuals name it."""
    row = {"family": family, "distance": residuals.distance} | ({"gpu": residuals.gpu} if residuals.gpu else {})
    width = {"width": residuals.width()} | residuals.by_duration()
    return "band", row | width | {"n": len(residuals.ratio), "source": source}


def band_rows(family: str, residuals: Mapping[str, Sequence[Residuals]], sources: Mapping[str, str]) -> Tables:
    """The bands: each GPU's own, all of them, a generation's, borrowed; one between both where no table has it."""
    of = {distance: pooled(some) for distance, some in residuals.items() if some}
    rows = [band_row(family, one, sources[one.distance]) for one in (*residuals["own GPU"], *of.values())]
    if "own generation" not in of:
        source = "assumed: halfway between the GPU's own and another generation's: no table has two GPUs of one"
        between = halfway(of["own GPU"], of["borrowed"])
        rows.append(("band", {"family": family, "distance": "own generation", **between, "n": 0, "source": source}))
    return rows


def halfway(near: Residuals, far: Residuals) -> dict[str, Any]:
    """The widths between those of two distances, at the durations of the first."""
    found: dict[str, Any] = {"width": (near.width() + far.width()) / 2}
    own, others = near.by_duration(), far.by_duration()
    if own and others:
        wider = np.interp(np.log(own["us"]), np.log(others["us"]), others["widths"])
        found |= {"us": own["us"], "widths": [rounded((a + b) / 2) for a, b in zip(own["widths"], wider, strict=True)]}
    return found


def update_bands(families: Sequence[str], rows: Tables) -> None:
    """Put these families' bands in place of their former ones."""
    data = stored("bands")
    kept = [("band", row) for row in data.get("band", []) if row["family"] not in families]
    every = sorted([*kept, *rows], key=lambda row: str(row[1]["family"]))
    write("bands", BANDS_HEAD, [*every, *((kind, data[kind]) for kind in SINGLE)])


def begin_bands() -> None:
    """No band but those that the exam's programs give."""
    kept = [("band", row) for row in stored("bands").get("band", []) if row["family"] in OF_EXAM]
    write("bands", BANDS_HEAD, [*kept, *((kind, {"factor": 1.0}) for kind in SINGLE)])


# The data files of the cost model.


class Verbatim(str):
    """A value of a data file as it is to be written."""


def stored(name: str) -> dict[str, Any]:
    """A data file as it is."""
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))


def tables_of(data: Mapping[str, Any]) -> Tables:
    """The tables of what a data file holds."""
    return [(kind, row) for kind, rows in data.items() for row in rows]


def text_of(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {text_of(one)}" for key, one in value.items()) + " }" if value else "{}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str) and not isinstance(value, Verbatim):
        return f'"{value}"'
    return str(value) if not isinstance(value, bool | list) else json.dumps(value)


def verbatim(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose numbers keep all of their digits."""
    return {key: value if isinstance(value, str) else Verbatim(value) for key, value in row.items()}


def write(name: str, head: str | Sequence[str], tables: Tables) -> None:
    """A data file of tables; one within another follows it at once."""
    heads = [head, "Written by `make calibrate`; do not edit by hand."] if isinstance(head, str) else head
    lines = [f"# {one}" for one in heads]
    for kind, row in tables:
        lines += [] if "." in kind else [""]
        lines += [f"# {row['#']}"] if "#" in row else []
        lines.append(f"[{kind}]" if kind in SINGLE else f"[[{kind}]]")
        lines += [f"{key} = {text_of(value)}" for key, value in row.items() if key != "#"]
    (DATA / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


SHARES = (
    streams.generation_share,
    streams.class_share,
    streams.elements_per_clock,
    streams.embedding_gradient,
    direct_convolutions.fitted_share,
    generated.fitted_share,
    curves.share_of,
    products.scales,
    products.row_of,
    fft.constants,
    linear_algebra.chain,
    scans.turn_of,
    winograd.fitted,
)
OTHERS = (
    files.read,
    cache.constants,
    cache.bytes_per_s,
    products.fitted,
    attention.fitted,
    attention.share,
    curves.curve,
    curves._curves,
    bands.known_band,
    scales.scale,
    bands.cancelling,
    neighbours.measured,
    sustained.limit_of,
    collectives._links,
    collectives.bands,
    network.fitted,
    network.bands,
)


def forget_shares() -> None:
    """Let the model take its shares anew from the data files as they were read, with what a fit has set in them."""
    for cached in SHARES:
        cached.cache_clear()


def forget() -> None:
    """Let the model read its data files anew."""
    forget_shares()
    for cached in OTHERS:
        cached.cache_clear()
