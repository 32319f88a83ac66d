"""What the steps of published models launch, recorded once (`record.py`), so that fits price it without the models.

What a step launches depends on the model, the batch and the layout and not on a constant of the cost model. A recording
is a published row, the signatures of its step's kernels and their order, in which -1 stands for a wait of the host.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

from tools.corpus.tables import FOLDER
from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.sustained import Sustained
from windtunnel.operators.classes import classify
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import Trace

EAGER_STEPS, COMPILED_STEPS, HELD_OUT_STEPS = (f"{name}_steps.json.gz" for name in ("image", "compiled", "held_out"))
TRANSFORMERS, THROUGHPUTS = "transformer_steps.json.gz", "throughput_steps.json.gz"
LANGUAGES = "language_steps.json.gz"
EAGER, COMPILED = "eager", "compiled"
"""The groups of models that were recorded both ways."""
IMAGES = "fitted: timm's published results, AMP, torch 1.12 to 2.9 (image_models.csv, compiled_models.csv)"
"""The source of what was fitted on the recorded image models."""
WAIT = -1
SEED = 18
HELD_OUT_SEED = 20261125
"""Draws the compiled models that nothing is fitted on."""


class Recording(NamedTuple):
    """One published step: where it was measured, its milliseconds there, and what it launches in order."""

    model: str
    gpu: str
    group: str
    cuda: tuple[int, int]
    ms: float
    signatures: tuple[Signature, ...]
    order: tuple[int, ...]

    def step_ns(self, cost: CostModel, steps: int = 2, attention: float = 1.0) -> float:
        """The length of the last of so many steps on one stream, where the host launches ahead or the device waits.

        Kernels of attention take `attention` times as long as they would.
        """
        kernels = [cost.kernel(one) for one in self.signatures]
        factors = [attention if classify(one.name).name == "attention" else 1.0 for one in self.signatures]
        lengths = [one.duration_ns * factor for one, factor in zip(kernels, factors, strict=True)]
        load = Sustained(cost.gpu)
        calls = [cost.dispatch_ns(one.name) for one in self.signatures]
        host = ready = before = 0.0
        for _ in range(steps):
            before = max(host, ready)
            for index in self.order:
                if index == WAIT:
                    host = max(host + cost.synchronize_ns, ready)
                    continue
                host += calls[index]
                ready = max(ready, host + cost.launch_ns)
                ready += lengths[index] * load.slowdown(kernels[index].peak_ns, round(ready))
        return max(host, ready) - before

    def predicted_ns(self, attention: float = 1.0) -> float:
        """What the cost model has for it as it is."""
        return self.step_ns(CostModel(gpus.find(self.gpu), self.cuda), attention=attention)

    def ratio(self) -> float:
        """Published over predicted time."""
        return 1e6 * self.ms / self.predicted_ns()


def read(name: str) -> list[Recording]:
    """The recordings of a file of this folder."""
    found = []
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            signatures = laid_out(tuple(signature(one) for one in row["signatures"]))
            cuda = (int(row["cuda"][0]), int(row["cuda"][1]))
            one = Recording(row["model"], row["gpu"], row["group"], cuda, row["ms"], signatures, tuple(row["order"]))
            found.append(one)
    return found


def lines(path: Path) -> list[Any]:
    """A table of lines of JSON: its head, then its rows."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def signature(of: list[Any]) -> Signature:
    """A signature from what JSON holds of it."""
    shapes, dtypes, detail = tuple(map(tuple, of[1])), tuple(of[2]), tuple((key, value) for key, value in of[-1])
    return Signature._make((of[0], shapes, dtypes, *of[3:-1], detail))


def laid_out(signatures: tuple[Signature, ...]) -> tuple[Signature, ...]:
    """Norms of images in channels last say so where the convolutions do: recordings of before did not."""
    last = ("channels_last", 1)
    if not any(last in one.detail for one in signatures if "convolution" in one.name):
        return signatures
    return tuple(
        one._replace(detail=(*one.detail, last)) if "batch_norm" in one.name and last not in one.detail else one
        for one in signatures
    )


def work(trace: Trace, begin: int, end: int | None = None) -> tuple[list[Signature], list[int]]:
    """The signatures of the trace's kernels from row `begin` to `end`, each once, and their order."""
    numbers: dict[Signature, int] = {}
    order = []
    for row in list(trace.rows)[begin:end]:
        if row[0] == Kind.KERNEL:
            order.append(numbers.setdefault(trace.signatures[row[2]], len(numbers)))
        elif row[0] == Kind.SYNCHRONIZE:
            order.append(WAIT)
    return list(numbers), order
