"""Factory functions: stand-ins that take a number for a device, and build from data on the host before they move it.

Which CPU tensors are the program's own and which C++ makes in composites, `Dispatch` tells by itself (`tags.named`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils._device

from windtunnel.seam.patching import Patch, imported
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.moves import move, numbers
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords
from windtunnel.seam.torch.plans.messages import device_name, two_devices
from windtunnel.seam.torch.standins import LIBRARIES, Factory, StandIn, public
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, FLOATING, ORDINARY, device_of, storage_of
from windtunnel.seam.torch.tensor.array_interface import tensor_of

FROM_DATA = ("tensor", "as_tensor", "asarray", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor",
             "sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor")  # fmt: skip
"""Constructors that build from Python data on the host, below the dispatch mode, and then move."""

DATA = frozenset({np.ndarray, float, int, list})
"""What has no device: most of a data set is made of it, so it is looked at first."""
READ: frozenset[type] = ORDINARY | {list, tuple}
"""What is looked at in a list of data."""
T = TypeVar("T")
function_modes: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
NESTED = torch._C._nested  # type: ignore[attr-defined]
LIKE = ("normal", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like")
UNNAMED = "range"
"""The one function of Python's that makes its tensor without a word on pinned memory."""
NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided")


def patches(state: State) -> list[Patch]:
    """The factory functions to replace, in `torch` and on `torch.Tensor`."""
    constructors: Iterable[object] = torch.utils._device._device_constructors()
    plain = {getattr(f, "__name__", "").removeprefix("fft_"): f for f in constructors}
    names = [
        (owner, name)
        for name, f in plain.items()
        for owner in (torch, torch.fft)
        if name not in FROM_DATA and name != UNNAMED and getattr(owner, name, None) is f
    ]
    names += [(torch, name) for name in LIKE]
    found = [patch for owner, name in names for patch in public(owner, name, _factory(getattr(owner, name)))]
    for name in FROM_DATA:
        found += public(torch, name, StandIn(getattr(torch, name), _from_data(state, getattr(torch, name))))
    found += public(torch, UNNAMED, StandIn(getattr(torch, UNNAMED), _range(state)))
    found += [Patch(torch.Tensor, name, _new(getattr(torch._C.TensorBase, name))) for name in NEW]
    found.append(Patch(NESTED, "nested_tensor", _nested(state)))
    found.append(Patch(torch.Tensor, "new_tensor", _new_tensor))
    found.append(Patch(torch.Tensor, "new", _legacy_new(state)))
    found.append(Patch(torch.Tensor, "__new__", staticmethod(_legacy(state))))
    found.append(Patch(torch, "device", _device_class(state)))
    found.append(Patch(torch._C._nn, "_parse_to", _parse_to(torch._C._nn._parse_to)))
    before = {id(getattr(patch.owner, patch.name)): patch.value for patch in found if patch.owner in (torch, torch.fft)}
    return [*found, *imported(before, LIBRARIES)]


@functools.cache
def _factory(stock: Callable[..., object]) -> Factory:
    """Its stand-in, the same in every emulation of a process."""
    return Factory(stock, _check_out)


def _alone() -> bool:
    """Whether the emulation's is the only dispatch mode."""
    return torch._C._len_torch_dispatch_stack() == 1 and isinstance(torch._C._get_dispatch_stack_at(0), Dispatch)


def explicit(state: State, stock: Callable[..., T]) -> Callable[..., T]:
    """A constructor that says no `pin_memory`: what it makes on the CPU for the program stays there."""
    local = state.local

    @functools.wraps(stock)
    def factory(*args: object, **kwargs: object) -> T:
        before = local.explicit
        local.explicit = True
        device = kwargs.get("device")
        if isinstance(device, (int, str)):
            kwargs["device"] = torch.device(device)
        if kwargs.get("out") is not None and device is not None:
            _check_out(kwargs)
        try:
            return stock(*args, **kwargs)
        finally:
            local.explicit = before

    return factory


def _check_out(kwargs: Keywords) -> None:
    """The check that C++ makes of a factory's `device` beside its `out`; on a device the tensor alone says where."""
    if device_of(kwargs["out"]) >= 0:
        kind = kwargs.pop("device").type
        if kind != "cuda":
            raise RuntimeError(f"device type {kind} does not match device type of out parameter (cuda)")


