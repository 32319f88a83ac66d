"""What a model may give the Trainer: a training step, an optimizer, a board; and the documents' small helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windtunnel.errors import UsageError
from windtunnel.train.board import Board
from windtunnel.train.hooks import HyperParameters

if TYPE_CHECKING:
    from windtunnel.train.training import Training


class Module(nn.Module, HyperParameters):
    """A model that knows how to train itself. Override `loss` and `configure_optimizers`, or whole steps.

    A step gets a batch on the model's device and returns the mean loss over it (a scalar tensor), or a dict of such
    scalars with the key "loss"; the other entries are averaged and logged as well.
    """

    trainer: Training | None = None

    def __init__(self) -> None:
        super().__init__()
        self.board = Board()

    def loss(self, outputs: object, target: object) -> torch.Tensor:
        raise UsageError(f"{type(self).__name__} has no loss: define loss(outputs, target), or give loss= to fit.")

    def training_step(self, batch: Any) -> torch.Tensor | dict[str, torch.Tensor]:
        *inputs, target = batch
        return self.loss(self(*inputs), target)

    def validation_step(self, batch: object) -> torch.Tensor | dict[str, torch.Tensor]:
        return self.training_step(batch)

    def predict_step(self, batch: Any) -> Any:
        return self(batch) if isinstance(batch, torch.Tensor) else self(*batch)

    def configure_optimizers(self) -> Any:
        """An optimizer, or (optimizer, learning-rate scheduler)."""
        raise UsageError(
            f"{type(self).__name__} has no optimizer: define configure_optimizers(), or give optimizer= to fit."
        )


def set_scratch_params_device(model: object, device: torch.device) -> None:
    """Move trainable tensors that are plain attributes, which `nn.Module.to` ignores, also in lists of modules.

    They remain the same objects and autograd leaves, so an optimizer that holds them keeps working.
    """
    for value in vars(model).values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor) and item.requires_grad and item.is_leaf:
                item.data = item.data.to(device)
            elif isinstance(item, nn.Module) and item is not model:
                item.to(device)
                set_scratch_params_device(item, device)
    for child in model.children() if isinstance(model, nn.Module) else ():
        set_scratch_params_device(child, device)
