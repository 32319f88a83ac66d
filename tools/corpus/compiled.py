"""Image models of timm, eager and compiled, and what timm published of both on one card.

The programs are those of timm's `benchmark.py --torchcompile inductor`: AMP in float16, inference, the default mode of
`torch.compile`. They need Triton beside timm, an environment of its own (`make accuracy-compiled`).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tools.corpus import images, recordings, steps, tables
from tools.corpus.images import why as why
from tools.corpus.recordings import COMPILED_STEPS, EAGER_STEPS, HELD_OUT_SEED, SEED

GPU = "RTX4090"
PRICED = 250
"""How many rows, in the order of `SEED`, earlier runs of `make accuracy-images` and `accuracy-compiled` had printed."""
NOT_DRAWN = "sam2_hiera"
"""Models that were left out of the draws: without data their initialization never ended, until 2026-11-26."""


class CompiledRow(NamedTuple):
    """One model's published images a second, eager and compiled, and the versions they were reached with."""

    model: str
    batch: int
    size: int
    torch: str
    cuda: str
    eager: float
    compiled: float
    gpu: str = GPU

    @property
    def image_row(self) -> images.ImageRow:
        """The eager row of this model, as `images` takes it."""
        return images.ImageRow(
            self.model, GPU, "infer", "nchw", self.batch, self.size, self.torch, self.cuda, self.eager
        )


class DashboardRow(NamedTuple):
    """A training step of TorchInductor's dashboard: its model in timm, `reduce-overhead` or not, and the speed-up."""

    model: str
    kind: str
    batch: int
    speedup: float


def rows() -> list[CompiledRow]:
    """timm's published results that programs here can be compared with."""
    found = []
    for row in tables.read("compiled_models.csv"):
        if row["suite"] == "timm" and not row["model"].startswith(images.REPARAMETRIZED):
            version, _, cuda = row["torch"].partition(" cu")
            both = float(row["eager"]), float(row["compiled"])
            found.append(
                CompiledRow(
                    row["model"], int(row["batch"]), int(row["size"]), version, f"{cuda[:-1]}.{cuda[-1]}", *both
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
    with steps.emulated("A100-SXM4-40GB", "11.8") as session:
        with torch.device("cuda"):
            model = timm.create_model(row.model).train()
            batch = torch.zeros(row.batch, 3, 224, 224)
        compiled = torch.compile(model, mode=None if row.kind == "default" else row.kind)
        lengths = []
        for run in (model, compiled):
            step = training_step(run, batch)
            step()  # a CUDA graph is recorded at the second call
            lengths.append(steps.timed(step, session).ms)
            del step, run
            gc.collect()
        del model, compiled
        gc.collect()
    return lengths[0] / lengths[1]


def training_step(run: nn.Module, batch: Tensor) -> Callable[[], None]:
    """Forward and backward with AMP, without an optimizer."""

    def step() -> None:
        run.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = run(batch).sum()
        loss.backward()

    return step


def chosen(most: int, begin: int = 0) -> list[CompiledRow]:
    """So many rows from number `begin` on, in an order that a seed gives."""
    found = rows()
    random.Random(SEED).shuffle(found)
    return found[begin : begin + most]


def held_out(most: int) -> list[CompiledRow]:
    """So many rows that judge alone, drawn by `HELD_OUT_SEED` from models that no command had priced before."""
    known = {one.model for name in (EAGER_STEPS, COMPILED_STEPS) for one in recordings.read(name)}
    known |= {row.model for row in images.in_order()[:PRICED]} | {row.model for row in chosen(PRICED)}
    found = [row for row in rows() if row.model not in known and not row.model.startswith(NOT_DRAWN)]
    random.Random(HELD_OUT_SEED).shuffle(found)
    return found[:most]


def run(timm: Any, row: CompiledRow) -> tuple[steps.Step, steps.Step]:
    """A model's step eagerly and compiled, each after a warm-up, on the row's GPU; the latter's band is that of both.

    Raises:
        RuntimeError: the model does not fit, or needs data.
    """
    of = row.image_row
    with (
        steps.emulated(GPU, row.cuda) as session,
        torch.backends.cudnn.flags(enabled=True, benchmark=True),
    ):
        model, batch = images.made(timm, of)
        found = []
        for one in (model, torch.compile(model)):
            step = images.step_of(one, of, batch)
            found.append(steps.timed(step, session))
            del step, one
            gc.collect()
            torch.cuda.empty_cache()  # timm has a process for each
        del model
        gc.collect()
    return found[0], found[1]
