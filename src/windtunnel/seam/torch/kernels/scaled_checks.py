"""What `torch._scaled_mm` and its second version refuse on a device, and which recipe of scales a call follows.

Source: `_scaled_mm_out_cuda`, `get_joint_scaling` and `_scaled_mm_cuda_v2_out` of
aten/src/ATen/native/cuda/ScaledBlas.cpp, `find_scaled_gemm_impl` and its acceptance functions of
aten/src/ATen/native/ScaledBlasUtils.cpp. What cuBLASLt itself refuses is what an H200 said
(tests/conformance/hardware), and for other GPUs the table of data types in cuBLAS's documentation
("cublasLtMatmul", "Scaling factors").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from windtunnel.seam.torch.plans.halves import HALVES
from windtunnel.seam.torch.plans.layout import is_dense
from windtunnel.seam.torch.type_names import scalar_type

Tensor = torch.Tensor
Capability = tuple[int, int]
EIGHTS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
FNUZ = EIGHTS[2:]
FOUR: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
"""Two numbers of four bits in a byte, where this PyTorch has them."""
E8M0: torch.dtype | None = getattr(torch, "float8_e8m0fnu", None)
TENSOR, ROW, BY_16, BY_32, BY_128, SQUARE = range(6)
"""The numbers of `torch.nn.functional.ScalingType`."""
SWIZZLED = 1
"""`SwizzleType.SWIZZLE_32_4_4`."""
RECIPES = (
    (TENSOR, TENSOR), (ROW, ROW), (SQUARE, BY_128), (BY_128, SQUARE), (BY_128, BY_128), (BY_32, BY_32), (BY_16, BY_16),
)  # fmt: skip
"""Pairs in the order in which the first version tries them."""
HOPPER = ((SQUARE, BY_128), (BY_128, SQUARE), (BY_128, BY_128))
"""Those that cuBLASLt has for compute capability 9.0 alone."""
BLACKWELL = ((BY_32, BY_32), (BY_16, BY_16))
"""Those that it has from 10.0 on."""
ARCHITECTURE = (
    "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"
)
LAYOUT = "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
ALIGNMENT = 16
"""Bytes that the addresses of matrices are a multiple of (cuBLAS, "Using the cuBLASLt API"), which PyTorch leaves to
cuBLASLt to check."""
MISALIGNED = (
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul with transpose_mat1 t transpose_mat2 n "
    "m {m} n {n} k {k} mat1_ld {k} mat2_ld {k} result_ld {m} computeType 68 scaleType 0"
)
NOT_SUPPORTED = (
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ltHandle, "
    "computeDesc.descriptor(), Adesc.descriptor(), Bdesc.descriptor(), Cdesc.descriptor(), Ddesc.descriptor(), "
    "preference.descriptor(), 1, &heuristicResult, &returnedResult)`"
)
FNUZ_ASSERT = (
    'false INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/cuda/CUDADataType.h":98, please report a bug to PyTorch. '
    "Cannot convert ScalarType {} to cudaDataType."
)
OUTPUTS = (torch.float32, *HALVES, *EIGHTS[:2])
"""The types of results that cuBLASLt has for factors of 8 bits."""


class Scales(NamedTuple):
    """How the two operands are scaled: the recipe of each, and NVFP4's second factor."""

    recipe: tuple[int, int]
    both: tuple[Tensor, Tensor]
    whole: tuple[Tensor, Tensor] | None = None


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The least multiple of b that is not below a."""
    return ceil_div(a, b) * b


def swizzled_size(rows: int, length: int, block: int) -> int:
    """The elements of a matrix of scales in cuBLAS's layout of tiles of 128 x 4."""
    return round_up(rows, 128) * round_up(ceil_div(length, block), 4)


def unpacked(matrix: Tensor, dim: int) -> int:
    """The numbers along a dimension, of which 4-bit matrices hold two in an element."""
    return int(matrix.shape[dim]) * (2 if matrix.dtype is FOUR else 1)


