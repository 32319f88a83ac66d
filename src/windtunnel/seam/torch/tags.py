"""Which device a tensor lives on: a tag on its storage.

PyTorch keeps the Python object of a storage, and what is set on it, for as long as the C++ storage lives, also when
only autograd holds it. So a tag's end is the end of the memory: `Tag.__del__` is the allocator's free. It may run at
any moment and on any thread, so it only appends to a deque, after noting how far the streams are that were recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.memory.host_allocator import HostBlock
from windtunnel.machine.memory.pending import Frees
from windtunnel.machine.order import Accesses
from windtunnel.machine.stream import Stream

CPU = -1
NOWHERE = -2
"""No tensor was seen."""
FLOATING = -3
"""Made by C++ with device=cpu inside a composite: adopts the first device that it meets."""

functorch = torch._C._functorch


if TYPE_CHECKING:

    class Storage(torch.UntypedStorage):
        """PyTorch's storage, with what lies on it: tag, a captured graph's own memory, values, who hears its end."""

        _wt: Tag
        _wt_end: object
        _wt_graph: object
        _wt_values: torch.Tensor | None
        _wt_zeros: bool
        _wt_guess: str
        _wt_made_up: bool

else:
    Storage = torch.UntypedStorage

storage_of: Callable[[torch.Tensor], Storage] = torch._C.TensorBase.untyped_storage  # type: ignore[assignment]
shape_of: Callable[[torch.Tensor], torch.Size] = torch._C.TensorBase.shape.__get__  # type: ignore[attr-defined]
dtype_of: Callable[[torch.Tensor], torch.dtype] = torch._C.TensorBase.dtype.__get__  # type: ignore[attr-defined]
is_contiguous: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_contiguous

is_physically_meta: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]
"""Whether a tensor has no values, whatever device its tag says: the program's own, or a rehearsal's without data."""

ORDINARY: frozenset[type] = frozenset({torch.Tensor, torch.nn.Parameter})
"""Tensors that are no subclass of anybody's, which might be made of others."""

TRACED: frozenset[type] = frozenset({FakeTensor, FunctionalTensor})
"""Tensors with which compilers trace shapes: they name a device, and nothing happens there."""


VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
UNTRACK: Callable[[object], None] | None = None
"""Takes a storage out of the garbage collector's sight, for versions of PyTorch in which that would empty it.

There a storage whose last Python reference is in a garbage cycle (`torch.save` leaves one) has its attributes cleared,
though it lives on in C++ and comes back without its tag.
"""

if VERSION < (2, 13):
    untrack = ctypes.pythonapi.PyObject_GC_UnTrack
    untrack.argtypes, untrack.restype = [ctypes.py_object], None
    UNTRACK = untrack


def attach(storage: Storage, tag: Tag) -> None:
    """Put a tag on a storage, to stay for as long as the storage lives."""
    storage._wt = tag
    if UNTRACK is not None:
        UNTRACK(storage)


def bytes_in(storage: Storage) -> torch.Tensor:
    """A storage's bytes, as a tensor that shares them."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def size_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """A tensor's shape; of a nested one, which has none, its number of elements."""
    try:
        return shape_of(tensor)
    except RuntimeError:
        return (tensor.numel(),)


disable_torch_function = torch._C.DisableTorchFunctionSubclass


BLANK = object()
"""Says of a storage that it was made without values, and not written since."""


class Tag:
    """Where a storage lives and what is known of it.

    `device` is an emulated device's index, or CPU for pinned memory, or FLOATING. `block` is the allocator's block,
    returned to `frees` when the storage dies. `epoch` is the work on `stream` that wrote it last. `late` counts the
    pending writes of asynchronous copies into pinned memory, `generation` is the emulation it belongs to. `blank` is
    BLANK while nobody is known to have written the memory, then the pieces that operators wrote, and an array of bytes
    (1 for unwritten) once a Triton kernel has seen it (`state.blank`).
    """

    __slots__ = (
        "__weakref__", "accesses", "blank", "block", "category", "device", "epoch", "frees", "generation", "late",
        "number", "pinned", "site", "size", "stream", "version",
    )  # fmt: skip

    def __init__(self, device: int, size: int) -> None:
        self.device = device
        self.size = size
        self.block: Block | HostBlock | None = None
        self.frees: Frees[Block, int] | Frees[HostBlock, tuple[int, int]] | None = None
        self.accesses: Accesses | None = None
        self.blank: object = None
        self.pinned = False
        self.late = 0
        self.epoch = 0
        self.stream: Stream | None = None
        self.number = 0
        self.version = 0
        self.site = 0
        self.category = 0

    def __del__(self) -> None:
        block = self.block
        if block is not None and self.frees is not None:
            # Both are those of the block's own allocator.
            if block.uses is not None:
                self.frees.record(block.uses)  # type: ignore[arg-type]
            # What other streams still do with the memory stays on the block.
            if self.accesses is not None:
                self.accesses.base = block.address
                block.accesses = self.accesses
            self.frees.append(block)  # type: ignore[arg-type]


