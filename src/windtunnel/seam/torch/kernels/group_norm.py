"""`native_group_norm`: the CPU takes float32 parameters beside a half precision input, and CUDA's kernel does not.

Source: aten/src/ATen/native/group_norm.cpp, which lets such types through for every device, and group_norm_kernel.cu,
which reads the parameters and the statistics in the input's type.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.type_names import scalar_type

Tensor = torch.Tensor
kernel = torch.ops.aten.native_group_norm.default._op


def normalized(input: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: object) -> object:
    """The operator's results, once the types of its parameters are those of its input."""
    results: object = kernel(input, weight, bias, *sizes)  # raises what PyTorch checks on every device
    for parameter in (weight, bias):
        if parameter is not None and parameter.dtype != input.dtype:
            wanted, found = scalar_type(input.dtype), scalar_type(parameter.dtype)
            raise RuntimeError(f"expected scalar type {wanted} but found {found}")
    return results


RUN = {"aten::native_group_norm": normalized}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
