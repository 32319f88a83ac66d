"""Operators that a program describes (`windtunnel.kernel`): one kernel each, whatever their values are computed by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from windtunnel.operators.described import Description
from windtunnel.seam.torch.dispatch.parts import Mode
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.plans.plan import Plan, tensors_in
from windtunnel.seam.torch.tags import device_of

IN_PLACE_OR_VIEW = torch._C.DispatchKey.ADInplaceOrView


class Values:
    """What gives an operator's values in its place."""

    def __init__(self, func: OpOverload, values: Callable[..., object]) -> None:
        self._overloadpacket = func._overloadpacket
        self.values = values

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.values(*args, **kwargs)


def handler(plan: Plan, description: Description) -> Callable[..., object]:
    """What handles its calls; those with host tensors are left to what did before."""
    before, values = plan.handler, Values(plan.func, description.values)

    def run(dispatch: Mode, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        if any(device_of(tensor) >= 0 for tensor in tensors_in((*args, *kwargs.values()))):
            if description.parts:
                with dispatch.parts, torch._C._SetExcludeDispatchKeyGuard(IN_PLACE_OR_VIEW, False):
                    return description.values(*args, **kwargs)
            return dispatch.general(plan, values, args, kwargs)  # type: ignore[arg-type]
        if before is not None:
            return before(dispatch, plan, func, args, kwargs)
        return dispatch.general(plan, func, args, kwargs)

    plan.described, plan.attributes = description, True
    if description.host:
        plan.card = replace(plan.card, anywhere=True)
    return run