class _HostTag:
    """The tag of every storage that has none: pageable host memory."""

    __slots__ = ("__weakref__",)
    device = CPU
    size = 0
    block = None
    accesses = None
    blank = None
    pinned = False
    late = 0
    epoch = 0
    stream = None
    number = 0
    version = 0
    site = 0


HOST_TAG: Tag = cast(Tag, _HostTag())


def named(kwargs: dict[str, object]) -> bool:
    """Whether a program's own call says the device of an operator: then `pin_memory` is there too.

    The functions of Python always say it, those that C++ calls with a tensor's options never do (tools/autograd/
    gen_python_functions.py; `TensorBase::options` of aten/src/ATen/core/TensorBase.h).
    """
    return kwargs.get("device") is not None and kwargs.get("pin_memory") is not None


def tag_of(tensor: torch.Tensor) -> Tag:
    """The tag of a tensor's memory; of a sparse tensor's values; HOST_TAG where there is none."""
    try:
        return storage_of(tensor)._wt
    except (NotImplementedError, RuntimeError, ValueError):
        return _tag_without_storage(tensor)


def device_of(tensor: torch.Tensor) -> int:
    """The emulated device's index, CPU, or FLOATING."""
    try:
        tag = storage_of(tensor)._wt
    except (NotImplementedError, RuntimeError, ValueError):
        tag = _tag_without_storage(tensor)
    if tag is HOST_TAG and tensor.__class__ not in (torch.Tensor, torch.nn.Parameter):
        with disable_torch_function():
            parts = parts_of(tensor)
        if parts:
            return device_of(parts[0])  # which may be made of parts itself: DTensor of an AsyncCollectiveTensor
        if tensor.__class__ in TRACED:
            return _traced(tensor)
    device: int = tag.device
    return device


def _traced(tensor: torch.Tensor) -> int:
    if in_meta_kernel():
        return CPU
    if isinstance(tensor, FunctionalTensor):
        return device_of(torch._from_functional_tensor(tensor.elem))
    assert isinstance(tensor, FakeTensor)
    device = tensor.fake_device
    return device.index if device.type == "cuda" else CPU


def in_meta_kernel() -> bool:
    """Whether a fake tensor's operator runs on shapes just now: there it is the meta tensor that it physically is.

    Source: `in_kernel_invocation_manager` of torch/_subclasses/fake_tensor.py.
    """
    return bool(torch._C._meta_in_tls_dispatch_include())


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """What lies beneath the wrappers of torch.func's transforms and of batched gradients."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return _unbatched(tensor) if functorch.is_legacy_batchedtensor(tensor) else tensor


def _tag_without_storage(tensor: torch.Tensor) -> Tag:
    tensor = unwrapped(tensor)
    with disable_torch_function():
        try:
            return storage_of(tensor)._wt
        except (NotImplementedError, RuntimeError):
            pass
        for part in parts_of(tensor):
            return tag_of(part)
    found: Tag = getattr(tensor, "_wt", HOST_TAG)
    return found


def _unbatched(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor of batched gradients (`is_grads_batched`) shares its memory with, whatever it is nested in."""
    levels = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    for level in range(levels, 0, -1):
        tensor = torch._remove_batch_dim(tensor, level, 1, 0)  # one that lacks this level gets a dimension of size 1
    return tensor


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a sparse one (its values first) or a wrapper is made of; empty for what has no parts."""
    base = torch._C.TensorBase
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return [base._values(tensor), base._indices(tensor)]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [base.values(tensor), base.crow_indices(tensor), base.col_indices(tensor)]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [base.values(tensor), base.ccol_indices(tensor), base.row_indices(tensor)]
    flatten = getattr(tensor, "__tensor_flatten__", None)  # a wrapper: DTensor, a nested tensor, quantized weights
    parts = [] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
    return [part for part in parts if isinstance(part, torch.Tensor)]  # DTensor names its mesh as well
