"""What `scaled_dot_product_attention` and the fused kernels below it refuse on a device.

Sources: `validate_sdpa_input` of aten/src/ATen/native/transformers/attention.cpp, whose text varies by version and so
is PyTorch's own here; `_efficient_attention_forward` of native/transformers/cuda/attention.cu; `mha_fwd` and
`set_params_fprop` of native/transformers/cuda/flash_attn/flash_api.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.plans.arguments import Keywords, OpOverload
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.tags import FLOATING, device_of, disable_torch_function

Tensor = torch.Tensor
UNTOLD = "Expected {} to be true, but got false.  (Could this error message be improved?  If so, please report an "
UNTOLD += "enhancement request to PyTorch.)"
"""What TORCH_CHECK says of a condition without a text of its own."""


def validate(func: OpOverload, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Raise PyTorch's error where types, devices or dimensions do not fit."""
    one_type = query.dtype == key.dtype == value.dtype
    if one_type:
        _beside(query, key, value)
    fits = mask is None or mask.dtype in (torch.bool, query.dtype)
    if one_type and fits and min(query.dim(), key.dim(), value.dim()) >= 2:
        return
    with torch._C._DisableTorchDispatch(), disable_torch_function(), torch.no_grad():
        func._op_dk(COMPOSITE, *map(_like, (query, key, value)), None if mask is None else _like(mask))


def _beside(query: Tensor, key: Tensor, value: Tensor) -> None:
    places = [device_of(tensor) for tensor in (query, key, value)]
    if len(set(places) - {FLOATING}) > 1:
        names = [device_name(max(place, -1)) for place in places]
        raise RuntimeError(
            f"Expected query, key, and value to have the same device type, but got query.device: {names[0]} "
            f"key.device: {names[1]} and value.device: {names[2]} instead."
        )


def _like(tensor: Tensor) -> Tensor:
    """One element of a tensor's type and dimensions, without a value."""
    return torch.empty([1] * tensor.dim(), dtype=tensor.dtype, device="meta")


def efficient(given: Keywords) -> None:
    """The memory-efficient kernel, forward."""
    query, key, value, bias = given["query"], given["key"], given["value"], given["attn_bias"]
    if key.shape[2] != value.shape[2]:
        raise RuntimeError(UNTOLD.format("key.size(1) == value.size(1)"))
    if bias is not None and bias.dtype is not query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")


def flash(given: Keywords) -> None:
    """Flash attention, forward."""
    if given["key"].shape[2] != given["value"].shape[2]:
        raise RuntimeError("v must have shape (batch_size, seqlen_k, num_heads_k, head_size_og)")
    if given.get("dropout_p", 0.0) >= 1:
        raise RuntimeError(UNTOLD.format("p_dropout < 1.f"))


BY_NAME: dict[str, Callable[[Keywords], None]] = {
    "aten::_scaled_dot_product_efficient_attention": efficient,
    "aten::_scaled_dot_product_flash_attention": flash,
}
"""What a fused operator's kernel refuses, from its arguments by name."""
