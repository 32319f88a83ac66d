"""Families of kernels to time, a file each, which the listing of this folder registers: `calls(short)` gives them.

Each is made when it is asked for, so that its tensors are gone before the next. A call may launch several kernels; what
is timed is all of them. `short` asks for one small shape.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

Call = Callable[[], object]
Calls = Iterator[tuple[str, Call]]


def families() -> dict[str, Callable[[bool], Calls]]:
    """The tables of calls by family."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", " "): import_module(f"{__name__}.{name}").calls for name in names}


def half() -> Any:
    """The 16-bit type that training uses on this GPU."""
    import torch

    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def backward(make: Callable[..., Any], *inputs: Any, weights: tuple[Any, ...] = ()) -> Call:
    """The backward pass alone of `make(*inputs)`, for its inputs of a floating type and its weights."""
    import torch

    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out = make(*leaves)
    gradient = torch.randn_like(out)
    wanted = [x for x in (*leaves, *weights) if x.requires_grad]
    return lambda: torch.autograd.grad(out, wanted, gradient, retain_graph=True)
