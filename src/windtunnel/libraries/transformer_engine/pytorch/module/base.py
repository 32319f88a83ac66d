"""`transformer_engine.pytorch.module.base`: what all layers with products have."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn
from weakref import ref

import torch
from torch import nn

from windtunnel.libraries import refuse, unanswered

from ...common.recipe import LIBRARY
from .._linear import Told
from .._scales import Quantized, Scales
from ..quantization import NOW, FP8GlobalStateManager

Tensor = torch.Tensor
Device = torch.device | str
Initialize = Callable[[Tensor], object]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.module.base", name)


def only_one_rank(layer: str, tp_group: object, tp_size: int, others: Mapping[str, object]) -> None:
    """Refuse what is not answered: products of several ranks, and `others` that are neither None nor False."""
    size = tp_size if tp_group is None else torch.distributed.get_world_size(tp_group)  # type: ignore[arg-type]
    if size > 1:
        unanswered(LIBRARY, f"{layer} over several ranks (tp_size {size})", "shard it by FSDP, or play one rank's part")
    for name, value in others.items():
        if value:
            unanswered(LIBRARY, f"{layer} with {name}")


def activation_dtype(x: Tensor) -> torch.dtype:
    """The type of a layer's results: autocast's, else that of what it is given."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


class Where(NamedTuple):
    """Where parameters lie, and their type."""

    device: Device
    dtype: torch.dtype

    def empty(self, *shape: int) -> Tensor:
        """Memory for a parameter."""
        return torch.empty(shape, device=self.device, dtype=self.dtype)


class TransformerEngineBaseModule(nn.Module):
    """A layer whose products may be in 8 bits."""

    products = 1

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.scales: Scales | None = None
        self.kept: dict[int, Quantized] = {}
        self.initialize: dict[str, Initialize] = {}
        self.loaded: list[list[Tensor]] | None = None

    def add(self, name: str, value: Tensor, initialize: Initialize) -> None:
        """A parameter, and how it begins."""
        self.register_parameter(name, nn.Parameter(value))
        self.initialize[name] = initialize

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Let all parameters begin anew."""
        if not defer_init:
            with torch.no_grad():
                for name, initialize in self.initialize.items():
                    initialize(getattr(self, name))

    def set_tensor_parallel_group(self, tp_group: object) -> None:
        """The layer is on one rank."""

    def prepared(self, x: Tensor) -> Tensor:
        """What a layer is given, contiguous.

        Raises:
            RuntimeError: it is not on a GPU.
            TypeError: it is of another type than the parameters, without autocast.
        """
        if not x.is_cuda:
            raise RuntimeError(f"TransformerEngine needs CUDA. Got input on device: {x.device}")
        if not torch.is_autocast_enabled("cuda"):
            for name, parameter in self.named_parameters():
                if parameter.dtype != x.dtype:
                    raise TypeError(
                        "Data types for parameters must match when outside of autocasted region. "
                        f"Found input dtype: {x.dtype} and {name!r} dtype: {parameter.dtype}"
                    )
        return x.contiguous()

    def told(self, x: Tensor, first_microbatch: bool | None) -> list[Told | None]:
        """What each of the layer's products in 8 bits is told; None where they are in the tensors' own type."""
        if not NOW.enabled:
            return [None] * self.products
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        if self.scales is None or self.scales.recipe != recipe:
            self.scales = Scales(recipe, self.products, x.device, NOW.group)
            self.kept.clear()
            self._take_over()
        if recipe.delayed() and not any(one() is self.scales for one in NOW.known):
            NOW.known.append(ref(self.scales))
        last = NOW.first and torch.is_grad_enabled()
        NOW.first = NOW.first and not last
        return [
            Told(self.scales, number, activation_dtype(x), self.kept, first_microbatch, last and number == 0)
            for number in range(self.products)
        ]

    def get_extra_state(self) -> Tensor:
        """The scales and largest numbers as bytes."""
        if self.scales is None or not self.scales.recipe.delayed():
            return torch.empty(0, dtype=torch.uint8)
        buffer = io.BytesIO()
        torch.save([[one.cpu() for one in found] for found in (self.scales.scale, self.scales.history)], buffer)
        return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor | None) -> None:
        """Take them over, once a block has said which recipe holds."""
        if state is not None and state.numel():
            self.loaded = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
            self._take_over()

    def _take_over(self) -> None:
        if self.loaded is None or self.scales is None or not self.scales.recipe.delayed():
            return
        device = self.scales.scale[0].device
        self.scales.scale, self.scales.history = ([one.to(device) for one in found] for found in self.loaded)
        self.loaded = None
