"""Image models of timm, eager and compiled, and what timm published of both on one card.

The programs are those of timm's `benchmark.py --torchcompile inductor`: AMP in float16, inference, the default mode of
`torch.compile`. They need Triton beside timm, an environment of its own (`make accuracy-compiled`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import reference_images
import tables
import torch

from understudy import emulate
from understudy.trace.trace import Trace

GPU = "RTX4090"


class Row(NamedTuple):
    """One model's published images a second, eager and compiled, and the versions they were reached with."""

    model: str
    batch: int
    size: int
    torch: str
    cuda: str
    eager: float
    compiled: float

    @property
    def image_row(self) -> reference_images.Row:
        """The eager row of this model, as `reference_images` takes it."""
        return reference_images.Row(
            self.model, GPU, "infer", "nchw", self.batch, self.size, self.torch, self.cuda, self.eager
        )


class Step(NamedTuple):
    """One way of running a model: milliseconds of a step by the program's own clock, and its rows of the trace."""

    ms: float
    begin: int
    end: int


class Run(NamedTuple):
    """A model's eager and compiled step, the band of the whole, and the trace that has both."""

    eager: Step
    compiled: Step
    band: float | None
    trace: Trace


def rows() -> list[Row]:
    """timm's published results that programs here can be compared with."""
    found = []
    for row in tables.read("compiled_models.csv"):
        if row["suite"] == "timm" and not row["model"].startswith(reference_images.REPARAMETRIZED):
            version, _, cuda = row["torch"].partition(" cu")
            found.append(
                Row(
                    row["model"],
                    int(row["batch"]),
                    int(row["size"]),
                    version,
                    f"{cuda[:-1]}.{cuda[-1]}",
                    float(row["eager"]),
                    float(row["compiled"]),
                )
            )
    return found


def run(timm: Any, row: Row) -> Run:
    """Run a model's step eagerly and compiled, each after a warm-up, on the row's GPU.

    Raises:
        RuntimeError: the model does not fit, or needs data.
    """
    of = row.image_row
    with (
        emulate(GPU, no_data=True, assume=1.0, cuda_version=row.cuda) as session,
        torch.backends.cudnn.flags(enabled=True, benchmark=True),
    ):
        model, images = reference_images.made(timm, of)
        steps = []
        for one in (model, torch.compile(model)):
            step = reference_images.step_of(one, of, images)
            steps.append(timed(step, session.trace))
            del step, one
            gc.collect()
        band = session.machine.band()
        del model
        gc.collect()
    return Run(steps[0], steps[1], band, session.trace)


def timed(step: Callable[[], None], trace: Trace) -> Step:
    """A step after a warm-up: the program waits for it, as timm's benchmark does."""
    step()
    torch.cuda.synchronize()
    at, begin = len(trace), time.perf_counter_ns()
    step()
    torch.cuda.synchronize()
    return Step((time.perf_counter_ns() - begin) / 1e6, at, len(trace))
