"""PyTorch's own texts, where the emulation must raise what CUDA would; what varies by version is data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from windtunnel.seam.torch.operators.call import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.operators.plan import Plan, tensors_in
from windtunnel.seam.torch.tags import CPU, FLOATING, VERSION, tag_of
from windtunnel.seam.torch.type_names import TYPE_NAMES

SUFFIXED = {
    "aten::mm": "wrapper_CUDA_mm",
    "aten::addmm": "wrapper_CUDA_addmm",
    "aten::bmm": "wrapper_CUDA_bmm",
    "aten::baddbmm": "wrapper_CUDA_baddbmm",
    "aten::addmv": "wrapper_CUDA_addmv_",
    "aten::mv": "wrapper_CUDA_addmv_",
    "aten::embedding": "wrapper_CUDA__index_select",
    "aten::index_select": "wrapper_CUDA__index_select",
    "aten::gather": "wrapper_CUDA_gather",
    "aten::scatter": "wrapper_CUDA_scatter",
    "aten::cat": "wrapper_CUDA_cat",
    "aten::stack": "wrapper_CUDA_cat",
    "aten::nll_loss_forward": "wrapper_CUDA_nll_loss_forward",
    "aten::native_layer_norm": "wrapper_CUDA__native_layer_norm",
    "aten::_fused_rms_norm": "wrapper_CUDA___fused_rms_norm",
    "aten::native_batch_norm": "wrapper_CUDA__native_batch_norm",
    "aten::dot": "wrapper_CUDA__dot",
}
"""Operators whose generated CUDA wrapper checks each argument and names the one that is elsewhere (torch >= 2.0)."""

ARGUMENT_NAMES = {"aten::embedding": {"weight": "self", "indices": "index"}}
"""Names of arguments in the wrapper that reports, where the operator calls another one."""


def device_name(index: int) -> str:
    """ "cuda:0", "cpu"."""
    return f"cuda:{index}" if index >= 0 else "cpu"


def cuda_error(text: str, name: str, *, blocking: bool = False) -> RuntimeError:
    """PyTorch's exception of a CUDA call that failed, by CUDA's text and name of the error.

    `blocking` leaves out the hint about CUDA_LAUNCH_BLOCKING, as PyTorch does where that is set
    (c10/cuda/CUDAMiscFunctions.cpp).
    """
    lines = [f"CUDA error: {text}"]
    if VERSION >= (2, 9):
        lines.append(
            f"Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
            "information."
        )
    if not blocking:
        lines += [
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect.",
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        ]
    lines.append("Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n")
    made: RuntimeError = getattr(torch, "AcceleratorError", RuntimeError)("\n".join(lines))
    return made


SPARSE_SUMS = ("aten::add", "aten::add_", "aten::sub", "aten::sub_")


def _sparse_sum(names: Mapping[str, object]) -> str:
    """What the kernel for a sparse summand says (`add_out_dense_sparse_cuda` of native/sparse/cuda/)."""
    summands = {name: value for name in ("self", "other") if isinstance(value := names.get(name), torch.Tensor)}
    if all(tensor.layout is torch.strided for tensor in summands.values()):
        return ""
    on_host = [name for name, tensor in summands.items() if tag_of(tensor).device == CPU]
    return f"add: expected '{on_host[0]}' to be a CUDA tensor, but got a CPU tensor" if on_host else ""


def _wrong_result(plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> str:
    """What a TensorIterator says of a result that its first operand cannot hold; it looks at devices after that.

    Source: `TensorIteratorBase::compute_types` of aten/src/ATen/TensorIterator.cpp, operand by operand.
    """
    if plan.checked or plan.mutated != (0,):
        return ""

    def without_elements(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty([0] * value.dim(), dtype=value.dtype, device=HOST)

    try:
        func(*map(without_elements, args), **{name: without_elements(value) for name, value in kwargs.items()})
    except RuntimeError as error:
        return str(error) if str(error).startswith("result type ") else ""
    return ""


HOST = torch.device("cpu")
TOGETHER = "Expected all tensors to be on the same device, but "


def two_devices(first: int, other: int) -> RuntimeError:
    """The error of tensors on two devices where PyTorch names no argument."""
    return RuntimeError(f"{TOGETHER}found at least two devices, {device_name(first)} and {device_name(other)}!")


def mismatch(plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> RuntimeError:
    """The error of an operator whose tensors lie on several devices."""
    if plan.name in SPECIAL:
        return RuntimeError(SPECIAL[plan.name](dict(zip(plan.names, args, strict=False)) | kwargs))
    names = dict(zip(plan.names, args, strict=False)) | kwargs
    if plan.name in SPARSE_SUMS and (sentence := _sparse_sum(names)):
        return RuntimeError(sentence)
    first: int | None = None
    other: int | None = None
    guilty = ""
    for name, value in names.items():
        for tensor in tensors_in((value,)):
            found = tag_of(tensor).device
            if found == FLOATING or (found == CPU and tensor.dim() == 0 and not plan.checked):
                continue
            if first is None:
                first = found
            elif found != first and other is None:
                other, guilty = found, name
    first, other = first or 0, CPU if other is None else other
    wrapper = SUFFIXED.get(plan.name)
    if wrapper is None and first == CPU:
        # A TensorIterator takes the first device that is not the CPU as the common one.
        first, other = other, first
    if wrapper is None:
        return RuntimeError(text) if (text := _wrong_result(plan, func, args, kwargs)) else two_devices(first, other)
    guilty = ARGUMENT_NAMES.get(plan.name, {}).get(guilty, guilty)
    if VERSION >= (2, 9):
        got = device_name(other)
        kept = device_name(first)
        return RuntimeError(
            f"{TOGETHER}got {guilty} is on {got}, different from other tensors on {kept} "
            f"(when checking argument in method {wrapper})"
        )
    return RuntimeError(
        f"{two_devices(first, other)} (when checking argument for argument {guilty} in method {wrapper})"
    )


def _type_name(tensor: torch.Tensor) -> str:
    name = TYPE_NAMES.get(tensor.dtype, "Tensor")
    return f"torch.cuda.{name}" if tag_of(tensor).device >= 0 else f"torch.{name}"


def _convolution(given: Keywords) -> str:
    # aten/src/ATen/native/Convolution.cpp, check_input_same_type_as_parameters
    tensor, weight = given["input"], given["weight"]
    what, other = ("weight", weight)
    if tag_of(weight).device == tag_of(tensor).device and given.get("bias") is not None:
        what, other = "bias", given["bias"]
    text = f"Input type ({_type_name(tensor)}) and {what} type ({_type_name(other)}) should be the same"
    if tag_of(tensor).device < 0:
        text += f" or input should be a MKLDNN tensor and {what} is a dense tensor"
    return text


def _index(given: Keywords) -> str:
    # aten/src/ATen/native/TensorAdvancedIndexing.cpp
    where = device_name(tag_of(given["self"]).device)
    return f"indices should be either on cpu or on the same device as the indexed tensor ({where})"


SPECIAL: dict[str, Callable[[Keywords], str]] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::index": _index,
    "aten::index_put": _index,
    "aten::index_put_": _index,
    "aten::_index_put_impl_": _index,
}
"""Operators with a text of their own."""
