"""The roofline of one kernel, which the cost model and the reports share: its arithmetic, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping

_HALF = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
_NARROW = {"float8": "fp8", "float4": "fp4"}
"""By how the names of such dtypes begin."""
_FIRST_TENSOR_CORES = 7
"""The major compute capability from which products of half precision run on tensor cores (Volta)."""


def precision(dtype: str, tf32: bool, peaks: Mapping[str, float]) -> str:
    """The arithmetic of a matrix operator on inputs of a dtype: a key of a GPU's `peak_flops`, "fp32" for all others.

    `tf32` says that the operator may use TF32.
    """
    name = dtype.removeprefix("torch.")
    if name in ("float64", "double", "complex128"):
        return "fp64_tensor" if "fp64_tensor" in peaks else "fp64"
    if name in ("float32", "float"):
        return "tf32" if tf32 and "tf32" in peaks else "fp32"
    kind = _NARROW.get(name[:6]) or ("int8" if name in ("int8", "uint8") else _HALF.get(name, "fp32"))
    return kind if kind in peaks else "fp32"


def on_tensor_cores(kind: str, major: int) -> bool:
    """Whether a precision is tensor cores' work on a GPU of this major compute capability."""
    return major >= _FIRST_TENSOR_CORES and kind not in ("fp32", "fp64")


def times_ns(flops: float, size_bytes: float, peak: float, bandwidth: float) -> tuple[float, float]:
    """The shortest times of the arithmetic and of the memory traffic; 0 where a rate is not known."""
    return (1e9 * flops / peak if peak else 0.0), (1e9 * size_bytes / bandwidth if bandwidth else 0.0)


def bound(compute_ns: float, memory_ns: float) -> str:
    """What takes longer."""
    return "compute" if compute_ns > memory_ns else "memory"