def is_allowed(capability: Capability) -> bool:
    """Whether PyTorch multiplies 8-bit matrices on such a GPU at all (`scaled_mm_arch_allowed`)."""
    return capability >= (9, 0) or capability == (8, 9)


def first_version(
    capability: Capability,
    one: Tensor,
    two: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    out_dtype: torch.dtype | None,
    fast: bool,
) -> Scales:
    """Check a call of `torch._scaled_mm`."""
    _require(is_allowed(capability), ARCHITECTURE)
    _require(one.dim() == 2, "mat1 must be a matrix")
    _require(two.dim() == 2, "mat2 must be a matrix")
    sizes = f"({one.shape[0]}x{one.shape[1]} and {two.shape[0]}x{two.shape[1]})"
    _require(one.shape[1] == two.shape[0], f"mat1 and mat2 shapes cannot be multiplied {sizes}")
    recipe = _joint(one, two, scale_a, scale_b)
    single = scale_result is None or (scale_result.numel() == 1 and scale_result.dtype is torch.float32)
    _require(single, "scale_result must be a float scalar")
    if bias is not None:
        _require(bias.numel() == two.shape[1], f"Bias must be size {two.shape[1]} but got {bias.numel()}")
    _sizes(one, two, 1, RuntimeError)
    both_e5m2 = one.dtype is two.dtype is torch.float8_e5m2
    _require(not both_e5m2, "Multiplication of two Float8_e5m2 matrices is not supported", ValueError)
    _fast(one, two, fast, ("mat1", "mat2"), RuntimeError)
    out = one.dtype if out_dtype is None else out_dtype
    _bias(bias, out, RuntimeError)
    if one.numel() and two.numel():
        _library(capability, one, two, recipe, out)
    return Scales(recipe, (scale_a, scale_b))


def second_version(
    capability: Capability,
    one: Tensor,
    two: Tensor,
    scales: tuple[Sequence[Tensor], Sequence[Tensor]],
    recipes: tuple[Sequence[int], Sequence[int]],
    swizzles: tuple[Sequence[int], Sequence[int]],
    bias: Tensor | None,
    out: torch.dtype,
    fast: bool,
) -> Scales:
    """Check a call of `torch._scaled_mm_v2`, which names its recipes."""
    for matrix in (one, two):
        if matrix.dtype not in (FOUR, *EIGHTS):
            types = f"mat_a.dtype={scalar_type(one.dtype)} and mat_b.dtype={scalar_type(two.dtype)}"
            raise ValueError(f"Expected both inputs to be fp8 or fp4 types but got {types}")
    _require(is_allowed(capability), ARCHITECTURE, NotImplementedError)
    packed = 2 if one.dtype is FOUR else 1
    if one.numel() and two.numel():
        _sizes(one, two, packed, ValueError)
        both_e5m2 = one.dtype is two.dtype is torch.float8_e5m2
        _require(not both_e5m2, "Multiplication of two Float8_e5m2 matrices is not supported", ValueError)
        _fast(one, two, fast, ("mat_a", "mat_b"), ValueError)
        _bias(bias, out, ValueError)
    first, second = (tuple(recipe) for recipe in recipes)
    given = Scales((first[0], second[0]), (scales[0][0], scales[1][0]))
    if _is_nvfp4(first, second, scales):
        given = given._replace(whole=(scales[0][1], scales[1][1]))
    elif not (len(first) == len(second) == 1 and _fits(one, two, given)):
        raise ValueError(_invalid(one, two, *given.both, ("mat_a", "mat_b"), "[0]"))
    if given.recipe in BLACKWELL:
        _swizzles(swizzles, 1 if given.whole is None else 2)
    if one.numel() and two.numel():
        _shapes(capability, one, two, given)
        if given.recipe == (BY_32, BY_32) and one.dtype is FOUR:
            supported = capability[0] == 10
            _require(supported, "MXFP4 scaling only supported in CUDA for B200/B300", NotImplementedError)
        else:
            _library(capability, one, two, given.recipe, out)
    return given


