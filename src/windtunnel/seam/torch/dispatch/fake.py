"""Fake tensors (`FakeTensorMode`, `torch.export`) that say they are on an emulated GPU.

A fake tensor has a shape and the name of a device, and nothing happens there. Python reads the name; C++ asks for the
device through the operator `prim.device`, and autograd would then look for CUDA's streams and end the process where
there is no driver. So C++ is told the CPU, and what it makes there in a composite belongs to the device it asked for
last (torch/_subclasses/fake_tensor.py; torch/csrc/autograd/input_metadata.cpp).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result, Types
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import named

ASKED = torch.ops.prim.device.default
CPU_DEVICE = torch.device("cpu")
FALLING_BACK = (fake_tensor, fake_impls)
signature_of = functools.cache(inspect.signature)


def patches(state: State) -> list[Patch]:
    """What C++ hears of a fake tensor's device, and what would open a driver's context."""
    local = state.local
    stock = FakeTensor.__dict__["__torch_dispatch__"].__func__
    stock_handler: Callable[[Arguments], torch.device] = fake_tensor._DISPATCH_META_HANDLERS[ASKED]  # type: ignore[assignment]

    def heard(device: torch.device) -> torch.device:
        if device.type != "cuda":
            return device
        local.fake_device = device
        return CPU_DEVICE

    def handler(args: Arguments) -> torch.device:
        return heard(stock_handler(args))

    def dispatch(
        cls: object, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        out = stock(cls, func, types, args, kwargs or {})
        return heard(out) if func is ASKED else out

    stock_new: Callable[..., FakeTensor] = FakeTensor.__new__

    parameters = signature_of(stock_new)

    def new(cls: type, *args: object, **kwargs: object) -> object:
        bound = parameters.bind(cls, *args, **kwargs)
        given = bound.arguments
        named = [name for name in ("device", "fake_device", "_fake_device") if given.get(name) is not None]
        elem = next((value for value in given.values() if isinstance(value, torch.Tensor)), None)
        device = torch.device(given[named[0]]) if named else CPU_DEVICE
        if device.type != "cuda" or elem is None:
            return stock_new(cls, *args, **kwargs)
        given.update(dict.fromkeys(named, CPU_DEVICE))
        # Where a sparse tensor lies is asked of its parts, of which the fake mode must not hear.
        hidden = nullcontext() if elem.layout is torch.strided else torch._C._DisableTorchDispatch()
        with hidden:  # Autocast and composites of ours stand under the CPU's keys.
            made = stock_new(*bound.args, **bound.kwargs)
        made.fake_device = state.cuda_devices[state.index(device)]
        return made

    return [
        Patch(FakeTensor, "__new__", staticmethod(new)),
        Patch(FakeTensor, "__torch_dispatch__", classmethod(dispatch)),
        Patch(fake_tensor, "_DISPATCH_META_HANDLERS", {**fake_tensor._DISPATCH_META_HANDLERS, ASKED: handler}),
        Patch(fake_tensor, "init_gpu_context", lambda device: None),
        *(Patch(owner, "run_fallback_kernel", _on_the_cpu(fake_tensor.run_fallback_kernel)) for owner in FALLING_BACK),
    ]


def _on_the_cpu(stock: Callable[..., object]) -> Callable[..., object]:
    """What runs an operator that tells no shapes, on zeros: on the CPU's, since C++ has no device to make them on."""

    @functools.wraps(stock)
    def run_fallback_kernel(fake_mode: object, func: OpOverload, flat_args: Sequence[object], *rest: object) -> object:
        fakes = [value for value in flat_args if isinstance(value, FakeTensor) and value.fake_device.type == "cuda"]
        if not fakes:
            return stock(fake_mode, func, flat_args, *rest)
        devices = [fake.fake_device for fake in fakes]
        for fake in fakes:
            fake.fake_device = CPU_DEVICE
        try:
            made = stock(fake_mode, func, flat_args, *rest)
        finally:
            for fake, device in zip(fakes, devices, strict=True):
                fake.fake_device = device
        for fake in pytree.tree_leaves(made):
            if isinstance(fake, FakeTensor) and fake.fake_device.type == "cpu":
                fake.fake_device = devices[0]
        return made

    return run_fallback_kernel


def run(state: State, func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    """Run an operator on shapes; one that C++ wants on the CPU runs on the device that C++ took for it."""
    local = state.local
    wanted = kwargs.get("device")
    own = local.explicit or named(kwargs)
    if wanted is not None and wanted.type == "cpu" and not own and local.fake_device is not None:
        kwargs = {**kwargs, "device": local.fake_device}
    return func(*args, **kwargs)


def tracer() -> TorchDispatchMode | None:
    """The mode that writes operators with real values into a graph now; None where shapes alone are traced."""
    key, mode_of = torch._C._TorchDispatchModeKey, torch._C._get_dispatch_mode
    if mode_of(key.FAKE) is not None or mode_of(key.FUNCTIONAL) is not None:
        return None
    found: TorchDispatchMode | None = mode_of(key.PROXY)
    return found


@contextmanager
def without_tracer() -> Iterator[None]:
    """While it handles an operator itself."""
    mode = torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    try:
        yield
    finally:
        if mode is not None:
            torch._C._set_dispatch_mode(mode)


def to(
    state: State,
    tensor: torch.Tensor,
    device: int,
    dtype: torch.dtype | None,
    copy: bool,
    memory_format: torch.memory_format | None,
) -> torch.Tensor:
    """A fake tensor on another device (an emulated one's index, or negative for the CPU), and of another dtype."""
    wanted = state.cuda_devices[device] if device >= 0 else CPU_DEVICE
    if tensor.device == wanted and dtype in (None, tensor.dtype) and memory_format is None and not copy:
        return tensor
    keywords = {} if memory_format is None else {"memory_format": memory_format}
    fake = torch._from_functional_tensor(tensor.elem) if isinstance(tensor, FunctionalTensor) else tensor
    constant = getattr(fake, "constant", None)
    if constant is not None:  # whose values the mode would copy with CUDA's kernels
        fake.constant = None  # type: ignore[attr-defined]
    before, state.local.explicit = state.local.explicit, True
    try:
        out: torch.Tensor = torch.ops.aten._to_copy.default(tensor, dtype=dtype, device=wanted, **keywords)
        return out
    finally:
        state.local.explicit = before
        if constant is not None:
            fake.constant = constant  # type: ignore[attr-defined]
