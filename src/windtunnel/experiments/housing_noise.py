"""Why does the book's loss curve shake?

A book trains a small network on the prices of 506 houses, over two GPUs, and its loss curve shakes. It blames
mini-batches and features that are not normalised. Its program has two more suspects. The labels have the shape (rows,)
and the outputs (rows, 1), so the loss compares every output with every label, and PyTorch warns. And the loss that it
logs after each epoch is that of the last batch alone, which has 20 of the 404 rows.

Each of the four is fixed alone, then all. A curve's shaking is the median change from one epoch to the next, as a
share of the curve's own height, over the second half of the training. How well the network has learnt is the mean
squared error over all 404 rows, beside the variance of the prices: that is the error of a network that says the mean
price of every house.

Losses are values and no times: an emulated GPU gives those that PyTorch computes.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel import torch as wt
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Value
from windtunnel.trace.units import plural

GPUS = 0
VALUES = True
BATCH = 128
NOT_MODELLED = "Losses are computed, not modelled."
TEST_ROWS = 102


@dataclass(frozen=True)
class NoiseSizes:
    """The book's hundred epochs, and seeds of the weights and batches; figures are means over the seeds."""

    epochs: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)


SIZES = NoiseSizes()
SMALL = NoiseSizes(epochs=40, seeds=(0,))


class Variant(NamedTuple):
    """A way to train: which of the book's mistakes it fixes."""

    name: str
    columns: bool = False  # labels of the outputs' shape
    standardised: bool = False  # features of mean 0 and deviation 1
    whole: bool = False  # one batch of all rows


BOOK = Variant("as in the book")
LABELS = Variant("labels (rows, 1)", columns=True)
SCALED = Variant("features standardised", standardised=True)
WHOLE = Variant("all rows in one batch", whole=True)
BOTH = Variant("labels and features", columns=True, standardised=True)
ALL = Variant("labels, features, one batch", columns=True, standardised=True, whole=True)
VARIANTS = (BOOK, LABELS, SCALED, WHOLE, BOTH, ALL)


class Curves(NamedTuple):
    """A training's losses after each epoch, of its last batch and of all its batches, and its error in the end."""

    last: list[float]
    mean: list[float]
    error: float


class Finding(NamedTuple):
    """Means over the seeds: the shaking of both curves, as shares, and the error in the end."""

    last_shake: float
    mean_shake: float
    error: float


def run(sizes: NoiseSizes, cpu: None) -> Result:
    """All variants with all seeds, on the first GPU where there is one."""
    del cpu
    features, prices = _training_rows()
    curves = {
        variant: [_train(variant, features, prices, sizes.epochs, seed) for seed in sizes.seeds] for variant in VARIANTS
    }
    findings = {variant: _finding(trained) for variant, trained in curves.items()}
    variance = float(prices.var(correction=0))
    facts, conclusion = _conclude(findings, variance)
    place = wt.try_gpu()
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "the CPU"
    return Result(
        name="housing-noise",
        devices={},
        tables=(_table(findings, variance),),
        plots=(_shaking({variant: trained[0] for variant, trained in curves.items()}),),
        facts=facts,
        conclusion=conclusion,
        notes=(f"Trained on {name} with {sizes.epochs} epochs and {plural(len(sizes.seeds), 'seed')}. {NOT_MODELLED}",),
    )


def _training_rows() -> tuple[Tensor, Tensor]:
    """The book's 404 training rows, features (404, 13) and prices (404, 1); as scikit-learn splits with seed 0."""
    path = resources.files(__package__) / "data" / "boston.csv"
    table = np.loadtxt(path.read_text(encoding="utf-8").splitlines(), delimiter=",", skiprows=1)
    rows = np.random.RandomState(0).permutation(len(table))[TEST_ROWS:]
    chosen = torch.tensor(table[rows], dtype=torch.float32)
    return chosen[:, :-1], chosen[:, -1:]


