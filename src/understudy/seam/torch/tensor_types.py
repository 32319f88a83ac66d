"""`torch.cuda.FloatTensor` and its kin: the old names of "a tensor of that dtype on a CUDA device"."""

from __future__ import annotations

from typing import Any

import torch

from understudy.seam.patching import Patch
from understudy.seam.torch.state import State
from understudy.seam.torch.tags import device_of

TYPE_NAMES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.uint8: "ByteTensor",
    torch.int8: "CharTensor",
    torch.int16: "ShortTensor",
    torch.int32: "IntTensor",
    torch.int64: "LongTensor",
    torch.bool: "BoolTensor",
    torch.complex64: "ComplexFloatTensor",
    torch.complex128: "ComplexDoubleTensor",
}
DTYPES = {name: dtype for dtype, name in TYPE_NAMES.items()}


def patches(state: State) -> list[Patch]:
    """One class a dtype, in `torch.cuda`."""
    return [Patch(torch.cuda, name, _tensor_type(name, dtype)) for dtype, name in TYPE_NAMES.items()]


def _tensor_type(name: str, dtype: torch.dtype) -> Any:
    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torch.Tensor) and device_of(instance) >= 0 and instance.dtype is dtype

        def __repr__(cls) -> str:
            return f"<class 'torch.cuda.{name}'>"

    class TensorType(metaclass=Meta):
        """A constructor: sizes give an uninitialized tensor, a sequence one with its values."""

        _us_name = f"torch.cuda.{name}"

        def __new__(cls, *args: Any, device: Any = None) -> Any:
            where = torch.device("cuda") if device is None else torch.device(device)
            if len(args) == 1 and isinstance(args[0], torch.Tensor):
                return args[0].to(where, dtype)
            if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
                return torch.tensor(args[0], dtype=dtype, device=where)
            sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
            return torch.empty(*sizes if sizes else (0,), dtype=dtype, device=where)

    # What PyTorch's own type objects answer.
    TensorType.dtype = dtype  # type: ignore[attr-defined]
    TensorType.is_cuda = True  # type: ignore[attr-defined]
    TensorType.is_sparse = False  # type: ignore[attr-defined]
    TensorType.__module__, TensorType.__name__, TensorType.__qualname__ = "torch.cuda", name, name
    return TensorType
