"""Operators that a program describes (`windtunnel.kernel`): one kernel each, whatever their values are computed by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from windtunnel.operators.described import Description
from windtunnel.seam.torch.dispatch.parts import Mode
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.tags import device_of

IN_PLACE_OR_VIEW = torch._C.DispatchKey.ADInplaceOrView


def handler(plan: Plan, description: Description) -> Callable[..., object]:
    """What handles its calls; those with host tensors are left to what did before."""
    before = plan.handler

    def run(dispatch: Mode, call: Call) -> object:
        if any(device_of(tensor) >= 0 for tensor in call.tensors()):
            if description.parts:
                with dispatch.parts, torch._C._SetExcludeDispatchKeyGuard(IN_PLACE_OR_VIEW, False):
                    return description.values(*call.args, **call.kwargs)
            return dispatch.general(call.but(func=description.values))
        if before is not None:
            return before(dispatch, call)
        return dispatch.general(call)

    plan.described, plan.attributes = description, True
    if description.host:
        plan.card = replace(plan.card, anywhere=True)
    return run
