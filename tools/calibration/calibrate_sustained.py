"""What tensor cores keep of their speed in trainings: `src/windtunnel/cost/data/sustained.toml`.

A share is fitted for each of the GPUs of llm-foundry's trainings of MPT, A100 and H100
(`tools/corpus/language_models.csv`): by what the time of 16-bit products and attention is to be divided. Those runs
computed attention by Triton's kernel of 2022, which is slower than PyTorch's fused attention, and the longer the
sequence the more of the step it is. Its factor, the same on both, is fitted along with the shares, is used for these
rows alone, and does not enter the cost model. Other generations take the mean of the shares.

From which rate on a GPU loses speed is between what Lambda's and NVIDIA's BERT reach on an A100-SXM4 (0.3 of the peak,
no loss) and the least of the trainings (0.41). The shares are cross-validated with rows, models and the GPU left out.
The band is that of the GPU left out: models left out are of the same program, and gated layers on an A100-SXM4-80GB
(Liger-Kernel) lie 11 % off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tools.corpus import recordings
from tools.corpus.recordings import Recording
from tools.docs import figures
from tools.fitting import HEAD, Array, Mask, Residuals, Tables, fold_of, forget, left_out, write
from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.operators.classes import classify

HEADS = "What tensor cores keep of their speed in a training that holds its load: cost/sustained.py."
BORROWED = {"blackwell": "B200-180GB", "blackwell-120": "H100-SXM5-80GB"}
"""Generations whose 16-bit products were timed in short runs, or that borrow such constants, without such trainings,
and the GPU whose watts for its peak meet the limit at that rate."""
BEGINS, FULL = 0.3, 0.4
SHARES = np.arange(0.7, 1.0005, 0.002)
FACTORS = np.arange(1.0, 2.0005, 0.01)
SHORT = 2048
"""Sequences up to so many tokens: attention is a quarter of the step at most."""


Shares = dict[str, float]
"""By GPU."""


class Trainings(NamedTuple):
    """The trainings, and the milliseconds of each that products, attention and other kernels take in short runs."""

    recordings: list[Recording]
    products: Array
    attention: Array
    others: Array

    @property
    def ms(self) -> Array:
        return np.array([one.ms for one in self.recordings])

    @property
    def cards(self) -> list[str]:
        return [one.gpu for one in self.recordings]

    def times(self, shares: Shares, factor: float) -> Array:
        """Milliseconds where each GPU's tensor cores keep a share, and attention takes a factor as long."""
        kept = np.array([shares.get(card, mean_of(shares)) for card in self.cards])
        return (self.products + factor * self.attention) / kept + self.others


def mean_of(shares: Shares) -> float:
    """What a GPU is taken to keep whose trainings are not known."""
    return float(np.mean(list(shares.values())))


def steps() -> Trainings:
    """The recorded trainings, priced by the kernels' constants."""
    some = recordings.read(recordings.LANGUAGES)
    parts = np.array([parts_of(one) for one in some])
    return Trainings(some, *parts.T)


def parts_of(one: Recording) -> tuple[float, float, float]:
    """Milliseconds in products, attention and other kernels."""
    cost = CostModel(gpus.find(one.gpu), one.cuda)
    counts = np.bincount([at for at in one.order if at >= 0], minlength=len(one.signatures)).tolist()
    found = {"products": 0.0, "attention": 0.0, "others": 0.0}
    for count, signature in zip(counts, one.signatures, strict=True):
        name = classify(signature.name).name
        part = {"matmul": "products", "bmm": "products", "attention": "attention"}.get(name, "others")
        found[part] += count * cost.kernel(signature).duration_ns / 1e6
    return found["products"], found["attention"], found["others"]


def fit(some: Trainings, wanted: Mask) -> tuple[Shares, float]:
    """Each GPU's share, and the factor of attention, with the least mean of the logarithmic errors."""
    cards = np.array(some.cards)
    best: tuple[float, Shares, float] = (np.inf, {}, 1.0)
    for factor in FACTORS.tolist():
        ways = (some.products + factor * some.attention) / SHARES[:, None] + some.others
        errors = np.abs(np.log(ways / some.ms))
        shares, loss = {}, 0.0
        for card in sorted(set(cards[wanted].tolist())):
            losses = np.sum(errors[:, wanted & (cards == card)], axis=1)
            shares[card] = float(SHARES[np.argmin(losses)])
            loss += float(np.min(losses))
        if loss < best[0]:
            best = (loss, shares, factor)
    return best[1], best[2]


