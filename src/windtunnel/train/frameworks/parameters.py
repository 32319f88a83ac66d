"""Parameters on disk, for any framework: one safetensors file of NumPy arrays, written atomically.

The Trainers beside this file build their `save_parameters` and `load_parameters` on it. The file names no device: it
can be read on a machine without GPUs, and by any library that reads safetensors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from windtunnel.errors import FileFormatError, UsageError

KEPT = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "bfloat16")
KEPT += ("float32", "float64", "complex64")
"""The types that safetensors both writes from NumPy and reads into it."""


def write(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` by name; the file is complete or does not exist.

    Raises UsageError if the format lacks an array's type or the file cannot be written.
    """
    path = Path(path)
    for name, array in arrays.items():
        if array.dtype.name not in KEPT:
            raise UsageError(
                f"{path} cannot hold {name!r} of type {array.dtype}: convert it to one of {', '.join(KEPT)}."
            )
    draft = path.with_name(f".draft-{path.name}-{os.getpid()}")
    try:
        save_file({name: np.array(array, order="C") for name, array in arrays.items()}, draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} could not be written: {error}.") from error
    finally:
        draft.unlink(missing_ok=True)


def read(path: str | Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The arrays of a file by name. `expected` maps the names of the model to their shapes.

    Raises FileFormatError if the file is missing or damaged, UsageError if it belongs to another model.
    """
    try:
        arrays: dict[str, np.ndarray] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"{path} cannot be read as safetensors: {error}.") from error
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            there, wanted = (_shape(shapes.get(name)) for shapes in (found, expected))
            raise UsageError(
                f"{path} is of a different model: {name!r} is {there} in the file and {wanted} in the model."
            )
    return arrays


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {shape}"
