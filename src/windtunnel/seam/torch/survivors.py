"""Tensors of the program that live on a device when an emulation ends before the process does, as in a notebook.

Afterwards they are ordinary CPU tensors, whose use would compute something silently on the CPU, in a program that was
written for a GPU. So either they are moved on purpose, or their class becomes one that refuses every function
(`__torch_function__`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import torch

from windtunnel.errors import EmulationEndedError
from windtunnel.seam.living import living
from windtunnel.seam.torch.tags import storage_of


class Ended(torch.Tensor):
    """A tensor that lived on an emulated GPU which is there no more."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> NoReturn:
        """Refuse every use."""
        raise EmulationEndedError(
            "this tensor lived on an emulated GPU, and the emulation has ended: create it again, or turn such "
            "tensors into CPU tensors with `windtunnel.stop(move=True)` (`%gpus off --move`)"
        )


class EndedParameter(torch.nn.Parameter):
    """A parameter of that kind."""

    __torch_function__ = Ended.__torch_function__


def on_devices() -> list[torch.Tensor]:
    """Every tensor of this process that lives on an emulated GPU, gradients included."""
    found: dict[int, torch.Tensor] = {}
    for value in living(torch.Tensor):
        found.update((id(tensor), tensor) for tensor in _with_gradient(value) if _device(tensor) >= 0)
    return list(found.values())


def _with_gradient(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    yield tensor
    if type(tensor) not in (Ended, EndedParameter) and tensor.is_leaf and tensor.grad is not None:
        yield tensor.grad


def _device(tensor: torch.Tensor) -> int:
    try:
        return int(storage_of(tensor)._wt.device)
    except (NotImplementedError, RuntimeError, AttributeError):  # sparse, or a wrapper without a storage of its own
        return -1


def leave(tensors: Sequence[torch.Tensor], move: bool) -> None:
    """Make them tensors of the CPU, or of the kind that refuses every use."""
    for tensor in tensors:
        storage = storage_of(tensor)
        if "_wt" in vars(storage):
            del storage._wt
        if not move:
            tensor.__class__ = EndedParameter if isinstance(tensor, torch.nn.Parameter) else Ended
