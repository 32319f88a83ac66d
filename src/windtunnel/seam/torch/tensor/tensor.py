"""The surface of `torch.Tensor`: what a program reads of a tensor's device, and the methods that move or show it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._tensor_str import PRINT_OPTS
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.overrides import handle_torch_function, has_torch_function_unary

from windtunnel.machine.memory.blocks import Block
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.gradients import return_copied
from windtunnel.seam.torch.dispatch.moves import fetch, move
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.rehearsal.nodata import values
from windtunnel.seam.torch.standins import Attribute
from windtunnel.seam.torch.state.state import State, stream_of
from windtunnel.seam.torch.tags import CPU, HOST_TAG, Tag, device_of, parts_of, storage_of, tag_of
from windtunnel.seam.torch.type_names import DTYPES

if TYPE_CHECKING:
    import numpy.typing

Tensor = torch.Tensor
base: type[Any] = torch._C.TensorBase
"""Whose methods are called with whatever the program gives; C++ checks it."""


def patches(state: State) -> list[Patch]:
    """The names of `torch.Tensor` to replace."""
    found = [
        *_properties(state),
        *_moving(state),
        *_casting(state),
        *_looking(state),
        *_exporting(state),
        *_sharing(state),
    ]
    found.append(Patch(Tensor, "_make_wrapper_subclass", staticmethod(_wrapper_maker(state))))
    # Lazy parameters allow only methods that they list.
    mixin = UninitializedTensorMixin
    allowed = [*mixin._allowed_methods, *(patch.value for patch in found if callable(patch.value))]
    return [*found, Patch(mixin, "_allowed_methods", allowed)]


def overridable(public: Callable[..., object]) -> Callable[..., object]:
    """Let tensor subclasses see the call, as PyTorch's own methods do."""

    def method(self: Tensor, *args: object, **kwargs: object) -> object:
        if has_torch_function_unary(self):
            return handle_torch_function(method, (self,), self, *args, **kwargs)
        return public(self, *args, **kwargs)

    return named_as_pytorch(method, public.__name__)


def named_as_pytorch(method: Callable[..., object], name: str) -> Callable[..., object]:
    """Give a method the name and the text of PyTorch's own."""
    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = getattr(base, name).__doc__
    if isinstance(method, FunctionType):
        method.__code__ = method.__code__.replace(co_name=name)  # what a profiler calls it
    return method


def _properties(state: State) -> list[Patch]:
    local = state.local
    devices = state.cuda_devices
    get_device = base.device.__get__
    physically_host = base.is_cpu.__get__
    physically_meta = base.is_meta.__get__

    def device(self: Tensor) -> torch.device:
        if local.inner:
            return get_device(self)  # type: ignore[no-any-return]
        try:
            index = storage_of(self)._wt.device
        except (NotImplementedError, RuntimeError, ValueError):
            index = device_of(self)
        if index < 0 and self.__class__ is not Tensor:
            index = device_of(self)  # of a tensor around tensors, what it is made of
        return devices[index] if index >= 0 else get_device(self)

    def is_cuda(self: Tensor) -> bool:
        return not local.inner and device_of(self) >= 0

    def is_cpu(self: Tensor) -> bool:
        return physically_host(self) and (local.inner or device_of(self) < 0)

    def is_meta(self: Tensor) -> bool:
        return physically_meta(self) and (local.inner or device_of(self) < 0)

    def index(self: Tensor) -> int:
        found = CPU if local.inner else device_of(self)
        return max(found, -1)

    return [
        Patch(Tensor, "device", Attribute(base.device, device)),
        Patch(Tensor, "is_cuda", Attribute(base.is_cuda, is_cuda)),
        Patch(Tensor, "is_cpu", Attribute(base.is_cpu, is_cpu)),
        Patch(Tensor, "is_meta", Attribute(base.is_meta, is_meta)),
        Patch(Tensor, "get_device", index),
    ]