def _range(state: State) -> Callable[..., object]:
    """`torch.range`, whose C++ asks for a guard of the device that it is given: on a device it writes an `out`."""
    stock: Callable[..., torch.Tensor] = getattr(torch, UNNAMED)
    marked = explicit(state, stock)

    @functools.wraps(marked)
    def range(*args: object, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None or kwargs.get("out") is not None or torch.device(device).type != "cuda":
            return marked(*args, **kwargs)
        del kwargs["device"]
        gradient = kwargs.pop("requires_grad", False)
        made = marked(*args, **kwargs, out=torch.empty(0, dtype=kwargs.get("dtype"), device=device))
        return made.requires_grad_() if gradient else made

    return range


def _legacy(state: State) -> Callable[..., object]:
    """`torch.Tensor(2, 3)`: a CPU tensor; of a subclass, made where no dispatch mode gives it a class before that."""
    stock = torch._C.TensorBase.__new__
    plain = explicit(state, stock)

    @functools.wraps(stock)
    def new(cls: type, *args: object, **kwargs: object) -> object:
        if cls is torch.Tensor:
            return plain(cls, *map(with_numbers, args), **kwargs)
        with torch._C._DisableTorchDispatch():
            return stock(cls, *args, **kwargs)

    return new


def _device_class(state: State) -> object:
    """`torch.device`, for which a bare number is a CUDA device, as where there are GPUs; it makes PyTorch's own."""
    stock = torch.device

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, stock)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, stock) or super().__subclasscheck__(subclass)

        # Tables that are keyed by the class, as torch.fx's of names in generated code, find it under either.
        def __eq__(cls, other: object) -> bool:
            return other is cls or other is stock

        def __hash__(cls) -> int:
            return hash(stock)

    class device(metaclass=Meta):  # noqa: N801 - PyTorch's own name
        """torch.device."""

        def __new__(cls, *args: Any, **kwargs: Any) -> torch.device:  # type: ignore[misc]
            if len(args) == 1 and isinstance(args[0], int) and not isinstance(args[0], bool):
                state.notes.device_named(args[0])
                return stock("cuda", args[0])
            if args and isinstance(args[0], str) and args[0].startswith("cuda:") and args[0] != "cuda:0":
                state.notes.device_named(args[0])
            return stock(*args, **kwargs)

    device.__wrapped__ = stock  # type: ignore[attr-defined]
    device.__module__, device.__qualname__, device.__doc__ = "torch", "device", stock.__doc__
    return device


def _parse_to(stock: Callable[..., tuple[object, ...]]) -> Callable[..., object]:
    @functools.wraps(stock)
    def parse_to(*args: object, **kwargs: object) -> object:
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (torch.device(args[0]), *args[1:])
        elif args and isinstance(args[0], torch.Tensor):
            other, rest = args[0], args[1:]
            return (other.device, *stock(other, *rest, **kwargs)[1:])
        elif isinstance(device := kwargs.get("device"), int):
            kwargs["device"] = torch.device(device)
        return stock(*args, **kwargs)

    return parse_to


