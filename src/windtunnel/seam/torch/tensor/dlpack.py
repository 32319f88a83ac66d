"""DLPack: a tensor that leaves as a capsule and comes back lives where it lived."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.exports import lend, place_at
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import HOST_TAG, Tag, attach, device_of, is_physically_meta, storage_of

C = torch._C
KDLCUDA = 2
NO_VALUES = (
    "a tensor without values cannot be lent by DLPack: hand it over by __cuda_array_interface__ "
    "(cuda.as_cuda_array of Numba), or run with data"
)


def patches(_: State) -> list[Patch]:
    """The functions that make capsules and read them."""
    pointer = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]

    def exporting(stock: Callable[..., object]) -> object:
        def to_dlpack(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            storage = storage_of(tensor)
            if storage._wt is not HOST_TAG:
                if is_physically_meta(tensor):
                    raise UnsupportedError(NO_VALUES)
                lend(pointer(storage), storage._wt)
            return stock(tensor, *args, **kwargs)

        return to_dlpack

    stock_from = C._from_dlpack

    def from_dlpack(capsule: object) -> torch.Tensor:
        made: torch.Tensor = stock_from(capsule)
        storage = storage_of(made)
        lent = place_at(pointer(storage))  # the storage behind a capsule begins at the tensor's first element
        if lent is not None:
            # What another framework lends is its own: this process's PyTorch does not count it.
            attach(storage, lent if isinstance(lent, Tag) else Tag(lent.device, lent.size))
        return made

    found = _numpy(C._to_dlpack)
    found += [Patch(C, "_from_dlpack", from_dlpack), Patch(torch.utils.dlpack, "to_dlpack", exporting(C._to_dlpack))]
    found.append(Patch(torch, "to_dlpack", exporting(C._to_dlpack)))
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        if hasattr(C, name):
            found.append(Patch(C, name, exporting(getattr(C, name))))
    if hasattr(torch.utils.dlpack, "_from_dlpack"):  # before torch 2.7
        found.append(Patch(torch.utils.dlpack, "_from_dlpack", from_dlpack))
    return found


def _numpy(to_dlpack: Callable[[torch.Tensor], object]) -> list[Patch]:
    """NumPy gets a capsule that says CUDA, which it refuses in its own words."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    stock = numpy.from_dlpack

    def from_dlpack(x: object, /, **kwargs: object) -> object:
        if isinstance(x, torch.Tensor) and device_of(x) >= 0:
            x = OnDevice(to_dlpack(x.detach()), device_of(x))
        return stock(x, **kwargs)

    return [Patch(numpy, "from_dlpack", from_dlpack)]


class OnDevice:
    """A capsule whose `DLDevice` is a CUDA device (dlpack.h: the device follows the data's pointer)."""

    def __init__(self, capsule: object, index: int) -> None:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        device = (ctypes.c_int32 * 2).from_address(address)
        device[0], device[1] = KDLCUDA, index
        self._capsule = capsule
        self._index = index

    def __dlpack__(self, **kwargs: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDLCUDA, self._index
