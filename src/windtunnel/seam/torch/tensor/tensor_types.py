"""`torch.FloatTensor`, `torch.cuda.FloatTensor` and their kin, sparse ones included: the old names of dtypes there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeGuard

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of
from windtunnel.seam.torch.tensor.factories import explicit, with_numbers
from windtunnel.seam.torch.type_names import CPP_NAMES, DTYPES, TYPE_NAMES, scalar_type


def patches(state: State) -> list[Patch]:
    """One class a dtype, in `torch` and in `torch.cuda`; in `torch.cuda.sparse`, for the dtypes that have one there."""
    WARNED.clear()
    found = [Patch(torch.cuda, name, _tensor_type(name, dtype)) for dtype, name in TYPE_NAMES.items()]
    default = ["cpu"]  # the device of the default tensor type; what lies there is printed without its device
    names = [name for name in TYPE_NAMES.values() if hasattr(torch, name)]
    host = {name: _host_type(state, getattr(torch, name)) for name in names}
    stock_default = torch._C._set_default_tensor_type

    def set_default(t: object) -> None:
        stock_default(getattr(t, "_wt_stock", t))

    return [
        *found,
        *(Patch(torch, name, made) for name, made in host.items()),
        *(
            Patch(torch.cuda.sparse, name, _sparse_type(name, dtype))
            for dtype, name in TYPE_NAMES.items()
            if hasattr(torch.sparse, name)
        ),
        Patch(torch._C, "_set_default_tensor_type", set_default),
        Patch(torch, "set_default_tensor_type", _set_default(torch.set_default_tensor_type, default)),
        Patch(torch._C, "_get_default_device", lambda: default[0]),
    ]


def _set_default(stock: Callable[..., None], default: list[str]) -> Callable[[object], None]:
    def set_default_tensor_type(t: object) -> None:
        name = t if isinstance(t, str) else getattr(t, "_wt_name", "")
        if not name.startswith("torch.cuda."):
            torch.set_default_device(None)
            stock(t)
            default[0] = "cpu"
            return
        stock(getattr(torch, name.rsplit(".", 1)[1]))
        torch.set_default_device("cuda")
        default[0] = "cuda"

    return set_default_tensor_type


NOT_RECOMMENDED = (
    "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as "
    "torch.tensor(data, dtype=*, device='cuda') to create tensors."
)
"""torch/csrc/tensor/python_tensor.cpp; said once."""
WARNED: list[bool] = []
"""Not empty once the emulation has said so."""


def _host_type(state: State, stock: type[torch.Tensor]) -> object:
    """PyTorch's own type object, for which a tensor on a device is none of its own: they are CPU tensors underneath."""
    make = explicit(state, stock)
    dtype = DTYPES[stock.__name__]

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, stock) and device_of(instance) < 0

        def __subclasscheck__(cls, subclass: type) -> bool:
            return super().__subclasscheck__(subclass) or issubclass(subclass, stock)

        def __call__(cls, *args: object, **kwargs: object) -> object:
            if len(args) == 1 and isinstance(args[0], torch.Tensor) and device_of(args[0]) >= 0:
                _check_same(args[0], dtype, "cpu")
            return make(*map(with_numbers, args), **kwargs)

        def __getattr__(cls, name: str) -> object:
            return getattr(stock, name)

        def __repr__(cls) -> str:
            return repr(stock)

    names = {"_wt_stock": stock, "__module__": stock.__module__, "__doc__": stock.__doc__}
    return Meta(stock.__name__, (), names)


def _check_same(tensor: torch.Tensor, dtype: torch.dtype, device: str) -> None:
    """A type takes only tensors that are of it (torch/csrc/utils/tensor_new.cpp; pytorch/pytorch#36045)."""
    if tensor.dtype is not dtype or tensor.device.type != device:
        raise TypeError(f"expected {_options(dtype, device)} (got {_options(tensor.dtype, str(tensor.device))})")


def _options(dtype: torch.dtype, device: str) -> str:
    """What TensorOptions print."""
    name = CPP_NAMES.get(dtype, scalar_type(dtype))
    return (
        f"TensorOptions(dtype={name}, device={device}, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )


@cache
def _tensor_type(name: str, dtype: torch.dtype) -> object:
    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return _is_one(instance, dtype) and not instance.is_sparse

        def __repr__(cls) -> str:
            return f"<class 'torch.cuda.{name}'>"

    class TensorType(metaclass=Meta):
        """A constructor: sizes give an uninitialized tensor, a sequence one with its values."""

        _wt_name = f"torch.cuda.{name}"

        def __new__(  # type: ignore[misc]
            cls, *args: Any, device: torch.device | str | int | None = None
        ) -> torch.Tensor:
            if torch.is_warn_always_enabled() or not WARNED:
                WARNED.append(True)
                warnings.warn(NOT_RECOMMENDED, stacklevel=2)
            where = torch.device("cuda") if device is None else torch.device(device)
            if len(args) == 1 and isinstance(args[0], torch.Tensor):
                _check_same(args[0], dtype, "cuda")
                aliased: torch.Tensor = torch.ops.aten.alias.default(args[0])
                return aliased
            if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
                return torch.tensor(args[0], dtype=dtype, device=where)
            sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
            return torch.empty(*sizes if sizes else (0,), dtype=dtype, device=where)

    # What PyTorch's own type objects answer.
    TensorType.dtype = dtype  # type: ignore[attr-defined]
    TensorType.is_cuda = True  # type: ignore[attr-defined]
    TensorType.is_sparse = False  # type: ignore[attr-defined]
    TensorType.__module__, TensorType.__name__, TensorType.__qualname__ = "torch.cuda", name, name
    return TensorType


@cache
def _sparse_type(name: str, dtype: torch.dtype) -> object:
    """A sparse type on a device: like the host's, it makes tensors where indices and values are."""
    stock: Callable[..., torch.Tensor] = getattr(torch.sparse, name)

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return _is_one(instance, dtype) and instance.is_sparse

        def __repr__(cls) -> str:
            return f"<class 'torch.cuda.sparse.{name}'>"

    class SparseType(metaclass=Meta):
        """A constructor: sizes give an empty tensor, indices and values one that holds them."""

        _wt_name = f"torch.cuda.sparse.{name}"

        def __new__(  # type: ignore[misc]
            cls, *args: object, device: torch.device | str | int | None = None
        ) -> torch.Tensor:
            if args and isinstance(args[0], torch.Tensor):
                return stock(*args)
            return stock(*args).to(torch.device("cuda") if device is None else torch.device(device))

    SparseType.dtype = dtype  # type: ignore[attr-defined]
    SparseType.is_cuda = SparseType.is_sparse = True  # type: ignore[attr-defined]
    SparseType.__module__, SparseType.__name__, SparseType.__qualname__ = "torch.cuda.sparse", name, name
    return SparseType


def _is_one(instance: object, dtype: torch.dtype) -> TypeGuard[torch.Tensor]:
    return isinstance(instance, torch.Tensor) and device_of(instance) >= 0 and instance.dtype is dtype