def _new(stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def method(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        if "device" in kwargs and isinstance(kwargs["device"], (int, str)):
            kwargs["device"] = torch.device(kwargs["device"])
        return stock(self, *args, **kwargs)

    return method


def _from_data(state: State, stock: Callable[..., torch.Tensor]) -> Callable[..., object]:
    marked = explicit(state, stock)
    keeps = stock.__name__ in ("as_tensor", "asarray")
    sparse = stock.__name__.startswith("sparse")
    parts = 2 if stock.__name__ == "sparse_coo_tensor" else 3

    @functools.wraps(stock)
    def constructor(*args: object, **kwargs: Any) -> object:
        if function_modes():
            return stock(*args, **kwargs)  # C++ hands the call to the innermost mode, which calls this again
        if args and isinstance(args[0], (list, tuple)):
            args = (with_numbers(args[0]), *args[1:])
        if not kwargs and len(args) == 1 and args[0].__class__ in DATA:
            if args[0].__class__ is not list and _alone() and not state.observers.profiled:
                with torch._C._DisableTorchDispatch():  # on the host `lift_fresh` does nothing that anybody would see
                    return stock(args[0], device="cpu")
            return stock(args[0], device="cpu")
        device = kwargs.get("device")
        data = args[0] if args else kwargs.get("data")
        if args and hasattr(type(data), "__cuda_array_interface__") and not isinstance(data, torch.Tensor):
            data = tensor_of(state, data)  # type: ignore[arg-type]  # it shows its memory, as was asked
            args = (data, *args[1:])
        if device is not None and torch.device(device).type not in ("cpu", "cuda"):
            return marked(*args, **kwargs)
        kwargs.pop("device", None)
        gradient = kwargs.pop("requires_grad", False)
        pinned = kwargs.pop("pin_memory", False)
        if device is not None:
            target = state.index(device)
        else:
            target = _default(_values(args, kwargs) if sparse else args)
        if sparse:  # all parts go where the program says, lists where the values are
            if device is None:
                _check_parts(stock.__name__, args, kwargs, parts)
            args, kwargs = _together(state, args, kwargs, target, parts)
        out = _build(marked, args, kwargs, data, keeps)
        if target >= 0 or device_of(out) >= 0:
            # A sparse tensor has its values' history; other data are copied.
            out = move(state, out if keeps or sparse else out.detach(), target)
        if pinned:
            out = out.pin_memory()
        return out.requires_grad_() if gradient else out

    return constructor


def with_numbers(data: object) -> object:
    """Data in lists, with host tensors in place of a device's numbers: the host waits for each, as C++ asks for it."""
    if not isinstance(data, (list, tuple)) or READ.isdisjoint(map(type, data)):
        return data
    return [_number(one) if isinstance(one, torch.Tensor) else with_numbers(one) for one in data]


def _number(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.__class__ not in ORDINARY or device_of(tensor) < 0 or tensor.numel() != 1:
        return tensor
    return torch.tensor(tensor.item(), dtype=tensor.dtype, device="cpu").reshape(tensor.shape)


def _nested(state: State) -> Callable[..., object]:
    """The strided nested tensor's constructor, which reads its parts below the dispatch mode."""
    stock = NESTED.nested_tensor

    def nested_tensor(
        data: Sequence[object],
        *,
        device: object = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
        **kwargs: object,
    ) -> object:
        first = next((device_of(part) for part in data if isinstance(part, torch.Tensor)), CPU)
        target = first if device is None else state.index(device)
        out = stock(data, device="cpu", **kwargs)
        if device_of(out) < 0 <= first:
            state.place(storage_of(out), first)
        out = move(state, out.detach(), target)
        if pin_memory:
            out = out.pin_memory()
        return out.requires_grad_() if requires_grad else out

    return nested_tensor


def _values(args: Arguments, kwargs: Keywords) -> list[torch.Tensor]:
    """What decides where a sparse tensor is: its values, the last tensor that its constructor takes."""
    return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)][-1:]


def _check_parts(name: str, args: Arguments, kwargs: Keywords, parts: int) -> None:
    """Raise PyTorch's error where a sparse tensor's indices and values lie on several devices.

    Source: `_validate_sparse_compressed_tensor_args_worker` of aten/src/ATen/native/sparse/SparseCsrTensor.cpp.
    """
    named = [value for key, value in kwargs.items() if key == "values" or key.endswith("indices")]
    found = [max(CPU, device_of(part)) for part in (*args[:parts], *named) if isinstance(part, torch.Tensor)]
    if len(set(found)) < 2:
        return
    if parts == 3 and len(found) == 3 and found[0] == found[1]:
        layout = str(kwargs.get("layout", name)).removeprefix("torch.")
        indices = "crow_indices" if layout.startswith(("sparse_csr", "sparse_bsr")) else "ccol_indices"
        where, values = device_name(found[0]), device_name(found[2])
        raise RuntimeError(f"device of {indices} (={where}) must match device of values (={values})")
    first = found[0]
    other = next(device for device in found if device != first)
    if first == CPU and parts == 3:
        first, other = other, first
    raise two_devices(first, other)


def _together(state: State, args: Arguments, kwargs: Keywords, target: int, parts: int) -> tuple[Arguments, Keywords]:
    """A sparse tensor's parts on one device; lists beside tensors as well."""
    mixed = target >= 0 and bool(_values(args, kwargs))

    def place(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return move(state, value, target)
        return torch.tensor(value, device=state.cuda_devices[target]) if mixed else value

    named = {name: place(value) for name, value in kwargs.items() if name == "values" or name.endswith("indices")}
    return (*map(place, args[:parts]), *args[parts:]), kwargs | named


def _build(
    marked: Callable[..., torch.Tensor], args: Arguments, kwargs: Keywords, data: object, keeps: bool
) -> torch.Tensor:
    if not isinstance(data, torch.Tensor) or marked.__name__.startswith("sparse"):
        return marked(*args, **kwargs, device="cpu")
    dtype = kwargs.get("dtype")
    if keeps:
        copy = bool(kwargs.get("copy"))
        return data.to(dtype or data.dtype, copy=copy)
    out = data.detach().clone()
    return out if dtype is None else out.to(dtype)


def _default(args: Iterable[object]) -> int:
    for value in args:
        if isinstance(value, torch.Tensor):
            return max(CPU, device_of(value))
    return CPU


def _new_tensor(
    self: torch.Tensor,
    data: object,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)


def _legacy_new(state: State) -> Callable[..., object]:
    stock: Callable[..., torch.Tensor] = torch._C.TensorBase.new
    on_host = explicit(state, stock)

    def new(self: torch.Tensor, *args: object, device: object = None, **kwargs: object) -> torch.Tensor:
        index = device_of(self) if device is None else state.index(device)
        if device is not None and (index >= 0) != (device_of(self) >= 0):
            mine, given = ("cuda", "cpu") if index < 0 else ("cpu", "cuda")
            raise RuntimeError(f"legacy constructor expects device type: {mine} but device type: {given} was passed")
        made: torch.Tensor = (on_host if index == CPU else stock)(self, *map(with_numbers, args), **kwargs)
        if index < 0 or (there := device_of(made)) >= 0:
            return made
        if there == FLOATING:
            state.place(storage_of(made), index)
            return made
        return numbers(state, made, index)

    return new
