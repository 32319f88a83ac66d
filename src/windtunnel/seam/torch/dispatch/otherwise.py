"""What the CPU's kernels refuse and CUDA's compute, found out by the error: no other call pays for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from windtunnel.seam.torch.dispatch import bits, scalars
from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call


def computed(call: Call, error: RuntimeError) -> Callable[[], Result] | None:
    """What computes a call that ended with `error`; None where CUDA's kernel refuses it as well."""
    if bits.moves(call, error):
        return partial(bits.moved, call)
    if scalars.overflows(call, error):
        bounded = scalars.bounded(call)
        return partial(bounded.func, *bounded.args, **bounded.kwargs)
    return None
