"""Image models of timm, run without data on an emulated GPU, and what timm published of them.

The programs are those of timm's `benchmark.py`: AMP in float16, `cudnn.benchmark`, random images, SGD with momentum in
training. timm is in an environment of its own (`make accuracy-images`); of torchvision, whose builds do not load beside
a CPU build of torch, only Python is needed, so its operators are declared here.

From torch 2 on layer and group norms run in 16 bits, as timm's `--fast-norm` has them. The rows do not say so, but each
file of results is one run of one script, and the files of the RTX 4090 show it: davit_huge_fl's and BiT's
resnetv2_101x3's published batches do not fit the card otherwise (23.4 GiB for BiT's tensors alone), and CLIP's ViTs,
whose norm before the first block decides the type of the residual stream, are up to 12 % faster than ViTs without one.
The RTX 3090's of torch 2.4 are assumed to be alike; in those of torch 1.12 norms run in FP32, as autocast has them.
"""

from __future__ import annotations

import contextlib
import gc
import random
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tools.corpus import steps, tables
from tools.corpus.recordings import SEED

KEYS = {"RTX 3090": "RTX3090", "RTX 4090": "RTX4090"}
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
REPARAMETRIZED = ("fastvit", "ghostnetv3", "mobileone", "repghostnet", "repvgg", "repvit")
"""Families whose branches timm's benchmark merges before it measures, which the programs here do not."""


class ImageRow(NamedTuple):
    """One published result: images a second, and the versions it was reached with."""

    model: str
    gpu: str
    mode: str
    layout: str
    batch: int
    size: int
    torch: str
    cuda: str
    throughput: float

    @property
    def group(self) -> str:
        return f"{self.gpu} {self.mode} {self.layout}"

    @property
    def ms(self) -> float:
        return 1000.0 * self.batch / self.throughput


def rows() -> list[ImageRow]:
    """The published results that programs here can be compared with."""
    found = []
    for row in tables.read("image_models.csv"):
        sizes = int(row["batch"]), int(row["size"])
        where = KEYS[row["gpu"]], row["mode"], row["layout"]
        found.append(ImageRow(row["model"], *where, *sizes, row["torch"], row["cuda"], float(row["images_per_s"])))
    return [row for row in found if not row.model.startswith(REPARAMETRIZED)]


def in_order() -> list[ImageRow]:
    """The rows of the RTX 3090, and after them the others in an order that a seed gives."""
    found = rows()
    others = [row for row in found if row.gpu != "RTX3090"]
    random.Random(SEED).shuffle(others)
    return [*(row for row in found if row.gpu == "RTX3090"), *others]


def import_timm() -> Any:
    """timm, without torchvision's compiled operators.

    Raises:
        ModuleNotFoundError: timm is not installed here.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    warnings.simplefilter("ignore")
    import timm

    return timm


def step_of(model: nn.Module, row: ImageRow, images: Tensor) -> Callable[[], None]:
    """One step as timm's benchmark takes it."""
    if row.mode == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode(), torch.autocast("cuda", torch.float16):
                model(images)

        return infer
    labels = torch.zeros(row.batch, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, nesterov=True, foreach=False)

    def train() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return train


def create(timm: Any, row: ImageRow) -> Any:
    """The row's model for images of the row's size."""
    known = timm.get_pretrained_cfg(row.model)
    if known is None or known.input_size[-1] != row.size:
        with contextlib.suppress(TypeError):  # a convolutional model takes images of any size
            return timm.create_model(row.model, img_size=row.size)
    return timm.create_model(row.model)


def made(timm: Any, row: ImageRow) -> tuple[nn.Module, Tensor]:
    """A row's model and batch of images, on the GPU, with timm's settings of its time."""
    timm.layers.set_fused_attn(row.torch >= "2")  # timm of torch 1.12 had attention written out
    timm.layers.set_fast_norm(row.torch >= "2")
    with torch.device("cuda"):
        model = create(timm, row).to(memory_format=FORMATS[row.layout])
        images = torch.zeros(row.batch, 3, row.size, row.size).to(memory_format=FORMATS[row.layout])
    return model, images


def why(error: RuntimeError) -> str:
    """Why a model was left out, in a few words."""
    return str(error).partition(". GPU")[0].splitlines()[0]


def run(timm: Any, row: ImageRow) -> steps.Step:
    """The second step on the row's GPU.

    Raises:
        RuntimeError: the model does not fit, or needs data.
    """
    with (
        steps.emulated(row.gpu, row.cuda) as session,
        torch.backends.cudnn.flags(enabled=True, benchmark=True),
    ):
        model, images = made(timm, row)
        with torch.device("cuda"):
            step = step_of(model, row, images)
            found = steps.timed(step, session)
        del step, model
        gc.collect()
    return found
