"""Losses that compare every output with every target: (n, 1) beside (n) becomes (n, n), which is hardly ever meant.

PyTorch's losses expand both sides before the operator sees them (`torch.nn.functional.mse_loss` and its kin call
`torch.broadcast_tensors` and warn); an expanded side has a stride of zero. A loss that the program writes itself, as
`((output - target) ** 2).mean()`, subtracts them: such a difference is remembered, and is a loss once backward begins
at a mean or sum of its powers. Differences of all pairs that are meant (distances, kernels) do not lead there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch.autograd.graph import Node

from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler, hand_on
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Note

LOSSES = ("aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss", "aten::huber_loss")
DIFFERENCE = "aten::sub.Tensor"
REDUCTIONS = ("MeanBackward0", "SumBackward0", "LinalgVectorNormBackward0")
POWERS = ("PowBackward0", "AbsBackward0", "MulBackward0")
MOST_NODES = 32  # of the scalars between a loss and its terms
MOST_DIFFERENCES = 64  # remembered, of programs that never call backward


def around(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers of `LOSSES` and `DIFFERENCE`: they look at both sides, then go on with the handler that there was."""
    losses = {name: partial(_compared, handlers.get(name, hand_on)) for name in LOSSES}
    return {**losses, DIFFERENCE: partial(_subtracted, handlers.get(DIFFERENCE, hand_on))}


def _compared(inner: Handler, dispatch: Dispatch, call: Call) -> object:
    first, second = call.args[0], call.args[1]
    if (
        isinstance(first, torch.Tensor)
        and isinstance(second, torch.Tensor)
        and device_of(first) >= 0
        and _expanded(first)
        and _expanded(second)
    ):
        state = dispatch.state
        detail = (
            ("operator", call.plan.name.removeprefix("aten::")),
            ("output", str(_before(first))),
            ("target", str(_before(second))),
            ("device", device_of(first)),
        )
        site = state.site()
        note = Note("loss-broadcast", state.machine.trace.sites[site], detail)
        state.machine.note(state.local.host, note, site)
    return inner(dispatch, call)


def _subtracted(inner: Handler, dispatch: Dispatch, call: Call) -> object:
    first, second = call.args[0], call.args[1]
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)  # TorchScript gives numbers as such
    if both and first.dim() + second.dim() == 3:
        column, row = (first, second) if first.dim() == 2 else (second, first)
        if row.dim() == 1 and column.size(1) == 1 < column.size(0) == row.size(0) and device_of(column) >= 0:
            state = dispatch.state
            if len(state.differences) < MOST_DIFFERENCES:
                output, target = (column, row) if column.requires_grad else (row, column)
                state.differences[row.size(0)] = (state.site(), tuple(output.shape), tuple(target.shape))
    return inner(dispatch, call)


def differentiated(state: State, roots: Iterable[object]) -> None:
    """Backward begins at `roots` (tensors, or edges of the graph): note those made of a remembered difference."""
    if not state.differences:
        return
    remembered = dict(state.differences)
    state.differences.clear()
    for root in roots:
        if not isinstance(root, torch.Tensor):
            continue
        for size in _differences_of(root.grad_fn):
            if size in remembered:
                site, output, target = remembered.pop(size)
                detail = (("output", str(output)), ("target", str(target)), ("device", device_of(root)))
                state.machine.note(
                    state.local.host, Note("loss-broadcast", state.machine.trace.sites[site], detail), site
                )


def _differences_of(node: Node | None) -> Iterator[int]:
    """The sizes n of differences (n, n), of one side that is trained and one that is not, whose powers a loss sums."""
    pending = [node]
    for _ in range(MOST_NODES):
        node = pending.pop() if pending else None
        if node is None:
            continue
        inner = [one for one, _ in node.next_functions if one is not None]
        if node.name() in REDUCTIONS:
            for one in inner:
                inside = [two for two, _ in one.next_functions] if one.name() in POWERS else [one]
                yield from (_rows(two) for two in inside if two is not None and two.name() == "SubBackward0")
        pending += [one for one in inner if not _shape(one)]


def _rows(difference: Node) -> int:
    """n of a difference (n, n) with one side that is trained; 0 for others."""
    shape = _shape(difference)
    sides = [one for one, _ in difference.next_functions if one is not None]
    return shape[0] if len(shape) == 2 and shape[0] == shape[1] and len(sides) == 1 else 0


def _shape(node: Node) -> tuple[int, ...]:
    metadata = node._input_metadata
    return tuple(metadata[0].shape) if metadata else (0,)


def _expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _before(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape before the expansion; leading dimensions that it added are left out."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    shape = [1 if size > 1 and not stride else size for size, stride in sizes]
    while len(shape) > 1 and shape[0] == 1 and tensor.shape[0] > 1:
        shape.pop(0)
    return tuple(shape)
