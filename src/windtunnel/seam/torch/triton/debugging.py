"""What a kernel says and asserts: `device_print` in CUDA's form, and `device_assert`, which ends the context."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from windtunnel.seam.torch.triton.base import Base, TensorHandle
from windtunnel.seam.torch.triton.memory import AssertedError
from windtunnel.seam.torch.triton.values import is_packed, widened


class Debugging(Base):
    """The builder's operations that are for the programmer's eyes."""

    def create_print(self, prefix: str, hex: bool, values: Sequence[TensorHandle], isSigned: Sequence[bool]) -> None:
        """`device_print`: one line for each element (lib/Conversion/TritonGPUToLLVM/PrintOpToLLVM.cpp of Triton)."""
        if self.now.dry:
            return
        program = "pid ({}, {}, {})".format(*self._builder.grid_idx)
        if not values:
            print(program + prefix)
        for operand, handle in enumerate(values):
            name = handle.dtype.scalar.name
            data = widened(handle.data, name) if is_packed(name) else handle.data
            which = f"(operand {operand}) " if len(values) > 1 else ""
            widths = [math.ceil(math.log10(size)) for size in data.shape] if (data.ndim > 1 or data.size > 1) else []
            for place, element in np.ndenumerate(data):
                index = ", ".join(f"{at:{width}}" for at, width in zip(place, widths, strict=False))
                print(f"{program} idx ({index}){prefix}{which}{_printed(element, hex)}")

    def create_assert(self, condition: TensorHandle, message: str) -> None:
        """`device_assert` of a kernel that is compiled for debugging."""
        if self.now.host and not np.all(condition.data):
            raise AssertedError(message, self.line())


def _printed(element: np.generic, hexadecimal: bool) -> str:
    """A number as C's printf writes it."""
    if hexadecimal:
        raw = int.from_bytes(element.tobytes(), "little")
        return f"0x{raw:0{2 * element.itemsize}x}"
    return f"{float(element):f}" if element.dtype.kind == "f" else str(int(element))
