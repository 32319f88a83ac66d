"""Products of groups of rows, as mixtures of experts compute them: in 16 bits, and of 8 and 4 bits with scales.

`torch._grouped_mm` has a kernel for the CPU, whose values these are; without data PyTorch's meta function refuses types
that CUDA takes. `torch._scaled_grouped_mm` and its second version are computed here by their definition, a group at a
time, in float32.

Source: aten/src/ATen/native/cuda/GroupedBlas.cpp and aten/src/ATen/native/GroupedMMUtils.h. PyTorch's own builds have
MXFP8, and for compute capability 10.0 MXFP4 and NVFP4, by FBGEMM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.kernels import scaled_checks as checks
from windtunnel.seam.torch.kernels.scaled_products import decoded, device_in, named, unswizzled
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel
from windtunnel.seam.torch.plans.arguments import Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.type_names import scalar_type

Tensor = torch.Tensor
ROW_WISE, MXFP8, MXFP4, NVFP4 = "row-wise", "MXFP8", "MXFP4", "NVFP4"
BLOCK = {MXFP8: 32, MXFP4: 32, NVFP4: 16}
CAPABILITIES = ((9, 0), (10, 0))
"""GPUs with such kernels."""
ARCHITECTURE = (
    "torch._scaled_grouped_mm is only supported on CUDA devices with compute capability = [9.0, 10.0], or ROCm MI300+"
)
NOT_BUILT = "mxfp8_mxfp8 grouped gemm requires compile with USE_FBGEMM_GENAI"
"""What FBGEMM's kernels for blocks of scales say where PyTorch was built for no GPU that runs them."""


