"""Operators whose values a kernel of ours gives on a device, when they are called and in a graph's replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from windtunnel.seam.torch.dispatch.asserts import guarded
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

Choose = Callable[[OpOverload, Arguments, Keywords], Any]
"""The operator that it is given, or a `SubstituteKernel` in its place."""
Values = Callable[[Dispatch, Call], object]


class SubstituteKernel:
    """A kernel of ours in an operator's place, which counts as the operator does."""

    def __init__(self, func: OpOverload) -> None:
        self.func = func


def substituted(names: Iterable[str], choose: Choose) -> tuple[dict[str, Handler], dict[str, Values]]:
    """(handlers, what computes them in a replay) of operators; `choose` gives the kernel for one call on a device."""

    def called(dispatch: Dispatch, call: Call) -> object:
        return guarded(dispatch, call, chosen_for) if call.plan.card.asserts else chosen_for(dispatch, call)

    def chosen_for(dispatch: Dispatch, call: Call) -> object:
        func = call.plan.func
        chosen = choose(func, call.args, call.kwargs)
        if chosen is func and not call.kwargs:
            return dispatch.plain(call.plan, func, call.args)
        on_device = any(device_of(t) >= 0 for t in call.tensors())
        return dispatch.general(call.but(func=chosen) if on_device else call)

    def replayed(dispatch: Dispatch, call: Call) -> object:
        return dispatch.compute(call.but(func=choose(call.plan.func, call.args, call.kwargs)))

    names = tuple(names)
    return dict.fromkeys(names, called), dict.fromkeys(names, replayed)
