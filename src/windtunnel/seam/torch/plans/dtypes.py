"""Dtypes for which the CPU has a kernel and CUDA has none: refused with CUDA's text."""

from __future__ import annotations

from functools import cache

import torch

from windtunnel.operators.card import card, stating
from windtunnel.seam.torch.plans.arguments import Arguments, tensors_in
from windtunnel.seam.torch.tags import VERSION
from windtunnel.seam.torch.type_names import scalar_type

Dtypes = tuple[str, frozenset[torch.dtype]]
"""What a kernel calls itself, and the dtypes that it takes."""
REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
FLOATING = REAL | {torch.complex64, torch.complex128}
WIDE = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
CUDNN = "getCudnnDataTypeFromScalarType()"
"""Says so in words of its own (aten/src/ATen/cudnn/Types.cpp); the CPU convolves integers of 64 bits."""
SETS = {"real": REAL, "floating": FLOATING, "wide": WIDE, "integers": INTEGERS, "complex": COMPLEX}
SETS |= {"bool": frozenset({torch.bool}), "half": frozenset({torch.half}), "bfloat16": frozenset({torch.bfloat16})}
SETS["common"] = FLOATING | COMPLEX | INTEGERS | SETS["bool"]
SETS["unsigned"] = frozenset({torch.uint16, torch.uint32, torch.uint64})
SETS["float8"] = frozenset(
    getattr(torch, name) for name in dir(torch) if name.startswith("float8_") and not name.endswith("e8m0fnu")
)
"""The words of cards."""


def is_since(version: str) -> bool:
    """Whether this PyTorch is of a card's version or newer."""
    return tuple(map(int, version.split("."))) <= VERSION


def _taken(words: str) -> frozenset[torch.dtype]:
    """The dtypes in the words of a card: "complex>=2.10" are taken from that PyTorch on."""
    found: set[torch.dtype] = set()
    for word in words.split():
        name, _, since = word.partition(">=")
        if not since or is_since(since):
            found |= SETS[name]
    return frozenset(found)


DTYPES: dict[str, Dtypes] = {name: (card(name).kernel, _taken(words)) for name, words in stating("takes").items()}
"""Of the operators whose cards say so; those that differ in more than their dtypes stand with them in `kernels/`."""


def check(taken: Dtypes, args: Arguments) -> None:
    """Raise what PyTorch raises where a CUDA kernel does not take its operands' dtype."""
    if (error := refused(taken, args)) is not None:
        raise error


def refused(taken: Dtypes, args: Arguments) -> RuntimeError | None:
    """The error of the first operand whose dtype a CUDA kernel does not take."""
    kernel, dtypes = taken
    for tensor in tensors_in(args):
        if tensor.layout is torch.strided and tensor.dtype not in dtypes:
            if kernel == CUDNN:
                return RuntimeError(f"{CUDNN} not supported for {scalar_type(tensor.dtype)}")
            return refusal(kernel, tensor.dtype)
    return None


def refusal(kernel: str, dtype: torch.dtype) -> RuntimeError:
    """PyTorch's error where a kernel does not take a dtype."""
    return _error()(f"\"{kernel}\" not implemented for '{scalar_type(dtype)}'")


@cache
def _error() -> type[RuntimeError]:
    """The class of that error in this version of PyTorch, of which some newer ones have a subclass."""
    with torch._C._DisableTorchDispatch():
        try:
            torch._C._VariableFunctions.abs(torch.zeros(1, dtype=torch.bool, device="cpu"))
        except RuntimeError as error:
            return type(error)
    return RuntimeError