def show(some: Trainings, name: str, predicted: Array) -> None:
    """Lines of the table: each GPU's errors, and those of short sequences alone."""
    lengths = np.array([int(one.group.split(" x ")[1].split(",")[0]) for one in some.recordings])
    for card in sorted(set(some.cards)):
        mine = np.array([one == card for one in some.cards])
        Residuals(name, card, (some.ms / predicted)[mine]).report()
        Residuals(f"up to {SHORT}", card, (some.ms / predicted)[mine & (lengths <= SHORT)]).report()


FIGURES = {"model": {"A100-SXM4-40GB": "a100", "H100-SXM5-80GB": "h100"},
           "GPU": {"A100-SXM4-40GB": "a100-of-h100", "H100-SXM5-80GB": "h100-of-a100"}}  # fmt: skip
"""The rows of docs/figures/sustained.json, by what is left out and the GPU."""


def figures_of(some: Trainings, left: str, predicted: Array) -> dict[str, dict[str, float]]:
    """Each GPU's errors with models or the GPU left out, beside those without the limit."""
    unlimited = some.products + some.attention + some.others
    made = {}
    for card, row in FIGURES.get(left, {}).items():
        mine = np.array([one == card for one in some.cards])
        found, before = (Residuals(left, card, (some.ms / ms)[mine]).figures() for ms in (predicted, unlimited))
        made[row] = found | {"before": before["median"]}
    return made


def validate(some: Trainings) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Print the errors with rows, models and the GPU left out; the width that holds 80 % of each, and the figures."""

    def predict(_: Any, others: Mask, these: Mask) -> Array:
        return some.times(*fit(some, others))[these]

    print(f"16-bit products and attention in trainings\n{HEAD}")
    show(some, "short runs", some.products + some.attention + some.others)
    keys: dict[str, Sequence[Any]] = {
        "rows": [fold_of(f"{one.model} {one.gpu} {one.group}") for one in some.recordings],
        "model": [one.model for one in some.recordings],
        "GPU": some.cards,
    }
    widths: dict[str, float] = {}
    rows: dict[str, dict[str, float]] = {}
    for name, key in keys.items():
        predicted = left_out(key, predict)
        show(some, f"{name} left out", predicted)
        rows |= figures_of(some, name, predicted)
        widths[name] = Residuals(name, "", some.ms / predicted).width()
    return widths, rows


def attention() -> float:
    """How many times as long as PyTorch's attention that of the published runs took, as the fit has it."""
    some = steps()
    return fit(some, np.ones(len(some.ms), dtype=bool))[1]


def remove() -> None:
    """Let tensor cores keep all of their speed."""
    write("sustained", HEADS, [])
    forget()


def calibrate() -> None:
    """Fit the share, cross-validate it, and write it."""
    remove()
    some = steps()
    widths, rows = validate(some)
    figures.record("sustained", rows)
    shares, factor = fit(some, np.ones(len(some.ms), dtype=bool))
    print(f"shares {shares}; Triton's attention of 2022 takes {factor:.2f} times as long as PyTorch's")
    tables: Tables = []
    slowed = some.products + some.attention
    fitted = [(gpus.find(card).generation, card, share) for card, share in shares.items()]
    assumed = [(generation, card, mean_of(shares)) for generation, card in BORROWED.items()]
    for generation, card, share in [*fitted, *assumed]:
        known = generation not in BORROWED
        mine = np.array([not known or one == card for one in some.cards])
        part = float(np.median((slowed / (slowed + share * some.others))[mine]))
        told = "fitted: llm-foundry's trainings of MPT; the band is that of the GPU left out"
        source = told if known else "assumed: the mean of A100 and H100; the band is that of the GPU left out"
        constants = {"share": round(share, 4), "begins": BEGINS, "full": FULL, "part": round(part, 3)}
        row = {"generation": generation, "gpu": card, **constants}
        row |= {"attention": round(factor - 1.0, 3), "band": widths["GPU"], "n": int(np.sum(mine)) if known else 0}
        tables.append(("limit", {**row, "source": source}))
    write("sustained", HEADS, tables)
    forget()


def check() -> None:
    """The errors of the steps as the machine's clock has them, with PyTorch's attention and with Triton's."""
    some, factor = steps(), attention()
    print(HEAD)
    for name, of in (("PyTorch's", 1.0), ("Triton's", factor)):
        show(some, name, np.array([one.predicted_ns(of) / 1e6 for one in some.recordings]))
