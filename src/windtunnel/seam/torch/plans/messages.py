"""PyTorch's own texts, where the emulation must raise what CUDA would; what varies by version is data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from windtunnel.seam.torch.plans import native_functions
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.dtypes import DTYPES, refused
from windtunnel.seam.torch.tags import CPU, FLOATING, VERSION, tag_of
from windtunnel.seam.torch.type_names import tensor_type


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


def _wrong_result(call: Call) -> str:
    """What a TensorIterator says of a result that its first operand cannot hold; it looks at devices after that.

    Source: `TensorIteratorBase::compute_types` of aten/src/ATen/TensorIterator.cpp, operand by operand.
    """
    if call.plan.checked or call.plan.mutated != (0,):
        return ""

    def without_elements(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty([0] * value.dim(), dtype=value.dtype, device=HOST)

    try:
        call.func(
            *map(without_elements, call.args), **{name: without_elements(value) for name, value in call.kwargs.items()}
        )
    except RuntimeError as error:
        return str(error) if str(error).startswith("result type ") else ""
    return ""


NO_KERNEL = (
    "Could not run '{name}' with arguments from the '{backend}' backend. This could be because the operator doesn't "
    "exist for this backend, or was omitted during the selective/custom build process (if using custom build). "
    "If you are a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible "
    "resolutions. '{name}' is only available for these backends: [{backends}].\n\n{table}"
)
"""`reportError` of aten/src/ATen/core/dispatch/OperatorEntry.cpp."""


def no_kernel(func: OpOverload, backend: str) -> NotImplementedError:
    """PyTorch's error where no kernel takes an operator's tensors."""
    table = torch._C._dispatch_dump_table(func.name())
    backends = ", ".join(line.partition(":")[0] for line in table.splitlines())
    return NotImplementedError(NO_KERNEL.format(name=func.name(), backend=backend, backends=backends, table=table))


HOST = torch.device("cpu")
TOGETHER = "Expected all tensors to be on the same device, but "


def two_devices(first: int, other: int) -> RuntimeError:
    """The error of tensors on two devices where PyTorch names no argument."""
    return RuntimeError(f"{TOGETHER}found at least two devices, {device_name(first)} and {device_name(other)}!")


def mismatch(call: Call) -> RuntimeError:
    """The error of an operator whose tensors lie on several devices."""
    if call.plan.name in SPECIAL:
        return RuntimeError(SPECIAL[call.plan.name](call.named()))
    names = call.named()
    if call.plan.name in SPARSE_SUMS and (sentence := _sparse_sum(names)):
        return RuntimeError(sentence)
    if text := _wrapper_mismatch(call.plan.func, names) or _wrong_result(call):
        return RuntimeError(text)
    places = [tag_of(tensor).device for value in names.values() for tensor in tensors_in((value,)) if _counts(tensor)]
    # A TensorIterator takes the first device that is not the CPU as the common one.
    first = next((place for place in places if place >= 0), CPU)
    return two_devices(first, next((place for place in places if place != first), CPU))


def _counts(tensor: torch.Tensor) -> bool:
    """Whether a TensorIterator minds where a tensor lies."""
    place = tag_of(tensor).device
    return place != FLOATING and not (place == CPU and tensor.dim() == 0)


def _wrapper_mismatch(func: OpOverload, names: Mapping[str, object]) -> str:
    """What the wrapper of a CUDA kernel says where it compares devices, argument by argument; "" if it does not."""
    kind = native_functions.kind_of(tensors_in(names.values()))
    inner, given = native_functions.comparing(func, kind)
    method = native_functions.checking_wrapper(inner, kind)
    checked = native_functions.checked_arguments(inner) if method else []
    first: int | None = None
    for name, source in zip(checked, given or checked, strict=False):
        for tensor in tensors_in((names.get(source) if source else None,)):
            found = tag_of(tensor).device
            if found == FLOATING or first in (None, found):
                first = first if found == FLOATING else found
            elif VERSION >= (2, 9):
                got, kept = device_name(found), device_name(first)
                return (
                    f"{TOGETHER}got {name} is on {got}, different from other tensors on {kept} "
                    f"(when checking argument in method {method})"
                )
            else:
                return f"{two_devices(first, found)} (when checking argument for argument {name} in method {method})"
    return ""


def _type_name(tensor: torch.Tensor) -> str:
    return tensor_type(tensor.dtype, tag_of(tensor).device >= 0)


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


def _masked_fill(given: Keywords) -> str:
    # aten/src/ATen/native/cuda/IndexKernel.cpp, masked_fill__cuda
    if isinstance(value := given["value"], torch.Tensor):
        if value.dim():
            count = f"{value.dim()} dimension(s)"
            return f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {count}."
        if tag_of(given["self"]).device == CPU:
            return "masked_fill_: Expected inputs to be on same device"
    mask, tensor = (device_name(tag_of(given[name]).device) for name in ("mask", "self"))
    return f"expected self and mask to be on the same device, but got mask on {mask} and self on {tensor}"


def _cholesky_solve(given: Keywords) -> str:
    # aten/src/ATen/native/LinearAlgebraUtils.h, linearSolveCheckInputs and checkSameDevice
    b, a = (device_name(tag_of(given[name]).device) for name in ("self", "input2"))
    if a == b:
        out = device_name(tag_of(given["out"]).device)
        return (
            "cholesky_solve: Expected result and input tensors to be on the same device, but got result on "
            f"{out} and input on {b}"
        )
    return f"Expected b and A to be on the same device, but found b on {b} and A on {a} instead."


def _block_diag(given: Keywords) -> str:
    # aten/src/ATen/native/TensorShape.cpp
    places = [tag_of(tensor).device for tensor in given["tensors"]]
    other = next(index for index, place in enumerate(places) if place != places[0])
    return (
        "torch.block_diag: input tensors must all be on the same device. "
        f"Input 0 is on device {device_name(places[0])} and input {other} is on device {device_name(places[other])}"
    )


SPECIAL: dict[str, Callable[[Keywords], str]] = {
    "aten::block_diag": _block_diag,
    "aten::cholesky_solve": _cholesky_solve,
    "aten::masked_fill": _masked_fill,
    "aten::masked_fill_": _masked_fill,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::index": _index,
    "aten::index_put": _index,
    "aten::index_put_": _index,
    "aten::_index_put_impl_": _index,
}
"""Operators with a text of their own."""


KERNELS = {
    "softmax_lastdim_kernel_impl": "host_softmax", "softmax_kernel_impl": "host_softmax",
    "log_softmax_lastdim_kernel_impl": "host_softmax", "log_softmax_kernel_impl": "host_softmax",
    "GeluKernelImpl": "GeluCUDAKernelImpl", "add_stub": "ufunc_add_CUDA", "addmm_impl_cpu_": "addmm_cuda",
    "mul_cpu_reduced_float": "mul_cuda", "div_cpu_reduced_float": "div_true_cuda",
    "div_floor_cpu_reduced_float": "div_floor_cuda", "div_trunc_cpu_reduced_float": "div_trunc_cuda",
    "sigmoid_cpu_reduced_float": "sigmoid_cuda", "upsample_bilinear2d_channels_last": "upsample_bilinear2d_out_frame",
    "topk_cpu": "topk_out_cuda", "le_cpu": "compare_cuda", "lt_cpu": "compare_cuda", "ge_cpu": "compare_cuda",
    "gt_cpu": "compare_cuda", "ldl_factor_kernel_cpu": "ldl_factor_looped_cusolver",
    "ldl_solve_kernel_cpu": "ldl_solve_looped_cusolver", "tril": "triu_tril_cuda_template",
    "triu": "triu_tril_cuda_template", "maximum_cpu": "max_elementwise_cuda", "minimum_cpu": "min_elementwise_cuda",
    "multilabel_margin_loss_forward_out_frame": "multilabel_margin_loss_forward_kernel",
    "lerp_kernel_scalar": "lerp_cuda", "aminmax_cpu": "aminmax_all_cuda", "digamma": "digamma_cuda",
    "nan_to_num": "nan_to_num_cuda", "sorting_kernel_method_name": "sort", "pow": "pow_cuda",
    "addcmul_cpu_out": "addcmul_cuda", "addcdiv_cpu_out": "addcdiv_cuda", "min_all": "min_all_cuda",
    "avg_pool2d": "avg_pool2d_out_cuda_frame",
    "log_sigmoid_cpu": "log_sigmoid_forward_cuda", "cumsum_out_cpu": "cumsum_cuda",
    "logcumsumexp_out_cpu": "logcumsumexp_cuda", "compute_indices_weights_nearest": "upsample_nearest1d_out_frame",
    "binary_cross_entropy": "binary_cross_entropy_out_cuda", "multi_margin_loss_cpu_kernel": "multi_margin_loss_cuda",
    "cdist": "cdist_cuda", "pdist": "pdist_cuda", "max_pool2d": "max_pool2d_with_indices_out_cuda_frame",
    "upsample_nearest2d_channels_last": "upsample_nearest2d_out_frame", "take_put_cpu": "put_cuda",
    "linalg_svd_cpu": "svd_cuda_gesvdjBatched", "adaptive_avg_pool2d": "adaptive_avg_pool2d_cuda",
    "triangular_solve_out_sparse_csr_impl_mkl": "triangular_solve_out_sparse_csr_cuda_impl",
}  # fmt: skip
"""Kernels that CUDA names otherwise than by `cuda` in place of `cpu`: what an H200 said of PyTorch's operator database
(tests/conformance/hardware/2026-11-27-H200-answers.json.gz), and comparisons and triangles like those."""


def _kernel(name: str) -> str:
    return KERNELS.get(name) or re.sub("(_vml)?_cpu$", "_cuda", name)


REWORDED: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"(?<=arguments from the ')(\w*)CPU(?=' backend)"), r"\1CUDA"),
    # sort_cuda_kernel of aten/src/ATen/native/cuda/Sort.cpp
    (
        re.compile("^ Sort does not support complex dtypes on CPU"),
        "Sort currently does not support complex dtypes on CUDA.",
    ),
    # toString of the tensor, in checkScalarTypes of aten/src/ATen/TensorUtils.cpp
    (re.compile(r"(?<=but got torch\.)(\w+Tensor instead \(while checking arguments)"), r"cuda.\1"),
    # max_pool3d_with_indices of aten/src/ATen/native/cuda/DilatedMaxPool3d.cu
    (re.compile(r"(?<=^max_pool3d_with_indices_out_)cpu(?=_template)"), "cuda"),
    # aten/src/ATen/native/cuda/MaxUnpooling.cu
    (
        re.compile(
            r"^Expected shape of indices to be same as that of the input tensor \((.*)\) but got indices tensor with "
            "shape: "
        ),
        r"Expected shape of indices to be: \1 but got: ",
    ),
    # data_ptr of the targets, in aten/src/ATen/native/cuda/NLLLoss2d.cu
    (re.compile("^expected target dtype to be Long or Byte, but got "), "expected scalar type Long but found "),
    # trace_cuda of aten/src/ATen/native/cuda/ReduceOps.cpp
    (re.compile("^trace: (expected a matrix), but got tensor with dim .*"), r"\1"),
    # addmm_out_sparse_csr of aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp
    (re.compile("(?<=^addmm: computation on )CPU(?= is not implemented)"), "CUDA"),
    # bernoulli_kernel of aten/src/ATen/native/cuda/DistributionTemplates.h
    (
        re.compile("^\"bernoulli_tensor_cpu_p_\" not implemented for '(\\w+)'"),
        r"expected probabilities tensor to have floating type, got \1",
    ),
    # addmm_out_cuda_impl of aten/src/ATen/native/cuda/Blas.cpp
    (re.compile("^expected m1 and m2 to have"), "expected mat1 and mat2 to have"),
    (re.compile('^"(\\w+)(?=" not implemented for)'), lambda found: f'"{_kernel(found[1])}'),
)
"""What the CPU's kernels say, and what CUDA's say instead."""


UNIMPLEMENTED = re.compile("not implemented for|^Could not run")
"""What is a NotImplementedError."""
REFUSED = re.compile("does not support \\w+ dtypes on CPU$|^sparse_sampled_addmm: Expected self to be a floating-point")
"""Checks that the CPU's kernels make first of all, where CUDA's have none and refuse in the common words (topk,
sampled_addmm)."""


def of_cuda(error: RuntimeError, name: str, args: Arguments) -> RuntimeError | None:
    """An error of the CPU's kernel of an operator in the words of CUDA's, where those are others."""
    text = str(error)
    for pattern, words in REWORDED:
        if pattern.search(text):
            said = pattern.sub(words, text)
            return (RuntimeError if UNIMPLEMENTED.search(text) and not UNIMPLEMENTED.search(said) else type(error))(
                said
            )
    return refused(DTYPES[name], args) if name in DTYPES and REFUSED.search(text) else None