def is_transposed(matrix: Tensor) -> bool:
    """Whether the last dimension but one is that of neighbours in memory.

    Raises:
        RuntimeError: neither of the two is, or rows do not begin at multiples of 16 bytes.
    """
    (rows, columns), (outer, inner) = matrix.shape[-2:], matrix.stride()[-2:]
    if outer == 1 and inner >= max(1, rows):
        found, pitch = True, inner
    elif inner == 1 and outer >= max(1, columns):
        found, pitch = False, outer
    else:
        strides, sizes = list(matrix.stride()), list(matrix.shape)
        raise RuntimeError(f"Invalid strides/sizes, got {strides} for strides and {sizes} for sizes")
    if pitch % (16 // matrix.element_size()):
        raise RuntimeError("strides should be multiple of 16 bytes")
    return found


def result_like(one: Tensor, two: Tensor, ends: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The result without its values, with rows that begin at multiples of 16 bytes."""
    if ends is None:
        if one.shape[0] != two.shape[0]:
            raise RuntimeError("batched dimension has to match")
        size = [one.shape[0], one.shape[1], two.shape[-1]]
    elif one.dim() == two.dim() == 2:
        size = [ends.shape[0], one.shape[0], two.shape[1]]
    else:
        if ends.shape[0] != (one if one.dim() == 3 else two).shape[0]:
            raise RuntimeError("matrix batch sizes have to match")
        size = [one.shape[-2], two.shape[-1]]
    pitch = checks.round_up(size[-1], 16 // dtype.itemsize)
    strides = [pitch, 1] if len(size) == 2 else [size[1] * pitch, pitch, 1]
    return torch.empty_strided(size, strides, dtype=dtype, device=one.device)


class Grouped(SubstituteKernel):
    """aten::_grouped_mm: PyTorch's own, and its shape where there are no values."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        given = named(self.func, args, kwargs)
        if not given["self"].is_meta:
            return self.func(*args, **kwargs)
        return result_like(given["self"], given["mat2"], given["offs"], given["out_dtype"] or given["self"].dtype)


def grouped(dispatch: Dispatch, call: Call) -> object:
    """aten::_grouped_mm, with CUDA's checks."""
    if device_in(call.args, call.kwargs) < 0:
        return dispatch.general(call)
    given = named(call.plan.func, call.args, call.kwargs)
    one, two, ends, out = given["self"], given["mat2"], given["offs"], given["out_dtype"]
    for name, matrix in (("mat_a", one), ("mat_b", two)):
        if matrix.dtype not in (torch.bfloat16, torch.float32, torch.float16):
            kind = scalar_type(matrix.dtype)
            raise RuntimeError(f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {kind}")
    _dimensions(one, two, RuntimeError)
    is_transposed(one)
    is_transposed(two)
    words = "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
    _offsets(one, two, ends, words, RuntimeError)
    if given["bias"] is not None:
        raise RuntimeError("Bias not supported yet")
    if out is not None and out is not one.dtype:
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    return dispatch.general(call.but(func=Grouped(call.plan.func)))


def _dimensions(one: Tensor, two: Tensor, error: type[Exception]) -> None:
    for name, matrix in (("mat_a", one), ("mat_b", two)):
        if matrix.dim() not in (2, 3):
            raise error(f"{name} has to be 2 or 3d")
    if not one.dim() == two.dim() == 2 and one.shape[-1] != two.shape[-2]:
        raise error("contraction dimension of mat_a and mat_b must match")


def _offsets(one: Tensor, two: Tensor, ends: Tensor | None, words: str, error: type[Exception]) -> None:
    if (ends is not None) != (2 in (one.dim(), two.dim())):
        raise error(words)
    if ends is not None:
        if ends.dim() != 1:
            raise error("offs has to be 1D")
        if ends.dtype is not torch.int32:
            raise error("Offsets have to be int32")


class ScaledGrouped(SubstituteKernel):
    """Both versions of `torch._scaled_grouped_mm`, once a call is known to be allowed."""

    def __init__(self, func: OpOverload, kind: str) -> None:
        super().__init__(func)
        self.kind = kind

    def __call__(self, *args: object, **kwargs: object) -> object:
        given = named(self.func, args, kwargs)
        one, two, ends = given["self"], given["mat2"], given["offs"]
        out = result_like(one, two, ends, torch.bfloat16)
        if one.is_meta:
            return out
        scales = [(value if isinstance(value, (list, tuple)) else [value]) for value in _scales(given)]
        for place, a, b, x, y in _groups(one, two, ends, (scales[0][0], scales[1][0]), self.kind):
            made = torch.mm(a * x, b * y) if self.kind != ROW_WISE else torch.mm(a, b) * x * y
            if self.kind == NVFP4:
                made = made * (scales[0][1][place] * scales[1][1][place])
            _part(out, place, ends, one.dim(), two.dim()).copy_(made)
        return out


def _scales(given: Keywords) -> tuple[Result, Result]:
    return given["scale_a"], given["scale_b"]


def _range(ends: Tensor, place: int) -> slice:
    return slice(int(ends[place - 1]) if place else 0, int(ends[place]))


def _part(out: Tensor, place: int, ends: Tensor | None, first: int, second: int) -> Tensor:
    """What a group writes of the result."""
    if ends is None or first == second:
        return out[place]
    return out[_range(ends, place)] if first == 2 else out[:, _range(ends, place)]


def _groups(
    one: Tensor, two: Tensor, ends: Tensor | None, scales: tuple[Tensor, Tensor], kind: str
) -> list[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
    """(group, operands, what scales them) of each group, in float32."""
    count = len(one) if ends is None else len(ends)
    found = []
    start = [0, 0]  # where the scales of the next group begin, in rows or columns of blocks
    both = one.dim() == two.dim() == 2
    for place in range(count):
        along = slice(None) if ends is None else _range(ends, place)
        a = one[place] if one.dim() == 3 else one[:, along] if both else one[along]
        b = two[place] if two.dim() == 3 else two[along] if both else two[:, along]
        a, b = decoded(a), decoded(b)
        if kind == ROW_WISE:
            x = _row_scale(scales[0], one, place, along, both, len(a))
            y = _row_scale(scales[1], two, place, along, both, b.shape[1])
            found.append((place, a, b, x[:, None], y))
            continue
        sides = []
        for index, (scale, matrix, whole) in enumerate(((scales[0], a, one), (scales[1], b.mT, two))):
            rows, blocks = len(matrix), checks.ceil_div(matrix.shape[1], BLOCK[kind])
            high, wide = checks.round_up(rows, 128), checks.round_up(blocks, 4)
            if whole.dim() == 3:
                tiles = scale[place]
            else:
                flat = scale.reshape(-1)
                tiles = flat[start[index] : start[index] + high * wide]
                start[index] += high * wide
            spread = unswizzled(tiles, rows, blocks).repeat_interleave(BLOCK[kind], 1)
            sides.append(spread[:, : matrix.shape[1]])
        found.append((place, a, b, sides[0], sides[1].mT))
    return found


def _row_scale(scale: Tensor, whole: Tensor, place: int, along: slice, both: bool, count: int) -> Tensor:
    """A group's scales: those of a batch, a part along the sum, or the rows that the group has."""
    if whole.dim() == 3:
        return scale[place]
    return scale[place * count : (place + 1) * count] if both else scale[along]


def scaled(dispatch: Dispatch, call: Call) -> object:
    """Both versions on a device."""
    device = device_in(call.args, call.kwargs)
    if device < 0:
        return dispatch.general(call)
    dispatch.scan(call)
    call.device = device
    return dispatch.general(call.but(func=_checked(dispatch, call)))


def _checked(dispatch: Dispatch, call: Call) -> ScaledGrouped:
    func = call.plan.func
    given = named(func, call.args, call.kwargs)
    one, two, ends = given["self"], given["mat2"], given["offs"]
    capability = dispatch.machine.devices[call.device].gpu.compute_capability
    _require(capability in CAPABILITIES, ARCHITECTURE)
    _require(not is_transposed(one), "Expected mat1 to not be transposed")
    _require(is_transposed(two), "Expected mat2 to be transposed")
    _dimensions(one, two, ValueError)
    text = "Expected trailing dimension of mat_a to be divisible by 16 but got mat1 shape: ({})."
    _require(one.shape[-1] % 16 == 0, text.format(list(one.shape)))
    text = f"Expected mat_b shape to be divisible by 16 but got mat_b shape: ({list(two.shape)})."
    _require(two.shape[-2] % 16 == 0 and two.shape[-1] % 16 == 0, text)
    _require(given["bias"] is None, "Bias not supported yet")
    _require(given.get("scale_result") is None, "Scale result not supported yet")
    _offsets(one, two, ends, "Have to provide offsets if there is a 2d matrix", ValueError)
    if "recipe_a" in given:
        kind = _kind_of_recipes(given)
        scales = given["scale_a"][0], given["scale_b"][0]
    else:
        scales = _scales(given)
        types = {scale.dtype for scale in scales}
        words = "For FP8 tensorwise and rowwise, both scales must both be float32 tensors. For MXFP8, scales must both "
        _require(types in ({torch.float32}, {checks.E8M0}), words + "be float8_e8m0fnu tensors.")
        kind = ROW_WISE if types == {torch.float32} else MXFP8
    times = len(ends) if one.dim() == two.dim() == 2 else 1
    for index, (matrix, scale) in enumerate(zip((one, two), scales, strict=True)):
        (_rows_fit if kind == ROW_WISE else _blocks_fit)(matrix, scale, index, times, kind)
    _require(
        given["out_dtype"] in (None, torch.bfloat16),
        "Only bf16 high precision output types are supported for grouped gemm",
    )
    for matrix in (one, two) if kind == ROW_WISE else ():
        e4m3 = matrix.dtype is torch.float8_e4m3fn
        _require(e4m3, f"Expected mat_a to be Float8_e4m3 matrix got {scalar_type(matrix.dtype)}")
    if kind != ROW_WISE:
        _require(one.dim() == 2, "MXFP8 grouped GEMM currently only supports 2d-2d and 2d-3d cases")
        if capability != (10, 0):
            raise NotImplementedError(NOT_BUILT)
        if one.dtype is checks.FOUR and two.dim() == 2:
            raise UnsupportedError(
                f"{func.name()} of two 4-bit matrices is not computed here: its offsets lie along packed numbers, in a "
                "layout that FBGEMM does not document; give the second operand one matrix for each group"
            )
    return ScaledGrouped(func, kind)


def _require(holds: bool, text: str, error: type[Exception] = ValueError) -> None:
    if not holds:
        raise error(text)


def _kind_of_recipes(given: Keywords) -> str:
    """The first recipe that types and scales fit."""
    types = given["self"].dtype, given["mat2"].dtype
    sides: list[tuple[tuple[int, ...], list[torch.dtype]]] = [
        (tuple(given[f"recipe_{side}"]), [scale.dtype for scale in given[f"scale_{side}"]]) for side in "ab"
    ]
    e4m3, single = torch.float8_e4m3fn, torch.float32
    for kind, matrices, recipe, scales in (
        (ROW_WISE, checks.EIGHTS, (checks.ROW,), [single]),
        (MXFP8, (e4m3,), (checks.BY_32,), [checks.E8M0]),
        (MXFP4, (checks.FOUR,), (checks.BY_32,), [checks.E8M0]),
        (NVFP4, (checks.FOUR,), (checks.BY_16, checks.TENSOR), [e4m3, single]),
    ):
        if set(types) <= set(matrices) and all(side == (recipe, scales) for side in sides):
            return kind
    raise ValueError("No gemm implementation was found")


def _rows_fit(matrix: Tensor, scale: Tensor, index: int, times: int, kind: str) -> None:
    if matrix.dim() == 2:
        _require(scale.dim() == 1, f"scale must be a 1D tensor, but got {scale.dim()}D, arg {index}", RuntimeError)
        _require(scale.is_contiguous(), f"scale must be contiguous for arg {index}", RuntimeError)
        fits = scale.shape[0] == matrix.shape[index] * times
        _require(fits, f"scale must have the same length as mat for arg {index}", RuntimeError)
        return
    _require(scale.dim() == 2, f"scale must be a 2D tensor, but got {scale.dim()}D for arg {index}", RuntimeError)
    lies = scale.stride(1) == 1
    _require(lies, f"scale must be contiguous in the last dimension for arg {index}", RuntimeError)
    fits = scale.shape[0] == matrix.shape[0]
    _require(fits, f"scale must have the same batch dimension as mat for arg {index}", RuntimeError)
    fits = scale.shape[1] == matrix.shape[1 + index]
    _require(fits, f"scale must have the same first dimension as mat for arg {index}", RuntimeError)


def _blocks_fit(matrix: Tensor, scale: Tensor, index: int, times: int, kind: str) -> None:
    shape = "({})".format(", ".join(map(str, matrix.shape)))
    if matrix.dim() == 2:
        text = "for block-scaled, scale must have same number of dimensions as parent tensor, but got "
        text += f"mat.dim() = {matrix.dim()} and scale.dim() = {scale.dim()} for arg {index}"
        _require(scale.dim() == 2, text, RuntimeError)
        least = matrix.shape[index]
        text = f"for block-scaled, arg {index} tensor shape {shape} must have scale.shape[0] >= {least} but got "
        text += f"scale.shape=({scale.shape[0]}, {scale.shape[1]})"
        _require(scale.shape[0] >= least, text, RuntimeError)
        return
    count, length, columns = matrix.shape[0], checks.unpacked(matrix, 1), matrix.shape[2]
    wide, high = checks.round_up(length // BLOCK[kind], 4), checks.round_up(columns, 128)
    text = "for block-scaled 2d-3d grouped GEMM, the 3d tensor of shape (G,K,N) must have a 2d scale of shape "
    text += f"(G, blocked_scale_K * blocked_scale_N),but scale is {scale.dim()}D for arg {index}"
    _require(scale.dim() == 2, text, RuntimeError)
    text = f"for block-scaled grouped GEMM, the tensor shape ({count}, {length}, {columns}) must have scale shape "
    text += f"({count},{wide},{high}) for arg {index}, got: {scale.shape[0]}, {scale.shape[1]}"
    _require(tuple(scale.shape) == (count, wide * high), text, RuntimeError)


def replayed(dispatch: Dispatch, call: Call) -> object:
    """The values of `scaled` in a graph's replay."""
    return dispatch.compute(call.but(func=_checked(dispatch, call)))


SCALED: Sequence[str] = ("aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
HANDLERS = {"aten::_grouped_mm": grouped, **dict.fromkeys(SCALED, scaled)}
"""Operators with handlers of their own."""
VALUES = dict.fromkeys(SCALED, replayed)
"""What computes them in a replay."""
