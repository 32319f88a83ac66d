"""`transformer_engine.pytorch.module.linear` and `.layernorm_linear`: a product with weights, after a norm or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse

from ...common.recipe import LIBRARY
from .._linear import joined, linear
from .base import Device, Initialize, TransformerEngineBaseModule, Where, activation_dtype, only_one_rank
from .layernorm import normalized

Tensor = torch.Tensor
Split = Mapping[str, int] | Sequence[str]
NORMAL: Initialize = partial(nn.init.normal_, mean=0.0, std=0.023)


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.module.linear", name)


class Linear(TransformerEngineBaseModule):
    """x @ weight.T + bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: object = None,
        tp_size: int = 1,
        get_rng_state_tracker: object = None,
        rng_tracker_name: str | None = None,
        init_method: Initialize | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Split | None = None,
        device: Device = "cuda",
        name: str | None = None,
        **others: object,
    ) -> None:
        super().__init__(name)
        unknown = {**others, "sequence_parallel": sequence_parallel, "fuse_wgrad_accumulation": fuse_wgrad_accumulation}
        unknown.pop("ub_name", None)
        only_one_rank(type(self).__name__, tp_group, tp_size, unknown)
        assert parallel_mode in (None, "column", "row"), f"parallel_mode {parallel_mode} not supported"
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias, self.parallel_mode = bias, return_bias, parallel_mode
        where = Where(device, params_dtype or torch.get_default_dtype())
        self.weight_names, self.bias_names = self._add(where, init_method or NORMAL, parameters_split)
        self.reset_parameters(defer_init=str(device) == "meta")

    def _add(self, where: Where, initialize: Initialize, split: Split | None) -> tuple[list[str], list[str]]:
        """Make the weights and biases, in one tensor each; their names."""
        sizes = _split(self.out_features, split)
        weights = where.empty(self.out_features, self.in_features)  # type: ignore[arg-type]
        begin = {prefix: start for start, prefix in zip(_starts(list(sizes.values())), sizes, strict=True)}
        names = [[f"{prefix}{kind}" for prefix in sizes] for kind in ("weight", "bias")]
        for name, (prefix, size) in zip(names[0], sizes.items(), strict=True):
            self.add(name, weights[begin[prefix] : begin[prefix] + size], initialize)
        biases = where.empty(self.out_features if self.use_bias else 0)  # type: ignore[arg-type]
        for name, (prefix, size) in zip(names[1], sizes.items(), strict=True):
            if self.use_bias:
                self.add(name, biases[begin[prefix] : begin[prefix] + size], nn.init.zeros_)
            else:
                setattr(self, name, biases)
        return names[0], names[1]

    def product(self, x: Tensor, is_first_microbatch: bool | None) -> Tensor | tuple[Tensor, Tensor | None]:
        """The product, with the bias or beside it."""
        weight = joined([getattr(self, name) for name in self.weight_names])
        bias = joined([getattr(self, name) for name in self.bias_names]) if self.use_bias else None
        dtype = activation_dtype(x)
        (told,) = self.told(x, is_first_microbatch)
        out = linear(x, weight, None if self.return_bias else bias, dtype, told)
        return (out, None if bias is None else bias.to(dtype)) if self.return_bias else out

    def forward(
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool | None = False,
        fp8_grad: bool | None = False,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """The product."""
        only_one_rank("Linear", None, 1, {"fp8_output": fp8_output, "fp8_grad": fp8_grad})
        return self.product(self.prepared(inp), is_first_microbatch)


class LayerNormLinear(Linear):
    """A norm and the product of it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: object = None,
        tp_size: int = 1,
        get_rng_state_tracker: object = None,
        init_method: Initialize | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Split | None = None,
        zero_centered_gamma: bool = False,
        device: Device = "cuda",
        name: str | None = None,
        **others: object,
    ) -> None:
        assert normalization in ["LayerNorm", "RMSNorm"], "Unsupported normalization type!"
        if parallel_mode == "row":
            raise NotImplementedError("Normalization does not support tensor-parallel distribution.")
        self._norm = eps, normalization, zero_centered_gamma, params_dtype or torch.get_default_dtype()
        super().__init__(
            in_features, out_features, sequence_parallel, fuse_wgrad_accumulation, tp_group, tp_size,
            init_method=init_method, bias=bias, return_bias=return_bias, params_dtype=params_dtype,
            parallel_mode=parallel_mode, parameters_split=parameters_split, device=device, name=name, **others,  # type: ignore[arg-type]
        )  # fmt: skip
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output

    def _add(self, where: Where, initialize: Initialize, split: Split | None) -> tuple[list[str], list[str]]:
        add_norm(self, self.in_features, where, self._norm[1], self._norm[2])
        return super()._add(where, initialize, split)

    def forward(  # type: ignore[override]
        self, inp: Tensor, is_first_microbatch: bool | None = None, fp8_output: bool | None = False
    ) -> Tensor | tuple[Tensor | None, ...]:
        """The product of the norm, and the norm where it was asked for."""
        only_one_rank("LayerNormLinear", None, 1, {"fp8_output": fp8_output})
        norm = norm_of(self, self.prepared(inp))
        out = self.product(norm, is_first_microbatch)
        if not self.return_layernorm_output:
            return out
        return (*out, norm) if isinstance(out, tuple) else (out, norm)


def add_norm(
    layer: TransformerEngineBaseModule, size: int, where: Where, normalization: str, zero_centred: bool
) -> None:
    """The parameters of a layer's norm."""
    begin = nn.init.zeros_ if zero_centred else nn.init.ones_
    layer.add("layer_norm_weight", where.empty(size), begin)  # type: ignore[arg-type]
    if normalization == "RMSNorm":
        layer.register_parameter("layer_norm_bias", None)
    else:
        layer.add("layer_norm_bias", where.empty(size), nn.init.zeros_)  # type: ignore[arg-type]


def norm_of(layer: TransformerEngineBaseModule, x: Tensor) -> Tensor:
    """The norm that a layer begins with."""
    return normalized(
        x, layer.layer_norm_weight, layer.layer_norm_bias, layer.eps,  # type: ignore[arg-type]
        layer.normalization == "RMSNorm", bool(layer.zero_centered_gamma),
    )  # fmt: skip


def _split(size: int, split: Split | None) -> dict[str, int]:
    """How many rows each parameter has, by what its name begins with."""
    if split is None:
        return {"": size}
    if not split:
        raise ValueError("Cannot split weight buffer into 0 parameters")
    parts = dict(split) if isinstance(split, Mapping) else dict.fromkeys(split, size // len(split))
    if sum(parts.values()) != size:
        raise ValueError(f"Trying to split weight buffer (out_features={size}) with split sizes {list(parts.values())}")
    return {f"{name.rstrip('_')}_": rows for name, rows in parts.items()}


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:place]) for place in range(len(sizes))]