def _moving(state: State) -> list[Patch]:
    parse = torch._C._nn._parse_to

    def to(self: Tensor, *args: Any, **kwargs: Any) -> object:
        if has_torch_function_unary(self):
            return handle_torch_function(to, (self,), self, *args, **kwargs)
        if state.local.inner:
            return cast(Tensor, base.to(self, *args, **kwargs))
        other = args[0] if args and isinstance(args[0], Tensor) else kwargs.pop("other", None)
        if other is not None:
            rest = dict(zip(("non_blocking", "copy"), args[1:], strict=False)) | kwargs
            return move(state, self, max(CPU, device_of(other)), other.dtype, **rest)
        named = args[0] if args else kwargs.get("device")
        if isinstance(named, str):
            if named.startswith("cuda:"):
                state.notes.device_named(named)
        elif has_torch_function_unary(named):  # a proxy of torch.fx, for one
            return cast(Tensor, base.to(self, *args, **kwargs))
        copy = kwargs.pop("copy", False)
        if len(args) > 2 and isinstance(args[-1], bool) and isinstance(args[-2], bool):
            copy, args = args[-1], args[:-1]
        if isinstance(named, int) and not isinstance(named, bool):  # a CUDA device's number
            device = torch.device(named)
            args, kwargs = (device, *args[1:]) if args else args, kwargs | {} if args else kwargs | {"device": device}
        device, dtype, non_blocking, memory_format = parse(*args, **kwargs)
        if device is None or device.type not in ("cpu", "cuda"):
            return cast(Tensor, base.to(self, *args, copy=copy, **kwargs))
        return move(state, self, state.index(device), dtype, non_blocking, copy, memory_format)

    def cuda(
        self: Tensor,
        device: object = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Tensor:
        index = state.index(torch.device("cuda") if device is None else device)
        if index < 0:
            raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
        return move(state, self, index, None, non_blocking, memory_format=memory_format)

    def cpu(self: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        return move(state, self, CPU, memory_format=memory_format)

    def copy_(self: Tensor, src: object, non_blocking: bool = False) -> Tensor:
        base.copy_(self, src, non_blocking)
        if isinstance(src, Tensor) and src.requires_grad:
            return_copied(self, src)
        return self

    def set_item(self: Tensor, index: object, value: object) -> None:
        base.__setitem__(self, index, value)
        if isinstance(value, Tensor) and value.requires_grad:
            return_copied(self, value)

    setting = Patch(Tensor, "__setitem__", set_item)  # C++ asks for `__torch_function__` itself
    moving = [Patch(Tensor, f.__name__, overridable(f)) for f in (cuda, cpu, copy_)]
    return [setting, Patch(Tensor, "to", named_as_pytorch(to, "to")), *moving]


def _casting(state: State) -> list[Patch]:
    def type(
        self: Tensor, dtype: torch.dtype | str | builtins.type | None = None, non_blocking: bool = False,
        **kwargs: object,
    ) -> object:  # fmt: skip
        on_device = device_of(self) >= 0
        if dtype is None:
            name = base.type(self)
            return name.replace("meta.", "", 1).replace("torch.", "torch.cuda.", 1) if on_device else name
        wanted: str | None = dtype if isinstance(dtype, str) else getattr(dtype, "_wt_name", None)
        if wanted is not None and wanted.startswith("torch.cuda."):
            index = device_of(self) if on_device else state.index(torch.device("cuda"))
            return move(state, self, index, DTYPES[wanted.rsplit(".", 1)[1]], non_blocking)
        if isinstance(dtype, torch.dtype):
            return base.to(self, dtype, non_blocking)
        target = wanted or f"{dtype.__module__}.{dtype.__name__}"  # type: ignore[union-attr]  # it is no text
        return move(state, self, CPU, DTYPES[target.rsplit(".", 1)[1]], non_blocking)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        return move(state, self, max(CPU, device_of(other)), other.dtype)

    return [Patch(Tensor, f.__name__, overridable(f)) for f in (type, type_as)]


def _looking(state: State) -> list[Patch]:
    def refuse_device(self: Tensor) -> None:
        index = device_of(self)
        if index >= 0:
            raise TypeError(
                f"can't convert {device_name(index)} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )

    def numpy(self: Tensor, *, force: bool = False) -> object:
        if force:
            self = move(state, self.detach(), CPU)
        refuse_device(self)
        if state.late.pending:
            state.late.host_touch(self)
        return base.numpy(self, force=force)

    def tolist(self: Tensor) -> object:
        index = device_of(self)
        if index >= 0:
            if not state.local.reason and not state.local.inner:
                fetch(state, self, "Tensor.tolist")
        elif state.late.pending:
            state.late.host_touch(self)
        return base.tolist(values(state, self) if state.no_data and index >= 0 else self)

    def representation(self: Tensor, *, tensor_contents: object = None) -> str:
        local = state.local
        if state.no_data and device_of(self) >= 0:
            return f"tensor(..., device='{self.device}', size={tuple(self.shape)}, dtype={self.dtype})"
        before, local.reason = local.reason, "Tensor.__repr__"
        if not before and device_of(self) >= 0 and tensor_contents is None and self.numel():
            # Once for all the values that are shown, however PyTorch goes about it.
            fetch(state, self, "Tensor.__repr__", int(min(self.numel(), PRINT_OPTS.threshold)))
        try:
            return str(stock_repr(self, tensor_contents=tensor_contents))
        finally:
            local.reason = before

    stock_repr: Callable[..., str] = Tensor.__repr__
    return [
        Patch(Tensor, "__repr__", representation),
        Patch(Tensor, "numpy", overridable(numpy)),
        Patch(Tensor, "tolist", overridable(tolist)),
    ]


def _exporting(state: State) -> list[Patch]:
    def array(self: Tensor, dtype: numpy.typing.DTypeLike | None = None, copy: bool | None = None) -> object:
        if has_torch_function_unary(self):
            return handle_torch_function(Tensor.__array__, (self,), self, dtype=dtype)
        out = self.numpy()
        return out if dtype is None else out.astype(dtype, copy=False)

    def dlpack_device(self: Tensor) -> tuple[object, int]:
        index = device_of(self)
        if index >= 0:
            from torch.utils.dlpack import DLDeviceType

            return DLDeviceType(2), index  # kDLCUDA, which was called kDLGPU before torch 2.7
        return stock_dlpack_device(self)

    stock_dlpack_device = Tensor.__dlpack_device__
    return [
        Patch(Tensor, "__array__", array),
        Patch(Tensor, "__dlpack_device__", dlpack_device),
    ]


DEVICE_PLACE = 7
"""Where `_make_wrapper_subclass` takes the device: after class, sizes, strides, offset, format, dtype and layout."""


def _wrapper_maker(state: State) -> Callable[..., object]:
    """`Tensor._make_wrapper_subclass`, which makes tensors around tensors: physically where their parts are.

    C++ asks a tensor's device for its streams as soon as autograd meets it, and aborts where there is no driver.
    """
    stock: Callable[..., Tensor] = base._make_wrapper_subclass
    physical = torch.device("meta" if state.no_data else "cpu")

    def make(*args: object, **kwargs: object) -> object:
        by_place = len(args) > DEVICE_PLACE
        named = args[DEVICE_PLACE] if by_place else kwargs.get("device")
        index = CPU if state.local.inner else state.index(named)
        if index < 0:
            return stock(*args, **kwargs)
        if by_place:
            args = (*args[:DEVICE_PLACE], physical, *args[DEVICE_PLACE + 1 :])
        else:
            kwargs["device"] = physical
        made = stock(*args, **kwargs)
        storage_of(made)._wt = Tag(index, 0)  # C++ keeps the device, whatever becomes of the parts
        return made

    return make


def _sharing(state: State) -> list[Patch]:
    def pin_memory(self: Tensor, device: object = None) -> Tensor:
        out: Tensor = torch.ops.aten._pin_memory.default(self)
        return out

    def is_pinned(self: Tensor, device: object = None) -> bool:
        return bool(torch.ops.aten.is_pinned.default(self))

    def record_stream(self: Tensor, stream: torch.Stream) -> None:
        if hasattr(self, "__tensor_flatten__"):
            for part in parts_of(self):
                record_stream(part, stream)
            return
        tag = tag_of(self)
        if tag.device < 0:
            raise NotImplementedError(
                "Could not run 'aten::record_stream' with arguments from the 'CPU' backend. This could be because the "
                "operator doesn't exist for this backend, or was omitted during the selective/custom build process."
            )
        if isinstance(tag.block, Block):
            state.device(tag.device).allocator.record_stream(tag.block, stream_of(state, stream).index)

    def data_ptr(self: Tensor) -> int:
        tag = tag_of(self)
        if tag.device >= 0 and not state.local.inner:
            if tag.block is None:
                return 0
            return int(tag.block.address) + int(self.storage_offset()) * self.element_size()
        if state.late.pending:
            state.late.host_touch(self)
        return int(base.data_ptr(self))

    def is_shared(self: Tensor) -> bool:
        return device_of(self) >= 0 or stock_is_shared(self)

    def share_memory_(self: Tensor) -> Tensor:
        return self if device_of(self) >= 0 else stock_share(self)

    def deepcopy(self: Tensor, memo: dict[int, object]) -> object:
        out = stock_deepcopy(self, memo)
        _follow(self, out)
        return out

    def _follow(old: Tensor, new: object) -> None:
        tag = tag_of(old)
        if isinstance(new, Tensor) and tag.device >= 0 and tag_of(new) is HOST_TAG:
            state.place(storage_of(new), tag.device)

    stock_is_shared: Callable[[Tensor], bool] = Tensor.is_shared
    stock_share: Callable[[Tensor], Tensor] = Tensor.share_memory_
    stock_deepcopy: Callable[[Tensor, dict[int, object]], object] = Tensor.__deepcopy__
    return [
        Patch(Tensor, "pin_memory", overridable(pin_memory)),
        Patch(Tensor, "is_pinned", overridable(is_pinned)),
        Patch(Tensor, "record_stream", record_stream),
        Patch(Tensor, "data_ptr", data_ptr),
        Patch(Tensor, "is_shared", is_shared),
        Patch(Tensor, "share_memory_", share_memory_),
        Patch(Tensor, "__deepcopy__", deepcopy),
    ]
