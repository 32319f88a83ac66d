"""What a training leaves behind, and where two of them differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch


@dataclass
class TrainerOutcome:
    """All on the CPU, as plain values and tensors."""

    weights: list[torch.Tensor] = field(default_factory=list)  # parameters and buffers of the model
    loss_weights: list[torch.Tensor] = field(default_factory=list)
    optimizer: list[dict[str, Any]] = field(default_factory=list)  # state by parameter, in the order of the groups
    groups: list[dict[str, Any]] = field(default_factory=list)
    scheduler: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    logged: dict[int, Any] = field(default_factory=dict)  # what loggers were given while it trained, by step
    logged_before: dict[int, Any] = field(default_factory=dict)  # by a first process that has ended
    rows: list[Any] = field(default_factory=list)  # (step, what loggers were given at the end of an epoch)
    seen: list[Any] = field(default_factory=list)  # what callbacks measured
    predictions: list[torch.Tensor] = field(default_factory=list)
    modes: list[bool] = field(default_factory=list)  # training or eval, of every part of the model
    left: dict[str, Any] = field(default_factory=dict)  # the user's data, generators and samplers afterwards
    steps: int = 0


TOLERANCE = {"fp32": 2e-4, "fp16": 2e-2, "bf16": 5e-2}


def differences(plain: TrainerOutcome, trained: TrainerOutcome, tolerance: float) -> list[str]:
    """A line for each part that differs; relative to the size of what is compared."""
    lines = []
    for part in fields(TrainerOutcome):
        found = _compare(getattr(plain, part.name), getattr(trained, part.name), tolerance, part.name)
        if found:
            lines.append(found)
    return lines


def _compare(plain: Any, trained: Any, tolerance: float, path: str) -> str:
    """Where the first difference is, "" where there is none."""
    if isinstance(plain, torch.Tensor) and isinstance(trained, torch.Tensor):
        return _compare_tensors(plain, trained, tolerance, path)
    if isinstance(plain, torch.Tensor) or isinstance(trained, torch.Tensor):
        return _compare(_number(plain), _number(trained), tolerance, path)
    if isinstance(plain, dict) and isinstance(trained, dict):
        if plain.keys() != trained.keys():
            return f"{path}: plain has {sorted(map(str, plain))}, the Trainer {sorted(map(str, trained))}"
        pairs = [(plain[key], trained[key], f"{path}.{key}") for key in plain]
    elif isinstance(plain, list | tuple) and isinstance(trained, list | tuple):
        if len(plain) != len(trained):
            return f"{path}: plain has {len(plain)} entries, the Trainer {len(trained)}"
        pairs = [(one, two, f"{path}[{i}]") for i, (one, two) in enumerate(zip(plain, trained, strict=True))]
    elif isinstance(plain, float) or isinstance(trained, float):
        same = _close(plain, trained, tolerance)
        return "" if same else f"{path}: plain {plain!r}, the Trainer {trained!r}"
    else:
        return "" if plain == trained else f"{path}: plain {plain!r}, the Trainer {trained!r}"
    return next((found for one, two, where in pairs if (found := _compare(one, two, tolerance, where))), "")


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _close(one: float, two: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    return math.isclose(one, two, rel_tol=tolerance, abs_tol=tolerance * 0.05)


def _compare_tensors(plain: torch.Tensor, trained: torch.Tensor, tolerance: float, path: str) -> str:
    if plain.shape != trained.shape:
        return f"{path}: plain has shape {tuple(plain.shape)}, the Trainer {tuple(trained.shape)}"
    one, two = plain.double(), trained.double()
    scale = max(1e-2, float(one.abs().max()) if one.numel() else 0.0)
    if torch.allclose(one, two, rtol=0, atol=tolerance * scale, equal_nan=True):
        return ""
    return f"{path}: differs by up to {float((one - two).abs().max()):.3g} of {scale:.3g}"
