"""The surface of storages: their device, and moving them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.moves import transfer
from windtunnel.seam.torch.rehearsal.assumptions import refusal
from windtunnel.seam.torch.rehearsal.known import MOST
from windtunnel.seam.torch.state.late import alias
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, HOST_TAG, Storage, bytes_in, storage_of

BASE: type[Any] = torch._C.StorageBase
"""Whose methods the stubs do not have."""


def patches(state: State) -> list[Patch]:
    """The names of `torch.UntypedStorage` and `torch.TypedStorage` to replace."""
    return [Patch(Storage, "_wt", HOST_TAG), _making(state), *_reading(state), *_moving(state), *_resizing(state)]


def _index(storage: Storage) -> int:
    return max(CPU, int(storage._wt.device))


def _is_meta(storage: Storage) -> bool:
    """Whether a storage is the program's own on the meta device; those of a rehearsal are on emulated devices."""
    return _index(storage) < 0 and bool(BASE.device.__get__(storage).type == "meta")


def _lacks_values(storage: Storage) -> bool:
    """Whether a storage lies on an emulated device, in a rehearsal without data."""
    return _index(storage) >= 0 and bool(BASE.device.__get__(storage).type == "meta")


def refuse_meta(storage: Storage) -> None:
    """Raise PyTorch's error where a storage has no bytes to copy."""
    if _is_meta(storage):
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def _making(state: State) -> Patch:
    stock: Callable[..., Storage] = BASE.__new__

    def new(cls: object, *args: object, device: object = None, **kwargs: object) -> object:
        index = CPU if device is None else state.index(device)
        if index < 0:
            return stock(cls, *args, **kwargs) if device is None else stock(cls, *args, device=device, **kwargs)
        made = stock(cls, *args, **kwargs)
        state.place(made, index)
        return made

    return Patch(Storage, "__new__", new)


def _reading(state: State) -> list[Patch]:
    local = state.local

    def device(self: Storage) -> torch.device:
        index = CPU if local.inner else _index(self)
        return state.cuda_devices[index] if index >= 0 else BASE.device.__get__(self)

    def is_cuda(self: Storage) -> bool:
        return not local.inner and _index(self) >= 0

    def data_ptr(self: Storage) -> int:
        tag = self._wt
        if tag.device >= 0:
            return int(tag.block.address) if tag.block is not None else 0
        return int(BASE.data_ptr(self))

    def is_pinned(self: Storage, device: object = "cuda") -> bool:
        return bool(self._wt.pinned)

    stock: Callable[..., object] = Storage.__getitem__

    def getitem(self: Storage, *args: object, **kwargs: object) -> object:
        if isinstance(args[0], slice) and not local.inner and _index(self) >= 0:
            raise UnsupportedError(
                "a slice of a storage on a GPU is part of its memory, which is not emulated: slice the tensor instead"
            )
        return stock(self, *args, **kwargs)

    return [
        Patch(Storage, "__getitem__", getitem),
        Patch(Storage, "device", property(device)),
        Patch(Storage, "is_cuda", property(is_cuda)),
        Patch(Storage, "get_device", _index),
        Patch(Storage, "data_ptr", data_ptr),
        Patch(Storage, "is_pinned", is_pinned),
    ]


def _shape_copied(state: State, storage: Storage, index: int, non_blocking: bool) -> Storage:
    """A copy on a device of a storage without values, or of the host's, of which few bytes are known there."""
    if index < 0:
        raise UnsupportedError(refusal(state, "the program reads the memory of a device tensor"))
    new, has_values = torch.ops.aten.empty.memory_format, not _lacks_values(storage)
    with torch._C._DisableTorchDispatch():
        source = bytes_in(storage) if has_values else new((0,), dtype=torch.uint8, device="meta").set_(storage)
        destination = new(source.size(), dtype=torch.uint8, device="meta")
    made: Storage = storage_of(destination)
    state.place(made, index)
    if has_values and 0 < source.numel() <= MOST:
        state.assumptions.exact.keep(destination, alias(source))
    if storage._wt.device != index and storage.nbytes():
        transfer(state, source, destination, non_blocking, late=False)
    return made


def _left_as_it_is(state: State, source: Storage, destination: Storage, non_blocking: bool) -> bool:
    """Whether a storage without values was to be copied to the host, whose memory keeps what it has."""
    if _index(destination) >= 0 or not _lacks_values(source):
        return False
    with torch._C._DisableTorchDispatch():
        given = torch.ops.aten.empty.memory_format((0,), dtype=torch.uint8, device="meta").set_(source)
    state.assumptions.note("copy", value=str(source.nbytes()))
    destination._wt_made_up = True
    transfer(state, given, bytes_in(destination), non_blocking, late=False)
    return True


def _moving(state: State) -> list[Patch]:
    def moved(self: Storage, index: int, non_blocking: bool = False) -> Storage:
        if index == _index(self) and not _is_meta(self):
            return self
        return _copy_to(self, index, non_blocking)

    def _copy_to(self: Storage, index: int, non_blocking: bool) -> Storage:
        refuse_meta(self)
        if _lacks_values(self) or (index >= 0 and state.no_data and not state.local.valued):
            return _shape_copied(state, self, index, non_blocking)
        made = Storage(self.nbytes())  # type: ignore[no-untyped-call]
        if index >= 0:
            state.place(made, index)
        elif non_blocking and _index(self) >= 0:  # into page-locked memory, which is late: `_to` of torch/_utils.py
            made = state.pinned_copy(made)
            bytes_in(made).copy_(bytes_in(self), True)
            return made
        if self.nbytes():
            source, destination = bytes_in(self), bytes_in(made)
            with torch._C._DisableTorchDispatch():
                alias(destination).copy_(alias(source))
            if self._wt.device != made._wt.device:
                transfer(state, source, destination, non_blocking, late=False)
        return made

    def to(self: Storage, *, device: object, non_blocking: bool = False) -> object:
        return moved(self, state.index(device), non_blocking)

    def cuda(self: Storage, device: object = None, non_blocking: bool = False) -> object:
        return moved(self, state.index(torch.device("cuda") if device is None else device), non_blocking)

    def cpu(self: Storage) -> object:
        return moved(self, CPU)

    def clone(self: Storage) -> object:
        return _copy_to(self, _index(self), False)

    def copy_(self: Storage, source: Storage, non_blocking: object = None) -> object:
        refuse_meta(source)
        if not _left_as_it_is(state, source, self, bool(non_blocking)):
            bytes_in(self).copy_(bytes_in(source), bool(non_blocking))
        return self

    def tolist(self: Storage) -> list[int]:
        return list(moved(self, CPU)) if _index(self) >= 0 else list(self)

    def pin_memory(self: Storage, device: object = "cuda") -> object:
        if _index(self) >= 0 or _is_meta(self):
            raise TypeError(f"cannot pin '{self.type()}' only CPU memory can be pinned")
        if self._wt.pinned:
            return self
        return state.pinned_copy(self)

    def _write_file(self: Storage, *args: object) -> object:
        refuse_meta(self)
        return stock_write(self, *args)

    stock_write: Callable[..., object] = Storage._write_file
    functions = (to, cuda, cpu, clone, copy_, tolist, pin_memory, _write_file)
    return [Patch(Storage, f.__name__, f) for f in functions]


def _resizing(state: State) -> list[Patch]:
    stock = Storage.resize_

    def resize_(self: Storage, size: int) -> object:
        out = stock(self, size)
        tag = self._wt
        if tag is not HOST_TAG and tag.device >= 0 and tag.size != self.nbytes():
            state.resized(self)
        return out

    return [Patch(Storage, "resize_", resize_)]
