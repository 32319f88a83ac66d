"""Losses that compare every output with every target: (n, 1) beside (n) becomes (n, n), which is hardly ever meant.

PyTorch's losses expand both sides before the operator sees them (`torch.nn.functional.mse_loss` and its kin call
`torch.broadcast_tensors` and warn); an expanded side has a stride of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from understudy.seam.torch.dispatch.mode import Dispatch, Handler
from understudy.seam.torch.operators.call import Arguments, Keywords, OpOverload
from understudy.seam.torch.operators.plan import Plan
from understudy.seam.torch.tags import device_of
from understudy.trace.operation import Note

LOSSES = ("aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss", "aten::huber_loss")


def around(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers of `LOSSES`: they look at both sides, then go on with the handler that there was."""
    return {name: partial(_compared, handlers.get(name)) for name in LOSSES}


def _compared(
    inner: Handler | None, dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords
) -> object:
    first, second = args[0], args[1]
    if (
        isinstance(first, torch.Tensor)
        and isinstance(second, torch.Tensor)
        and device_of(first) >= 0
        and _expanded(first)
        and _expanded(second)
    ):
        state = dispatch.state
        detail = (
            ("operator", plan.name.removeprefix("aten::")),
            ("output", str(_before(first))),
            ("target", str(_before(second))),
            ("device", device_of(first)),
        )
        site = state.site()
        note = Note("loss-broadcast", state.machine.trace.sites[site], detail)
        state.machine.note(state.local.host, note, site)
    if inner is not None:
        return inner(dispatch, plan, func, args, kwargs)
    return dispatch.general(plan, func, args, kwargs) if kwargs else dispatch.plain(plan, func, args)


def _expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _before(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape before the expansion; leading dimensions that it added are left out."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    shape = [1 if size > 1 and not stride else size for size, stride in sizes]
    while len(shape) > 1 and shape[0] == 1 and tensor.shape[0] > 1:
        shape.pop(0)
    return tuple(shape)
