"""Kernels that the program registers for CUDA's dispatch keys (`torch.library`), of its own operators or of PyTorch's.

Tensors of emulated GPUs have the CPU's keys. A kernel under CUDA is called by the dispatch mode; one above it, under
AutogradCUDA or AutocastCUDA, by a kernel of ours under the CPU's key, which looks where the tensors live.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, overload_of, tensors_in
from windtunnel.seam.torch.plans.plan import BUILT_IN, registered
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

C = torch._C
Keys, Key = C.DispatchKeySet, C.DispatchKey
Function = Callable[..., object]
has_kernel: Callable[[str, str], bool] = C._dispatch_has_kernel_for_dispatch_key
OVER_ALL = Keys(Key.AutogradXPU)
"""The gradient of all devices that have no formula of their own."""


class Registration(NamedTuple):
    """An operator and a key of the CPU that a kernel of ours is under."""

    name: str
    key: str


ABOVE = {"AutogradCUDA": "AutogradCPU", "AutocastCUDA": "AutocastCPU"}
"""CUDA's keys above its kernels, and the CPU's in their place."""
SUFFIXES = tuple(f"/{key}" for key in ABOVE)
"""How the entries of these keys end among those of all libraries."""


def patches(state: State) -> list[Patch]:
    """`Library.impl`, by which all of `torch.library` registers."""
    stock: Function = torch.library.Library.impl
    kernels = state.registered = Registered(state)

    def impl(
        self: torch.library.Library, op_name: object, fn: Function, dispatch_key: str = "", **options: bool
    ) -> None:
        stock(self, op_name, fn, dispatch_key, **options)
        name = op_name.name() if isinstance(op_name, torch._ops.OpOverload) else str(op_name)
        full = name if "::" in name else f"{self.ns}::{name}"
        kernels.add(full, dispatch_key or self.dispatch_key, fn, options.get("with_keyset", False))

    get_packet: Callable[[str, str], tuple[object, list[str] | None]] = torch._ops._get_packet

    def packet(qualname: str, op_module: str) -> tuple[object, list[str] | None]:
        found = get_packet(qualname, op_module)
        kernels.look(qualname, found[1] or ())
        return found

    return [Patch(torch.library.Library, "impl", impl), Patch(torch._ops, "_get_packet", packet)]


class Registered:
    """What the program has registered, and our kernels above it, from `begin` to `unregister`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.on_cpu: dict[Registration, Function] = {}
        self.choosers: dict[Registration, Chooser] = {}
        self.libraries: dict[str, torch.library.Library] = {}

    def begin(self) -> None:
        """Take in what was registered before the emulation."""
        known: set[str] = torch.library._impls
        above = sorted(entry for entry in known if entry.endswith(SUFFIXES))
        for namespace, name, key in (entry.split("/") for entry in above):
            if namespace != "_":
                place = Registration(f"{namespace}::{name}", ABOVE[key])
                if f"{namespace}/{name}/{place.key}" in known:  # which is out of reach beneath ours
                    self.on_cpu[place] = _refuse(place)
                self.choose(place)

    def add(self, name: str, key: str, function: Function, with_keyset: bool) -> None:
        """The program has registered a kernel."""
        if key in ABOVE.values():
            place = Registration(name, key)
            self.on_cpu[place] = function if with_keyset else lambda keys, *args, **kwargs: function(*args, **kwargs)
            if place in self.choosers:
                self.choose(place)
        elif key in ABOVE:
            self.choose(Registration(name, ABOVE[key]))
        elif key == "CUDA" and name.split("::")[0] in BUILT_IN and not _is_pytorchs(function):
            self.state.overridden.add(name)
            self.state.plans.clear()
            if has_kernel(name, "CompositeImplicitAutograd"):  # of which a dispatch mode sees only the parts
                self.choose(Registration(name, "AutogradCPU"))

    def look(self, name: str, overloads: Sequence[str]) -> None:
        """An operator is asked for, for which a library's C++ may have registered kernels (`TORCH_LIBRARY_IMPL`)."""
        if name.split("::")[0] in BUILT_IN:
            return
        named = [f"{name}.{overload}" if overload else name for overload in overloads]
        for full in filter(C._dispatch_has_kernel, named):  # TorchScript's own, as prim::layout, are not dispatched
            for key, of_cpu in ABOVE.items():
                place = Registration(full, of_cpu)
                if has_kernel(full, key) and place not in self.choosers:
                    if has_kernel(full, of_cpu):
                        self.on_cpu[place] = _refuse(place)
                    self.choose(place)

    def choose(self, place: Registration) -> None:
        """Put a kernel of ours over what is under a key of the CPU."""
        chooser = self.choosers.setdefault(place, Chooser(self, place))
        namespace = place.name.split("::")[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it replaces kernels on purpose
            library = self.libraries.get(namespace) or torch.library.Library(namespace, "IMPL")
            self.libraries[namespace] = library
            stock: Function = library.m.impl  # type: ignore[union-attr]  # which is None once it is destroyed
            stock(place.name, place.key, chooser, True)

    def unregister(self) -> None:
        """Take our kernels out again."""
        for library in self.libraries.values():
            library._destroy()
        self.libraries.clear()
        for chooser in self.choosers.values():
            chooser.owner.clear()


class Chooser:
    """The kernel of an operator under a key of the CPU, which hands each call to the kernel of its tensors' device."""

    def __init__(self, owner: Registered, place: Registration) -> None:
        self.place = place
        self.owner = [owner]  # empty when the kernel is out: PyTorch keeps it for good, and it keeps no emulation

    def __call__(self, keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        """Run the operator; `keys` are those of the dispatcher."""
        name, key = self.place
        func = overload_of(name)
        below = keys - Keys(getattr(Key, key))
        on_device = any(device_of(t) >= 0 for t in tensors_in((*args, *kwargs.values())))
        choose = self._autograd if key == "AutogradCPU" else self._autocast
        return choose(func, below, on_device, args, kwargs)

    def _autograd(
        self, func: OpOverload, below: torch._C.DispatchKeySet, on_device: bool, args: Arguments, kwargs: Keywords
    ) -> object:
        name = self.place.name
        if on_device and (registered(name, "AutogradCUDA") or _of_a_library(name, "AutogradCUDA")):
            return func.redispatch(below | Keys(Key.AutogradCUDA), *args, **kwargs)
        if on_device and name in self.owner[0].state.overridden and registered(name, "CUDA"):
            return func._op_dk(Key.CUDA, *args, **kwargs)
        own = self.owner[0].on_cpu.get(self.place)
        if own is not None:
            return own(below | Keys(Key.AutogradCPU), *args, **kwargs)
        return func.redispatch(below | OVER_ALL, *args, **kwargs)

    def _autocast(
        self, func: OpOverload, below: torch._C.DispatchKeySet, on_device: bool, args: Arguments, kwargs: Keywords
    ) -> object:
        autocast = self.owner[0].state.autocast
        own = self.owner[0].on_cpu.get(self.place)
        with autocast.without():
            if on_device and torch.is_autocast_enabled("cuda"):
                return func.redispatch(below | Keys(Key.AutocastCUDA), *args, **kwargs)
            if own is not None and not on_device and torch.is_autocast_enabled("cpu"):
                return own(below | Keys(Key.AutocastCPU), *args, **kwargs)
        return func.redispatch(below, *args, **kwargs)


def _refuse(place: Registration) -> Function:
    def refuse(*args: object, **kwargs: object) -> object:
        raise UnsupportedError(
            f"{place.name} has kernels under both {place.key} and CUDA's own key that were registered in C++ or before "
            "the emulation began: register them in Python after it"
        )

    return refuse


def _of_a_library(name: str, key: str) -> bool:
    """Whether a library of the program's has a kernel, in whatever language."""
    return name.split("::")[0] not in BUILT_IN and has_kernel(name, key)


def _is_pytorchs(function: Function) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.")