def _train(variant: Variant, features: Tensor, prices: Tensor, epochs: int, seed: int) -> Curves:
    if variant.standardised:
        features = (features - features.mean(0)) / features.std(0)
    x, y = wt.to((features, prices), wt.try_gpu())
    labels = y if variant.columns else y[:, 0]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a target size", UserWarning)  # the book's mistake, made on purpose
        torch.manual_seed(seed)
        model = wt.to(_network(), wt.try_gpu())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        last, mean = [], []
        for _ in range(epochs):
            losses = [_step(model, optimizer, x[rows], labels[rows]) for rows in _batches(len(x), variant.whole)]
            last.append(losses[-1])
            mean.append(torch.stack(losses).mean())
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x), y).item()
    return Curves(torch.stack(last).tolist(), torch.stack(mean).tolist(), error)


def _network() -> nn.Module:
    """The book's network."""
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def _batches(rows: int, whole: bool) -> Iterator[Tensor]:
    return iter(torch.randperm(rows).split(rows if whole else BATCH))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def shake(curve: list[float]) -> float:
    """The median change from an epoch to the next, as a share of the median height, over the curve's second half."""
    half = curve[len(curve) // 2 :]
    return statistics.median(abs(b - a) for a, b in pairwise(half)) / statistics.median(half)


def _finding(trained: list[Curves]) -> Finding:
    return Finding(
        statistics.mean(shake(one.last) for one in trained),
        statistics.mean(shake(one.mean) for one in trained),
        statistics.mean(one.error for one in trained),
    )


def _table(findings: dict[Variant, Finding], variance: float) -> Table:
    columns = (
        Column("training"),
        Column("last batch shakes", "share"),
        Column("mean of batches shakes", "share"),
        Column("error"),
        Column("of the variance", "share"),
    )
    rows: list[tuple[Value, ...]] = [
        (variant.name, found.last_shake, found.mean_shake, found.error, found.error / variance)
        for variant, found in findings.items()
    ]
    return Table("Effect of each fix", columns, tuple(rows))


def _shaking(curves: dict[Variant, Curves]) -> Plot:
    epochs = tuple(float(epoch) for epoch in range(len(curves[BOOK].last)))
    drawn = {
        "as in the book, last batch": curves[BOOK].last,
        "as in the book, mean of batches": curves[BOOK].mean,
        "labels (rows, 1), last batch": curves[LABELS].last,
        "labels and features, mean of batches": curves[BOTH].mean,
    }
    series = tuple(Series(name, epochs, tuple(curve)) for name, curve in drawn.items())
    return Plot("Loss curves of the first seed", Axis("epoch"), Axis("loss", log=True), series)


def _conclude(findings: dict[Variant, Finding], variance: float) -> tuple[dict[str, Fact], tuple[str, ...]]:
    book = findings[BOOK]
    facts = {
        "book": Fact(book.last_shake, "share"),
        "mean": Fact(book.mean_shake, "share"),
        "scaled": Fact(findings[SCALED].last_shake, "share"),
        "whole": Fact(findings[WHOLE].last_shake, "share"),
        "error_book": Fact(book.error / variance, "share"),
        "error_scaled": Fact(findings[SCALED].error / variance, "share"),
        "error_labels": Fact(findings[LABELS].error / variance, "share"),
        "error_both": Fact(findings[BOTH].error / variance, "share"),
    }
    first = "The book's curve changes by {book} from epoch to epoch: by {mean} when the mean of all batches is logged "
    first += "instead of the last one, by {scaled} with normalised features, by {whole} with all rows in one batch."
    second = "With the book's labels the error stays at {error_book} of the prices' variance, and at {error_scaled} "
    second += "with normalised features"
    if min(book.error, findings[SCALED].error) > 0.9 * variance:
        second += ", which is no better than the mean price for every house"
    second += "; with labels `(rows, 1)` it is {error_labels}, and {error_both} with normalised features too."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
