"""`transformer_engine.pytorch.module.layernorm_mlp`: a norm, a product, an activation, a product."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.described import kernel
from windtunnel.libraries import refuse

from ...common.recipe import LIBRARY
from .._linear import linear
from .base import Device, Initialize, TransformerEngineBaseModule, Where, activation_dtype, only_one_rank
from .linear import NORMAL, add_norm, norm_of

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.module.layernorm_mlp", name)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu, "qgelu": _quick_gelu, "relu": F.relu, "srelu": _squared_relu, "silu": F.silu,
}  # fmt: skip
GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "geglu": _gelu, "qgeglu": _quick_gelu, "reglu": F.relu, "sreglu": _squared_relu, "swiglu": F.silu,
    "glu": torch.sigmoid,
}  # fmt: skip
"""Activations of the first half, which the second half is multiplied with."""


@kernel("transformer_engine::activation", like="aten::silu", define="(Tensor x, Tensor? bias, str name) -> Tensor")
def _activation(x, bias, name):  # type: ignore[no-untyped-def]
    wide = x.float() if bias is None else x.float() + bias.float()
    if name in PLAIN:
        return PLAIN[name](wide).to(x.dtype)
    first, second = wide.chunk(2, -1)
    return (GATED[name](first) * second).to(x.dtype)


class LayerNormMLP(TransformerEngineBaseModule):
    """The part of a transformer that follows attention."""

    products = 2

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: object = None,
        tp_group: object = None,
        tp_size: int = 1,
        init_method: Initialize | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: dict[str, float] | None = None,
        output_layer_init_method: Initialize | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: Device = "cuda",
        name: str | None = None,
        **others: object,
    ) -> None:
        super().__init__(name)
        assert normalization in ["LayerNorm", "RMSNorm"], "Unsupported normalization type!"
        if activation not in {*PLAIN, *GATED, "clamped_swiglu"}:
            raise NotImplementedError(f"Activation type {activation} is not supported!")
        unknown = {**others, "sequence_parallel": sequence_parallel, "fuse_wgrad_accumulation": fuse_wgrad_accumulation}
        unknown |= {"activation_params": activation_params, "clamped_swiglu": activation == "clamped_swiglu"}
        unknown.pop("ub_name", None)
        only_one_rank("LayerNormMLP", tp_group, tp_size, unknown)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.activation, self.use_bias, self.return_bias = activation, bias, return_bias
        self.return_layernorm_output = return_layernorm_output
        where = Where(device, params_dtype or torch.get_default_dtype())
        add_norm(self, hidden_size, where, normalization, zero_centered_gamma)
        inner = ffn_hidden_size * (2 if activation in GATED else 1)
        begin = (init_method or NORMAL, output_layer_init_method or NORMAL)
        for place, shape in enumerate(((inner, hidden_size), (hidden_size, ffn_hidden_size))):
            self.add(f"fc{place + 1}_weight", where.empty(*shape), begin[place])  # type: ignore[arg-type]
            made = where.empty(shape[0] if bias else 0)  # type: ignore[arg-type]
            if bias:
                self.add(f"fc{place + 1}_bias", made, nn.init.zeros_)
            else:
                setattr(self, f"fc{place + 1}_bias", made)
        self.reset_parameters(defer_init=str(device) == "meta")

    def _weights(self, number: int) -> tuple[Tensor, Tensor | None]:
        return getattr(self, f"fc{number}_weight"), getattr(self, f"fc{number}_bias") if self.use_bias else None

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor | tuple[Tensor | None, ...]:
        """The norm through both products; with the second bias and the norm where they were asked for."""
        x = self.prepared(inp)
        dtype = activation_dtype(x)
        told = self.told(x, is_first_microbatch)
        norm = norm_of(self, x)
        (first, first_bias), (second, second_bias) = self._weights(1), self._weights(2)
        fused = self.activation == "gelu"  # the bias is added in the activation's kernel
        between = linear(norm, first, None if fused else first_bias, dtype, told[0])
        active = torch.ops.transformer_engine.activation(between, first_bias if fused else None, self.activation)
        out = linear(active, second, None if self.return_bias else second_bias, dtype, told[1])
        results: tuple[Tensor | None, ...] = (out,)
        if self.return_bias:
            results += (None if second_bias is None else second_bias.to(dtype),)
        if self.return_layernorm_output:
            results += (norm,)
        return results if len(results) > 1 else out
