"""`__cuda_array_interface__` both ways: what a tensor lends is found again by its address when it comes back.

An array of another library on a device holds what a tensor lent it, or what the emulated driver gave that library
(`extensions/`). Every other address is what the driver does not know
(https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html; torch/csrc/utils/tensor_numpy.cpp).
"""

from __future__ import annotations

import weakref
from typing import Protocol

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Storage, storage_of
from windtunnel.trace.plain import Json

UNKNOWN = "The specified pointer resides on host memory and is not registered with any CUDA device."

_lent: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


def patches(state: State) -> list[Patch]:
    """The property of `torch.Tensor`, which also remembers whose memory it showed."""
    stock = torch.Tensor.__dict__["__cuda_array_interface__"]

    def interface(self: torch.Tensor) -> object:
        found = stock.__get__(self, type(self))
        storage = storage_of(self)
        _lent[storage.data_ptr()] = storage
        return found

    return [Patch(torch.Tensor, "__cuda_array_interface__", property(interface, doc=stock.__doc__))]


class ArrayInterface(Protocol):
    """An object that shows memory of a device."""

    @property
    def __cuda_array_interface__(self) -> Json:
        """Where it is, and its type and shape."""


def tensor_of(state: State, array: ArrayInterface) -> torch.Tensor:
    """The tensor over the memory that an object with `__cuda_array_interface__` shows.

    Raises:
        RuntimeError: as PyTorch, where the address is on no device.
    """
    import numpy  # PyTorch reads the interface's types with it, too

    shown = array.__cuda_array_interface__
    shape, pointer = shown["shape"], shown["data"][0]
    kind = numpy.dtype(shown["typestr"])
    dtype = torch.from_numpy(numpy.empty(0, kind)).dtype
    strides = shown.get("strides")
    if strides is None:
        steps = torch.empty(shape, device="meta").stride()
    elif any(stride % kind.itemsize for stride in strides):
        raise ValueError("given array strides not a multiple of the element byte size. ")
    else:
        steps = tuple(stride // kind.itemsize for stride in strides)
    for begin, storage in list(_lent.items()):
        if begin <= pointer < begin + max(1, storage.nbytes()):
            empty = torch.empty(0, dtype=dtype, device=storage.device)
            return empty.set_(storage, (pointer - begin) // kind.itemsize, shape, steps)
    outside = state.memory.outside(pointer)
    if outside is None:
        raise RuntimeError(UNKNOWN)
    storage, begin = outside
    storage._wt_lender = array  # type: ignore[attr-defined]  # whose end is the memory's
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(storage, (pointer - begin) // kind.itemsize, shape, steps)
