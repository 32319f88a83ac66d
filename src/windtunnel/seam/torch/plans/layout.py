"""How the operands of an operator lie in memory, as far as its time depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch

from windtunnel.operators.card import Card
from windtunnel.seam.torch.plans.arguments import Arguments, tensors_in


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, of a sparse one's values."""
    if tensor.layout is not torch.strided:
        return int(tensor._nnz()) * tensor.element_size() if tensor.layout is torch.sparse_coo else 0
    return tensor.numel() * tensor.element_size()


FOUR: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
"""Two numbers of four bits in a byte."""


class Disorder(NamedTuple):
    """How the operands of an operator lie in memory, as far as its time depends on it.

    Bytes of those of the result's size, or of parts that are concatenated or padded, whose neighbours in memory are not
    those of the result; where any other such operand has strides of its own, so that the kernel works out each
    element's place, in how many dimensions it does; whether channels come last; bytes that are not in memory, of an
    expanded operand, or once only, of one that is given twice.
    """

    scattered: int = 0
    strided: int = 0
    channels_last: bool = False
    repeated: int = 0


ORDERLY = Disorder()
BENCHMARK: Callable[[], bool] = torch._C._get_cudnn_benchmark
Layout = Callable[[Arguments], tuple[str, ...]]


def channels_last(tensor: torch.Tensor) -> bool:
    """Whether an image's or a kernel's channels lie next to each other, by its strides: 1x1 kernels are told apart.

    A part of the channels of such an image counts as one.
    """
    if tensor.dim() not in (4, 5) or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    strides = tensor.stride()
    return bool(strides[1] == 1 and strides[-1] >= tensor.shape[1] > 1)


def disorder(args: Arguments, out: object) -> Disorder:
    """How the operands of an operator lie in memory."""
    result = out[0] if isinstance(out, (tuple, list)) else out
    parts = args[0] if args and isinstance(args[0], (tuple, list)) else ()
    tensors = [one for one in (result, *args, *parts) if one.__class__ is torch.Tensor and one.layout is torch.strided]
    if all(one.is_contiguous() for one in tensors):
        twice = len(args) > 1 and args[0] is args[1] and isinstance(args[0], torch.Tensor)
        return Disorder(repeated=bytes_of(args[0])) if twice else ORDERLY
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or result.is_nested:
        return ORDERLY
    dense, shape, strides = fastest_dimension(result), result.shape, result.stride()
    given = {id(one): one for one in args}  # parts are read one after the other
    operands, once = _plain((*args, *parts)), _plain((*given.values(), *parts))
    whole = [one for one in operands if one.dim() == len(shape) and _is_part(one.shape, shape)]
    return Disorder(
        sum(bytes_of(one) for one in whole if _lies_across(one, dense)),
        places(result, operands) if any(one.stride() != strides for one in whole if one.shape == shape) else 0,
        any(map(channels_last, tensors)),
        sum(map(bytes_of, operands)) - sum(map(stored_bytes, once)),
    )


def places(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> int:
    """In how many dimensions an element-wise kernel works out places: those that no operand has a step between are one.

    `TensorIteratorBase::coalesce_dimensions` (aten/src/ATen/TensorIterator.cpp), along the result's dimensions.
    """
    steps = [one.expand(result.shape).stride() for one in operands if _repeats(one, result)]
    steps.append(result.stride())
    strides = result.stride()
    known = sorted((at for at, size in enumerate(result.shape) if size != 1), key=lambda at: -strides[at])
    apart = sum(
        any(stride[outer] != result.shape[inner] * stride[inner] for stride in steps)
        for outer, inner in pairwise(known)
    )
    return min(1, len(known)) + apart


def _repeats(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether a tensor has the result's shape, or is repeated along it."""
    sizes = zip(reversed(tensor.shape), reversed(result.shape), strict=False)
    return tensor.dim() <= result.dim() and all(size in (1, whole) for size, whole in sizes)


def _plain(some: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among them that have strides."""
    tensors = (one for one in some if isinstance(one, torch.Tensor) and one.layout is torch.strided)
    return [one for one in tensors if not one.is_nested]


def _lies_across(tensor: torch.Tensor, dense: int) -> bool:
    """Whether a tensor's neighbours along a dimension lie apart in memory, not side by side or all in one place."""
    return dense >= 0 and fastest_dimension(tensor) != dense and tensor.stride(dense) != 0


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements in memory: one that is expanded has some of them many times."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return min(1, tensor.numel()) * tensor.element_size() * prod(size for stride, size in sizes if stride)


def _is_part(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a tensor of this shape may be a part of another, rather than repeated along it."""
    return all(size == full or size > 1 for size, full in zip(shape, whole, strict=True))


def layout_of(known: Card, names: Sequence[str]) -> Layout | None:
    """What says how the operands of a convolution or a matrix product lie, as far as its time depends on it."""
    if known.kind.name == "convolution":
        return images_layout
    if not (known.workspace and known.tf32):
        return None
    return partial(operands_layout, next((i for i, name in enumerate(names) if name in ("mat1", "batch1", "mat")), 0))


def fastest_dimension(tensor: torch.Tensor) -> int:
    """The dimension along which a tensor's elements lie next to each other, the last of several; -1 where none does."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    found = [(stride, -dim) for dim, (stride, size) in enumerate(sizes) if size > 1 and stride > 0]
    return -min(found)[1] if found else -1


def images_layout(args: Arguments) -> tuple[str, ...]:
    """Whether the channels of a convolution's images or kernel come last, and whether cuDNN tries its algorithms."""
    last = any(map(channels_last, tensors_in(args[:3])))
    return ("channels_last",) * last + ("benchmark",) * BENCHMARK()


IN_LINE = frozenset({"transposed_a", "transposed_b", "shared_a", "shared_b"})
"""What of a product's factors cuBLAS takes as it lies."""


def operands_layout(first: int, args: Arguments) -> tuple[str, ...]:
    """Which operands of a matrix product lie transposed in memory, which are the same matrix for a whole batch, and
    which cuBLAS is given a copy of.

    The rows of a transposed one, not its columns, are contiguous.
    """
    found = []
    for which, tensor in zip("ab", args[first : first + 2], strict=False):
        if tensor.dim() > 1 and tensor.layout is torch.strided and not tensor.is_nested:
            down, across = tensor.stride()[-2:]
            if across != 1 or down < tensor.shape[-1]:  # else its rows lie in line, as most do
                if across != 1 == down:
                    found.append(f"transposed_{which}")
                if is_copied(tensor):
                    found.append(f"copied_{which}")
            if tensor.dim() == 3 and tensor.stride(0) == 0 and len(tensor) > 1:
                found.append(f"shared_{which}")
    return tuple(found)


def is_copied(matrix: torch.Tensor) -> bool:
    """Whether PyTorch copies a factor for cuBLAS: neither rows nor columns lie in line, as in an expanded gradient.

    aten/src/ATen/native/cuda/Blas.cpp: prepare_matrix_for_cublas, prepare_batch_matrix_for_cublas.
    """
    rows, columns = matrix.shape[-2:]
    down, across = matrix.stride()[-2:]
    if (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows)):
        return False
    if matrix.dim() == 2:
        return not is_dense(matrix)
    return not (matrix.is_contiguous() and down and across)


def is_dense(matrix: torch.Tensor) -> bool:
    """Whether a matrix has all elements of its memory, in one order or the other."""
    return matrix.is_contiguous() or matrix.t().is_contiguous()
