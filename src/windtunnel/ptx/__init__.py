"""CUDA kernels without a GPU: PTX becomes machine code of this machine, a warp a vector of 32 lanes.

    module = ptx.load(text)
    launch = module.kernels["name"].launch(grid, block, shared_bytes, arguments, memory=memory, checks="all",
        output=print)

Pointers are the host's addresses. `Launch` has what was wrong, by the kernel's file and line, and exact counts of
what it did."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.ptx.counters import Counters
    from windtunnel.ptx.faults import KernelFault
    from windtunnel.ptx.launch import Checks, Launch
    from windtunnel.ptx.memory import Allocation, Allocations, Memory, TouchedRange, zeroed
    from windtunnel.ptx.module import Kernel, Module, Variable
    from windtunnel.ptx.parts import PartedModule, load
    from windtunnel.ptx.syntax import Parameter

__all__ = [
    "Allocation",
    "Allocations",
    "Checks",
    "Counters",
    "Kernel",
    "KernelFault",
    "Launch",
    "Memory",
    "Module",
    "Parameter",
    "PartedModule",
    "TouchedRange",
    "Variable",
    "load",
    "zeroed",
]
_HOMES = {
    "Counters": "counters",
    "KernelFault": "faults",
    "Checks": "launch",
    "Launch": "launch",
    "Allocation": "memory",
    "Allocations": "memory",
    "Memory": "memory",
    "TouchedRange": "memory",
    "zeroed": "memory",
    "Kernel": "module",
    "Module": "module",
    "Variable": "module",
    "PartedModule": "parts",
    "load": "parts",
    "Parameter": "syntax",
}
"""Imported when first asked for: every emulation names this package, and few launch kernels of their own."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"windtunnel.ptx.{_HOMES[name]}"), name)
    return found
