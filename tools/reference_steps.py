"""Training steps of the reference models as operations, without data, and what the cost model says of them.

A step runs once on torch's `meta` device; what it asks for is described by the same code that the emulation uses.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from reference_models import BertForQuestions, ResNet50, TransformerXL
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from understudy import gpus
from understudy.cost import CostModel
from understudy.seam.torch.operators import Plan, signature
from understudy.trace.operation import Signature

CALIBRATION = Path(__file__).resolve().parent / "calibration"
KEYS = {"RTX 3090": "RTX3090"}


class Recorder(TorchDispatchMode):
    """Collects the signature of every operator that would launch a kernel."""

    def __init__(self, tf32: bool) -> None:
        super().__init__()
        self.tf32 = 3 if tf32 else 0
        self.signatures: list[Signature] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        plan = _plan(func)
        if plan.kernel:
            self.signatures.append(signature(func, plan, args, kwargs, out, self.tf32 if plan.math else 0))
        return out


@cache
def _plan(func: Any) -> Plan:
    return Plan(func)


def resnet50(batch: int, dtype: torch.dtype) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], int]:
    """(model, its loss for one batch, samples in it)."""
    images = torch.empty(batch, 3, 224, 224, dtype=dtype, device="meta")
    labels = torch.empty(batch, dtype=torch.long, device="meta")
    return ResNet50(), lambda model: nn.functional.cross_entropy(model(images).float(), labels), batch


def bert(layers: int, hidden: int, heads: int) -> Callable[..., Any]:
    def build(batch: int, dtype: torch.dtype) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], int]:
        tokens = torch.empty(batch, 384, dtype=torch.long, device="meta")
        mask = torch.empty(batch, 1, 1, 384, dtype=dtype, device="meta")
        target = torch.empty(batch, 2, dtype=torch.long, device="meta")

        def loss(model: nn.Module) -> torch.Tensor:
            return nn.functional.cross_entropy(model(tokens, mask).float(), target)

        return BertForQuestions(layers, hidden, heads), loss, batch

    return build


def transformer_xl(layers: int, hidden: int, heads: int, inner: int, length: int, memory: int, divisor: int) -> Any:
    def build(batch: int, dtype: torch.dtype) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], int]:
        tokens = torch.empty(length, batch, dtype=torch.long, device="meta")
        memories = [torch.empty(memory, batch, hidden, dtype=dtype, device="meta") for _ in range(layers)]
        model = TransformerXL(layers, hidden, heads, inner, divisor=divisor)
        return model, lambda model: model(tokens, memories), length * batch

    return build


MODELS: dict[str, tuple[Any, str]] = {
    "resnet50_v1.5": (resnet50, "sgd"),
    "bert-base SQuAD": (bert(12, 768, 12), "adam"),
    "bert-large SQuAD": (bert(24, 1024, 16), "adam"),
    "transformer-xl base": (transformer_xl(16, 512, 8, 2048, 192, 192, 1), "adam"),
    "transformer-xl large": (transformer_xl(18, 1024, 16, 4096, 128, 256, 4), "adam"),
}


def optimizer_step(parameters: list[int], half: bool) -> list[Signature]:
    """A fused Adam step after clipping; with half precision also the copies of gradients and weights."""
    shapes = [(n,) for n in parameters]
    signatures = [
        _lists("_foreach_norm", [shapes], 0, "float32"),
        _lists("_fused_adam_", [shapes] * 4, 3, "float32"),
        _lists("_foreach_zero_", [], 1, "float32", shapes),
    ]
    return signatures + [_lists("_foreach_copy_", [shapes], 1, "float16")] * (3 if half else 0)


def _lists(
    name: str, inputs: list[list[tuple[int, ...]]], outputs: int, dtype: str, of: list[tuple[int, ...]] | None = None
) -> Signature:
    shapes = [shape for one in inputs for shape in one] or (of or [])
    size = (2 if dtype == "float16" else 4) * sum(prod(shape) for shape in (of or inputs[0]))
    read, written = size * len(inputs), size * outputs
    return Signature(f"aten::{name}", tuple(shapes), (dtype,) * len(shapes), len(shapes), 0, read, written)


@cache
def step(name: str, batch: int, half: bool, tf32: bool) -> tuple[tuple[Signature, ...], int]:
    """The operators of one training step, and its samples (tokens)."""
    build, optimizer = MODELS[name]
    dtype = torch.float16 if half else torch.float32
    with torch.device("meta"):
        model, loss, samples = build(batch, dtype)
    model = model.to(dtype)
    recorder = Recorder(tf32)
    with recorder:
        loss(model).backward()
        if optimizer == "sgd" and not half:
            torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=False).step()
    signatures = recorder.signatures
    if optimizer == "adam" or half:
        signatures += optimizer_step([p.numel() for p in model.parameters()], half)
    return tuple(signatures), samples


def step_ns(cost: CostModel, signatures: tuple[Signature, ...], steps: int = 3) -> int:
    """The length of a step once the pipeline is full: one host thread that dispatches, one stream that works."""
    prices = {one: (cost.dispatch_ns(one.name), cost.kernel(one).duration_ns) for one in set(signatures)}
    host = ready = before = 0
    for _ in range(steps):
        before = max(host, ready)
        for one in signatures:
            dispatch, duration = prices[one]
            host += dispatch
            ready = max(ready, host + cost.launch_ns) + duration
    return max(host, ready) - before


def rows() -> list[dict[str, str]]:
    """Published throughput on one GPU of the models that are written here."""
    found = []
    for row in read("training_throughput.csv"):
        if row["model"] in MODELS and row["n_gpus"] == "1" and row["metric"] == "throughput":
            row["key"] = gpus.find(KEYS.get(row["gpu"], row["gpu"])).key
            row["kind"] = "fp16" if "fp16" in row["precision"] else "tf32" if "TF32" in row["precision"] else "fp32"
            found.append(row)
    return found


def read(name: str) -> list[dict[str, str]]:
    """A table of `calibration/`."""
    with (CALIBRATION / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predict(row: dict[str, str]) -> float:
    """Samples (or tokens) a second on the row's GPU."""
    signatures, samples = step(row["model"], int(row["batch"]), row["kind"] == "fp16", row["kind"] == "tf32")
    return samples * 1e9 / step_ns(CostModel(gpus.find(row["key"])), signatures)