def _require(holds: bool, text: str, error: type[Exception] = RuntimeError) -> None:
    if not holds:
        raise error(text)


def _sizes(one: Tensor, two: Tensor, packed: int, error: type[Exception]) -> None:
    rows, length, columns = one.shape[0], one.shape[1] * packed, two.shape[1]
    text = f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: ({rows}x{length})."
    _require(length % 16 == 0, text, error)
    fits = two.shape[0] * packed % 16 == 0 and columns % 16 == 0
    _require(fits, f"mat2 shape ({two.shape[0]}x{columns}) must be divisible by 16", error)


def _fast(one: Tensor, two: Tensor, fast: bool, names: tuple[str, str], error: type[Exception]) -> None:
    fours = FOUR is not None and FOUR in (one.dtype, two.dtype)
    _require(
        not (fast and fours),
        f"`use_fast_accum` is not supported when `{names[0]}` or `{names[1]}` tensors have the "
        "`Float4_e2m1fn_x2` dtype.",
        error,
    )


def _bias(bias: Tensor | None, out: torch.dtype, error: type[Exception]) -> None:
    if bias is None:
        return
    got = scalar_type(bias.dtype)
    _require(out is not torch.float32, "Bias is not supported when out_dtype is set to Float32", error)
    _require(bias.dtype in HALVES, f"Bias must be BFloat16 or Half, but got {got}", error)
    if out in HALVES and bias.dtype is not out:
        kind = "BFloat16" if out is torch.bfloat16 else "Float16"
        raise error(f"Bias must be {kind} to compute {scalar_type(out)} output, but got {got}")


