"""One process, several GPUs: PyTorch's DataParallel splits each batch along its first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from windtunnel import torch as wt
from windtunnel.train.modes import eval_mode
from windtunnel.train.reproducible import random_state, restore_random_state
from windtunnel.train.strategies.single import SingleDevice


class DataParallel(SingleDevice):
    """A batch of 128 on 2 GPUs is 64 + 64, on 3 GPUs 43 + 43 + 42; fewer samples than GPUs leave some idle.

    Outputs are gathered on the first GPU, where the loss is computed, so the gradient is that of the whole batch.
    """

    name = "dp"

    def setup(self, gpus: Sequence[torch.device]) -> None:
        self.gpus = list(gpus)
        self.splits_batches = len(self.gpus) > 1

    def place(self, model: nn.Module) -> nn.Module:
        super().place(model)
        if len(self.gpus) < 2:
            return model
        return _Replicas(model, self.gpus)


class _Replicas(nn.DataParallel[nn.Module]):
    """PyTorch's DataParallel gives lists of names and dataclasses whole to every replica; this divides them too.

    Lazy layers whose weights have been loaded cannot be replicated before a forward pass all the same: they get one.
    """

    def __init__(self, model: nn.Module, device_ids: Sequence[torch.device]) -> None:
        super().__init__(model, device_ids)
        self.has_lazy = any(isinstance(part, LazyModuleMixin) for part in model.modules())

    def forward(self, *inputs: object, **kwargs: object) -> object:
        if self.has_lazy:
            self.has_lazy, random = False, random_state()
            with torch.no_grad(), eval_mode(self.module):
                self.module(*wt.map_tensors(torch.clone, inputs), **kwargs)
            restore_random_state(random)
        return super().forward(*inputs, **kwargs)

    def scatter(self, inputs: tuple[object, ...], kwargs: dict[str, object] | None, device_ids: Any) -> object:
        tensors = {id(tensor): tensor for tensor in wt.tensors_in(inputs)}
        divided = [key for key, tensor in tensors.items() if tensor.dim()]
        scattered, empty = super().scatter((tuple(tensors[key] for key in divided),), kwargs, device_ids)
        parts, begin = [], 0
        for device, (own,) in zip(device_ids, scattered, strict=False):
            there = dict(zip(divided, own, strict=True))
            rows = len(own[0]) if own else 0
            parts.append(_part(inputs, tensors, there, torch.device("cuda", device), slice(begin, begin + rows)))
            begin += rows
        return tuple(parts), empty


def _part(
    inputs: object, tensors: dict[int, torch.Tensor], there: dict[int, torch.Tensor], device: torch.device, rows: slice
) -> object:
    """One replica's part: its rows of tensors and of lists with one entry per row, and scalars unchanged."""
    total = len(next(tensor for key, tensor in tensors.items() if key in there)) if there else -1

    def part(tensor: torch.Tensor) -> torch.Tensor:
        return there[id(tensor)] if id(tensor) in there else tensor.to(device, non_blocking=True)

    return wt.map_tensors(part, inputs, names=lambda names: names[rows] if len(names) == total else names)
