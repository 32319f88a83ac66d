"""The precision of training: what autocast does, whether losses are scaled, what float32 products may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, get_args

import torch

from windtunnel.errors import UsageError

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]


class Precision:
    """fp32 · tf32 (float32 with TensorFloat-32 products) · bf16 (autocast) · fp16 (autocast, scaled losses)."""

    def __init__(self, name: PrecisionName) -> None:
        if name not in get_args(PrecisionName):
            choices = ", ".join(repr(choice) for choice in get_args(PrecisionName))
            raise UsageError(f"precision {name!r} is unknown: choose one of {choices}.")
        self.name = name
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler | None:
        """A gradient scaler for fp16, otherwise None."""
        return torch.amp.GradScaler(device.type) if self.name == "fp16" else None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Allows TensorFloat-32 products in a block, if this precision uses them."""
        if self.name != "tf32":
            yield
            return
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
