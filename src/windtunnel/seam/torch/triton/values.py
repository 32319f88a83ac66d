"""Numbers as a GPU computes them, where Triton's interpreter does not: bfloat16 and the float8 types, libdevice.

The interpreter keeps bfloat16 and float8 as unsigned integers. It has no arithmetic on them and truncates where a GPU
rounds to nearest even (`_convert_float` of triton/runtime/interpreter.py against `cvt.rn` of PTX).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.generic]

FORMATS: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp8e5": torch.float8_e5m2,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
"""Types that numpy has not, by Triton's names."""


def is_packed(name: str) -> bool:
    """Whether numbers of this type of Triton's are kept as integers."""
    return name in FORMATS


def widened(data: Array, name: str) -> Array:
    """Numbers of a packed type as float32."""
    if name == "bf16":
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    raw = torch.from_numpy(np.array(data, dtype=np.uint8))
    made: Array = raw.view(FORMATS[name]).to(torch.float32).numpy()
    return made


def narrowed(data: Array, name: str) -> Array:
    """Floating-point numbers in a packed type: rounded to nearest even; float8 saturates, as `cvt.satfinite` does."""
    values = torch.from_numpy(np.array(data, dtype=np.float32))
    kind = FORMATS[name]
    if name == "bf16":
        return np.asarray(values.to(kind).view(torch.int16).numpy().view(np.uint16))
    most = torch.finfo(kind).max
    return np.asarray(values.clamp(-most, most).to(kind).view(torch.uint8).numpy())


def whole(data: Array, kind: np.dtype[np.generic]) -> Array:
    """Floating-point numbers as integers, as `cvt.rzi` saturates them; bytes are cut off those of 16 bits.

    NaN gives 0, or of 64 bits, on either side, the number whose highest bit alone is set (PTX ISA, "Instructions:
    cvt"). The types are those that LLVM chooses for `fptosi` and `fptoui`; triton-lang/triton#10658 prints their
    numbers.
    """
    made = np.dtype(f"{kind.kind}{max(kind.itemsize, 2)}")
    limits, bits = np.iinfo(made), 8 * made.itemsize
    numbers = np.trunc(np.asarray(data, dtype=np.float64))
    above, below = numbers >= float(limits.max) + (bits < 64), numbers < float(limits.min)
    fits = ~(above | below | np.isnan(numbers))
    found = np.where(fits, numbers, 0).astype(made)
    found[above], found[below] = limits.max, limits.min
    if bits == 64 or data.dtype == np.float64:
        found[np.isnan(numbers)] = np.uint64(1 << (bits - 1)).astype(made)
    return found.astype(kind)


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
"""The numbers of E2M1 by their bits."""


def unpacked(data: Array, axis: int) -> Array:
    """Numbers of E2M1, of which a byte holds two along an axis, the low half first."""
    raw = np.moveaxis(np.asarray(data).view(np.uint8), axis, -1)
    halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)
    return np.moveaxis(FP4[halves], -1, axis)


def scaled(data: Array, scales: Array) -> Array:
    """Rows multiplied by the powers of two of their blocks: E8M0, whose largest number stands for NaN."""
    exponents = np.asarray(scales).view(np.uint8).astype(np.int32)
    powers = np.where(exponents == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponents - 127))
    return np.asarray(data * np.repeat(powers, data.shape[-1] // powers.shape[-1], axis=-1), dtype=np.float32)


def erf(data: Array) -> Array:
    """The error function of each element."""
    made: Array = torch.erf(torch.from_numpy(np.array(data))).numpy()
    return made


def product(left: Array, right: Array) -> Array:
    """A matrix product by PyTorch, whose threads `alone` holds back: those of numpy's OpenBLAS wait by spinning."""
    given = (torch.from_numpy(np.require(side, requirements=["C", "W"])) for side in (left, right))
    made: Array = torch.matmul(*given).numpy()
    return made


@contextmanager
def alone() -> Iterator[None]:
    """One thread for PyTorch's own work: a kernel's tiles are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Function = Callable[..., Array]


def _torch(function: Callable[..., torch.Tensor]) -> Function:
    def compute(*arguments: Array) -> Array:
        made: Array = function(*(torch.from_numpy(np.array(argument)) for argument in arguments)).numpy()
        return made

    return compute


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(x), dtype=x.dtype)


LIBDEVICE: dict[str, Function] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos,
    "cosh": np.cosh, "erf": _torch(torch.erf), "erfc": _torch(torch.erfc), "erfinv": _torch(torch.erfinv),
    "exp": np.exp, "exp10": lambda x: np.power(np.asarray(10.0, x.dtype), x), "exp2": np.exp2, "expm1": np.expm1,
    "fabs": np.abs, "fast_cosf": np.cos, "fast_expf": np.exp, "fast_logf": np.log, "fast_log2f": np.log2,
    "fast_powf": np.power, "fast_sinf": np.sin, "fast_tanf": np.tan, "fast_tanhf": np.tanh, "finitef": np.isfinite,
    "floor": np.floor, "fma": lambda x, y, z: x * y + z, "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod,
    "hypot": np.hypot, "isfinited": np.isfinite, "isinf": np.isinf, "isnan": np.isnan,
    "j0": _torch(torch.special.bessel_j0),
    "j1": _torch(torch.special.bessel_j1), "ldexp": np.ldexp, "lgamma": _torch(torch.lgamma), "llrint": np.rint,
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "nearbyint": np.rint,
    "nextafter": np.nextafter, "pow": np.power, "powi": np.power, "rint": np.rint, "rsqrt": _rsqrt,
    "signbit": np.signbit, "signbitd": np.signbit, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan,
    "tanh": np.tanh, "trunc": np.trunc, "y0": _torch(torch.special.bessel_y0), "y1": _torch(torch.special.bessel_y1),
}  # fmt: skip
"""Functions of libdevice (NVIDIA's "libdevice User's Guide") by their names without `__nv_` and the `f` of float32."""


def libdevice(symbol: str) -> Function | None:
    """The function behind a symbol such as `__nv_tanhf`, or None."""
    name = symbol.removeprefix("__nv_")
    return LIBDEVICE.get(name) or LIBDEVICE.get(name.removesuffix("f"))
