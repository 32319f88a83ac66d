"""Operators whose values a kernel of ours gives on a device, when they are called and in a graph's replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.plans.plan import Plan, tensors_in
from windtunnel.seam.torch.tags import device_of

Choose = Callable[[OpOverload, Arguments, Keywords], Any]
"""The operator that it is given, or a `SubstituteKernel` in its place."""
Values = Callable[[Dispatch, Plan, OpOverload, Arguments, Keywords, int], object]


class SubstituteKernel:
    """A kernel of ours in an operator's place, which counts as the operator does."""

    def __init__(self, func: OpOverload) -> None:
        self.func = func
        self._overloadpacket = func._overloadpacket


def substituted(names: Iterable[str], choose: Choose) -> tuple[dict[str, Handler], dict[str, Values]]:
    """(handlers, what computes them in a replay) of operators; `choose` gives the kernel for one call on a device."""

    def called(dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        chosen = choose(func, args, kwargs)
        if chosen is func and not kwargs:
            return dispatch.plain(plan, func, args)
        on_device = any(device_of(t) >= 0 for t in tensors_in((*args, *kwargs.values())))
        return dispatch.general(plan, chosen if on_device else func, args, kwargs)

    def replayed(
        dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords, device: int
    ) -> object:
        return dispatch.call(plan, choose(func, args, kwargs), args, kwargs, device)

    names = tuple(names)
    return dict.fromkeys(names, called), dict.fromkeys(names, replayed)