def _joint(one: Tensor, two: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[int, int]:
    """The recipe that the scales' types, shapes and strides say."""
    for first, second in RECIPES:
        other = scale_b if second in (BY_16, BY_32) or scale_b.dim() > 2 else scale_b.t()
        if _is_scaled(one, scale_a, first) and _is_scaled(two.t(), other, second):
            return first, second
    raise RuntimeError(_invalid(one, two, scale_a, scale_b, ("a", "b"), ""))


def _is_scaled(matrix: Tensor, scale: Tensor, recipe: int) -> bool:
    rows, length = matrix.shape
    if recipe in (BY_16, BY_32):
        types = (FOUR,) if recipe == BY_16 else (FOUR, *EIGHTS)
        kind = torch.float8_e4m3fn if recipe == BY_16 else E8M0
        size = swizzled_size(rows, unpacked(matrix, 1), 16 if recipe == BY_16 else 32)
        return matrix.dtype in types and scale.dtype is kind and scale.numel() == size and scale.is_contiguous()
    if matrix.dtype not in EIGHTS or scale.dtype is not torch.float32:
        return False
    if recipe == TENSOR:
        return scale.numel() == 1
    if scale.dim() != 2:
        return False
    if recipe == ROW:
        return tuple(scale.shape) == (rows, 1) and scale.is_contiguous()
    blocks = ceil_div(length, 128)
    if recipe == BY_128:
        return _lies(scale, 0, rows, 1) and _lies(scale, 1, blocks, rows)
    return _lies(scale, 0, ceil_div(rows, 128), blocks) and _lies(scale, 1, blocks, 1)


def _lies(scale: Tensor, dim: int, size: int, stride: int) -> bool:
    return bool(scale.shape[dim] == size and (size <= 1 or scale.stride(dim) == stride))


def _invalid(one: Tensor, two: Tensor, scale_a: Tensor, scale_b: Tensor, names: tuple[str, str], index: str) -> str:
    """PyTorch's text of eight lines, whose first is all that most people read."""
    (m, k), n = one.shape, two.shape[1]
    rows, columns, blocks = ceil_div(m, 128), ceil_div(n, 128), ceil_div(k, 128)
    by_32 = swizzled_size(m, k, 32), swizzled_size(n, two.shape[0], 32)
    by_16 = swizzled_size(m, 2 * k, 16), swizzled_size(n, 2 * two.shape[0], 16)
    of = "- For {} scaling, a and b should be {}, scales should be {}, scale_a should {} and scale_b should {}, and "
    lines = [
        "Invalid scaling configuration.",
        "- For TensorWise scaling, a and b should be float8, scales should be float and singletons.",
        of.format("RowWise", "float8", "float", f"be ({m}, 1)", f"be (1, {n})") + "both should be contiguous.",
        of.format("BlockWise 1x128", "float8", "float", f"be ({m}, {blocks})", f"be ({blocks}, {n})")
        + "both should be outer-dim-major.",
        of.format("BlockWise 128x128", "float8", "float", f"be ({rows}, {blocks})", f"be ({blocks}, {columns})")
        + "both should be near-inner-dim-major (with 16-byte aligned strides).",
        of.format(
            "Blockwise 1x32", "float8", "float8_e8m0fnu", f"have {by_32[0]} elements", f"have {by_32[1]} elements"
        )
        + "both should be contiguous.",
        of.format(
            "Blockwise 1x16",
            "float4 (packed 2x)",
            "float8_e4m3fn",
            f"have {by_16[0]} elements",
            f"have {by_16[1]} elements",
        )
        + "both should be contiguous.",
    ]
    got = [
        f"{name}.dtype()={scalar_type(matrix.dtype)}, scale_{side}{index}.dtype()={scalar_type(scale.dtype)}, "
        f"scale_{side}{index}.size()={list(scale.shape)}{join} scale_{side}{index}.stride()={list(scale.stride())}"
        for name, side, matrix, scale, join in (
            (names[0], "a", one, scale_a, ","),
            (names[1], "b", two, scale_b, " and"),
        )
    ]
    return "\n".join([*lines, "Got " + ", ".join(got)])


def _is_nvfp4(
    first: tuple[int, ...], second: tuple[int, ...], scales: tuple[Sequence[Tensor], Sequence[Tensor]]
) -> bool:
    types = [[scale.dtype for scale in side] for side in scales]
    return first == second == (BY_16, TENSOR) and types == [[torch.float8_e4m3fn, torch.float32]] * 2


def _fits(one: Tensor, two: Tensor, given: Scales) -> bool:
    """Whether types of matrices and scales are those of the recipe (`check_..._recipe`)."""
    e4m3 = torch.float8_e4m3fn
    matrices = {one.dtype, two.dtype}
    kinds = {scale.dtype for scale in given.both}
    if given.recipe in ((TENSOR, TENSOR), (ROW, ROW)):
        return matrices <= set(EIGHTS) and kinds == {torch.float32}
    if given.recipe in HOPPER:
        return matrices == {e4m3} and kinds == {torch.float32}
    if given.recipe == (BY_32, BY_32):
        return matrices in ({e4m3}, {FOUR}) and kinds == {E8M0}
    return given.recipe == (BY_16, BY_16) and matrices == {FOUR} and kinds == {e4m3}


def _swizzles(swizzles: tuple[Sequence[int], Sequence[int]], wanted: int) -> None:
    plural = "" if wanted == 1 else "s"
    for side, given in zip("ab", swizzles, strict=True):
        _require(len(given) == wanted, f"swizzle_{side} must have {wanted} value{plural}, got {len(given)}", ValueError)
    for side, given in zip("ab", swizzles, strict=True):
        _require(given[0] == SWIZZLED, f"scale_{side} must be swizzled to SWIZZLE_32_4_4 format", ValueError)


def _shapes(capability: Capability, one: Tensor, two: Tensor, given: Scales) -> None:
    """What each recipe asks of its scales' shapes and strides."""
    scale_a, scale_b = given.both
    if given.recipe == (TENSOR, TENSOR):
        for side, scale in zip("ab", given.both, strict=True):
            _require(scale.numel() == 1, f"scale_{side} must have 1 Float element", ValueError)
    elif given.recipe == (ROW, ROW):
        m, n = one.shape[0], two.shape[1]
        _require(scale_a.numel() == m, f"scale_a must have {m} Float elements, got {scale_a.numel()}", ValueError)
        _require(scale_b.numel() == n, f"scale_b must have {n} Float elements, got {scale_b.numel()}", ValueError)
        fits = tuple(scale_a.shape) == (m, 1)
        _require(fits, f"scale_a must have shape [{m}, 1], got [{list(scale_a.shape)}]", ValueError)
        straight = scale_b.dim() > 1 and scale_b.stride(1) == 1
        _require(straight, f"expected scale_b.stride(1) to be 1, but got {scale_b.stride()[-1]}", ValueError)
    elif given.recipe in HOPPER:
        only = capability[0] == 9
        _require(only, "DeepSeek style (1x128, 128x128) scaling only supported in CUDA for SM90", NotImplementedError)
        blocks = ceil_div(one.shape[1], 128)
        for side, scale, rows, recipe in (
            ("a", scale_a, one.shape[0], given.recipe[0]),
            ("b", scale_b, two.shape[1], given.recipe[1]),
        ):
            high, wide = (rows, blocks) if recipe == BY_128 else (round_up(blocks, 4), ceil_div(rows, 128))
            fits = tuple(scale.shape) == (high, wide)
            got = list(scale.shape)
            _require(fits, f"scale_{side} must have shape {high} x {wide} Float elements, got {got}", ValueError)
            lies = scale.stride(0) == 1 and (scale.stride(1) == high or wide == 1 == scale.stride(1))
            _require(lies, f"scale_{side} must have strides (1, {high}); got {list(scale.stride())}", ValueError)
    else:
        block = 32 if given.recipe == (BY_32, BY_32) else 16
        sizes = one.shape[0], two.shape[1]
        for side, scale, rows in zip("ab", given.both, sizes, strict=True):
            size = swizzled_size(rows, unpacked(one, 1), block)
            text = f"For Blockwise scaling scale_{side} should have {size} elements, got: {scale.numel()}"
            _require(scale.numel() == size, text, ValueError)
        lies = scale_a.is_contiguous() and scale_b.is_contiguous()
        _require(lies, "For Blockwise scaling both scales should be contiguous", ValueError)


def _library(capability: Capability, one: Tensor, two: Tensor, recipe: tuple[int, int], out: torch.dtype) -> None:
    """What cuBLASLt, or CUTLASS for a scale a row before and after Hopper, does not multiply."""
    if recipe == (ROW, ROW) and capability[0] != 9:
        words = "Only bf16, fp16, and fp32 high precision output types are supported for row-wise scaling."
        _require(out in (torch.float32, *HALVES), words, ValueError)
    in_order = _is_row_major(one) and _is_column_major(two)
    if capability[0] == 9:
        _require(in_order, LAYOUT)
    for matrix in (one, two):
        if matrix.dtype in FNUZ:
            raise RuntimeError(FNUZ_ASSERT.format(scalar_type(matrix.dtype)))
    known = (recipe not in HOPPER or capability[0] == 9) and (recipe not in BLACKWELL or capability[0] >= 10)
    ordered = in_order or (capability[0] >= 10 and recipe == (TENSOR, TENSOR))
    _require(known and ordered and out in OUTPUTS, NOT_SUPPORTED)
    if recipe != (ROW, ROW):
        aligned = all(matrix.storage_offset() * matrix.itemsize % ALIGNMENT == 0 for matrix in (one, two))
        _require(aligned, MISALIGNED.format(m=two.shape[1], n=one.shape[0], k=one.shape[1]))


def _is_row_major(matrix: Tensor) -> bool:
    """Whether cuBLAS takes it as such (`prepare_matrix_for_cublas`)."""
    return matrix.is_contiguous() if is_dense(matrix) else not _has_columns(matrix)


def _is_column_major(matrix: Tensor) -> bool:
    return not matrix.is_contiguous() if is_dense(matrix) else _has_columns(matrix)


def _has_columns(matrix: Tensor) -> bool:
    return bool(matrix.stride(0) == 1 and matrix.stride(1) >= max(1, matrix.shape[0]))
