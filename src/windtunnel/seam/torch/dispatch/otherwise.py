"""What the CPU's kernels refuse and CUDA's compute, found out by the error: no other call pays for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from windtunnel.seam.torch.dispatch import bits, scalars
from windtunnel.seam.torch.plans.call import Arguments, Kernel, Keywords, Result
from windtunnel.seam.torch.plans.plan import Plan


def computed(
    plan: Plan, run: Kernel, args: Arguments, kwargs: Keywords, error: RuntimeError
) -> Callable[[], Result] | None:
    """What computes a call that ended with `error`; None where CUDA's kernel refuses it as well."""
    if bits.moves(plan, args, error):
        return partial(bits.moved, plan, run, args, kwargs)
    if scalars.overflows(plan, args, kwargs, error):
        args, kwargs = scalars.bounded(args, kwargs)
        return partial(run, *args, **kwargs)
    return None
