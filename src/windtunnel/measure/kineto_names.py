"""Names in Kineto traces and what they mean here: tables, each with its source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from windtunnel.operators.card import card

WAITS = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaFree",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuEventSynchronize",
    }
)
"""Calls that return when a device has caught up (CUDA's "API synchronization behavior")."""

PYTHON = frozenset({"Tensor.tolist", "Tensor.__repr__"})
"""Functions of Python that wait, in the words of emulated traces."""

COPIES = {
    "Memcpy PtoP (Device -> Device)": "Memcpy PtoP (Device -> Device)",
    "CopyHostToDevice": "Memcpy HtoD (Pageable -> Device)",
    "CopyDeviceToHost": "Memcpy DtoH (Device -> Pageable)",
    "CopyDeviceToDevice": "Memcpy DtoD (Device -> Device)",
}
"""What roctracer calls copies (libkineto's RoctracerLogger), in CUPTI's names; CUPTI's stay as they are."""

DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
"""Scalar types as the profiler prints them (`c10::scalarTypeToTypeMeta(t).name()`), and as torch names them."""
DTYPES |= {name: name for name in list(DTYPES.values())}  # as our own exports print them

SIZES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1}
"""Bytes of an element of a collective, by `c10::ScalarType`'s name."""

_MATRIX_UNIT = re.compile(
    r"(?:^|_)[shid]?(?:884|1688|16816|16832)(?:[a-z_]|$)|tensorop|tensor16x8|hmma|gmma|_tf32|nvjet", re.I
)
_OTHER_CORES = re.compile(r"simt|ffma", re.I)


def is_matrix_unit(kernel: str) -> bool:
    """Whether a kernel of cuBLAS, cuDNN or CUTLASS uses tensor cores, by its name.

    They carry the shape of the instruction (`s884`, `s1688`, `s16816`, `gmma`) or say `tensorop`; `simt` and `ffma` are
    the other cores (OpcodeClass in CUTLASS's `python/cutlass_library/library.py`).
    """
    return _MATRIX_UNIT.search(kernel) is not None and _OTHER_CORES.search(kernel) is None


def waiting_operator(call: str, operators: Sequence[Mapping[str, object]]) -> str:
    """The cause of a wait, in the words of emulated traces: an operator that waits, a blocking copy, or the call.

    The innermost operator around a wait is its cause, be it a copy of what another one needs on the device; `.item()`
    is `aten::_local_scalar_dense`.
    """
    names = [str(operator.get("name", "")) for operator in reversed(operators)]
    for name in names:
        if name in PYTHON or card(name).waits:
            return name
        if (name == "aten::to" or card(name).transfers) and PYTHON.isdisjoint(names):
            return "cudaMemcpy (blocking)"
    return call
