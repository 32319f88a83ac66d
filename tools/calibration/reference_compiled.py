"""Image models of timm, eager and compiled, and what timm published of both on one card.

The programs are those of timm's `benchmark.py --torchcompile inductor`: AMP in float16, inference, the default mode of
`torch.compile`. They need Triton beside timm, an environment of its own (`make accuracy-compiled`).
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import record_steps
import reference_images
import tables
import torch
from record_steps import HELD_OUT_SEED, SEED
from torch import Tensor, nn

from windtunnel import emulate
from windtunnel.trace.trace import Trace

GPU = "RTX4090"
PRICED = 250
"""How many rows, in the order of `SEED`, earlier runs of `make accuracy-images` and `accuracy-compiled` had printed."""
NOT_DRAWN = "sam2_hiera"
"""Models that were left out of the draws: without data their initialization never ended, until 2026-11-26."""


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


class DashboardRow(NamedTuple):
    """A training step of TorchInductor's dashboard: its model in timm, `reduce-overhead` or not, and the speed-up."""

    model: str
    kind: str
    batch: int
    speedup: float


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


DASHBOARD = {
    "timm_vision_transformer": "vit_small_patch16_224",
    "densenet121": "densenet121",
    "mobilenet_v3_large": "mobilenetv3_large_100",
    "regnety_002": "regnety_002",
    "ghostnet_100": "ghostnet_100",
    "lcnet_050": "lcnet_050",
    "twins_pcpvt_base": "twins_pcpvt_base",
}
"""Models of the dashboard that timm has, or has the like of."""


def dashboard_rows() -> list[DashboardRow]:
    """The dashboard's speed-ups that programs here can be compared with."""
    return [
        DashboardRow(
            DASHBOARD[row["model"]],
            "reduce-overhead" if "(cudagraphs)" in row["mode"] else "default",
            int(row["batch"]),
            float(row["speedup"]),
        )
        for row in tables.read("compiled_models.csv")
        if row["model"] in DASHBOARD and row["mode"].startswith("training")
    ]


def train(timm: Any, row: DashboardRow) -> float:
    """The speed-up of a training step, forward and backward with AMP, on an emulated A100."""
    with emulate("A100-SXM4-40GB", no_data=True, assume=1.0, cuda_version="11.8") as session:
        with torch.device("cuda"):
            model = timm.create_model(row.model).train()
            images = torch.zeros(row.batch, 3, 224, 224)
        compiled = torch.compile(model, mode=None if row.kind == "default" else row.kind)
        lengths = []
        for run in (model, compiled):
            step = training_step(run, images)
            step()  # a CUDA graph is recorded at the second call
            lengths.append(timed(step, session.trace).ms)
            del step, run
            gc.collect()
        del model, compiled
        gc.collect()
    return lengths[0] / lengths[1]


def training_step(run: nn.Module, images: Tensor) -> Callable[[], None]:
    """Forward and backward with AMP, without an optimizer."""

    def step() -> None:
        run.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = run(images).sum()
        loss.backward()

    return step


def chosen(most: int, begin: int = 0) -> list[Row]:
    """So many rows from number `begin` on, in an order that a seed gives."""
    found = rows()
    random.Random(SEED).shuffle(found)
    return found[begin : begin + most]


def held_out(most: int) -> list[Row]:
    """So many rows that judge alone, drawn by `HELD_OUT_SEED` from models that no command had priced before."""
    known = {one.model for name in ("image_steps.json.gz", "compiled_steps.json.gz") for one in record_steps.read(name)}
    known |= {row.model for row in (*reference_images.in_order()[:PRICED], *chosen(PRICED))}
    found = [row for row in rows() if row.model not in known and not row.model.startswith(NOT_DRAWN)]
    random.Random(HELD_OUT_SEED).shuffle(found)
    return found[:most]


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
            torch.cuda.empty_cache()  # timm has a process for each
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
