"""The old names of tensor types, by dtype."""

from __future__ import annotations

import torch

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

CPP_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short int",
    torch.int32: "int",
    torch.int64: "long int",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
"""What TypeMeta prints."""

RENAMED = ("Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
"""Scalar types whose tensors have old names in Python's errors (`processErrorMsg` of torch/csrc/Exceptions.cpp)."""


def tensor_type(dtype: torch.dtype, on_device: bool) -> str:
    """What an error calls the type of a tensor: torch.cuda.HalfTensor, CUDABFloat16Type."""
    name = scalar_type(dtype)
    if name in RENAMED:
        return f"torch.{'cuda.' if on_device else ''}{name}Tensor"
    return f"{'CUDA' if on_device else 'CPU'}{name}Type"


def scalar_type(dtype: torch.dtype) -> str:
    """The name that C++ has for a dtype in its messages: Float, Long, ComplexDouble, Float8_e5m2."""
    name = str(dtype).removeprefix("torch.")
    name = f"UInt{name[4:]}" if name.startswith("uint") else name.capitalize()
    return TYPE_NAMES.get(dtype, name).removesuffix("Tensor")
