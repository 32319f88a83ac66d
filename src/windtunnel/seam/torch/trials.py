"""Changes of a program that a plan tries without changing it: each is put into the libraries for one rehearsal.

`WINDTUNNEL_TRIAL` names the change. What it replaces goes back as everything else of the emulation does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from windtunnel.import_hook import hook
from windtunnel.seam.patching import Patch

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

Replace = Callable[[list[Patch]], None]


def begin(trial: str, replace: Replace) -> None:
    """Arrange the change named `trial`; one that is not known changes nothing.

    Args:
        trial: a key of `TRIALS`.
        replace: takes names to replace until the emulation's end.
    """
    if trial in TRIALS:
        TRIALS[trial](replace)


def _fused(replace: Replace) -> None:
    """`fused=True` for the optimizers that have it and were given neither form."""
    replace([Patch(optimizer, "__init__", _with_fused(optimizer.__init__)) for optimizer in FUSED])


def _with_fused(stock: Callable[..., None]) -> Callable[..., None]:
    @wraps(stock)
    def initialize(self: object, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("foreach") is None and kwargs.get("fused") is None:
            kwargs["fused"] = True
        stock(self, *args, **kwargs)

    return initialize


def _tf32(replace: Replace) -> None:
    """`torch.set_float32_matmul_precision("high")` and cuDNN's the same, which is its default."""
    torch.set_float32_matmul_precision("high")


def _checkpointing(replace: Replace) -> None:
    """`gradient_checkpointing_enable()` of every model of transformers that supports it."""

    def imported() -> None:
        model = sys.modules["transformers.modeling_utils"].PreTrainedModel
        stock = model.post_init

        @wraps(stock)
        def post_init(self: Any) -> None:
            stock(self)
            if self.supports_gradient_checkpointing:
                self.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

        replace([Patch(model, "post_init", post_init)])

    hook({"transformers.modeling_utils": imported})


def _autocast(replace: Replace) -> None:
    """Autocast around each call of a whole model, in bfloat16 where the GPU has it; its own autocast goes before."""
    stock = torch.nn.Module.__call__
    inside = False

    @wraps(stock)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or torch.is_autocast_enabled("cuda"):
            return stock(self, *args, **kwargs)
        new = torch.cuda.get_device_capability() >= (8, 0)
        inside = True
        try:
            with torch.autocast("cuda", torch.bfloat16 if new else torch.float16):
                return stock(self, *args, **kwargs)
        finally:
            inside = False

    replace([Patch(torch.nn.Module, "__call__", call)])


TRIALS: dict[str, Callable[[Replace], None]] = {
    "fused": _fused, "tf32": _tf32, "checkpointing": _checkpointing, "autocast": _autocast,
}  # fmt: skip
