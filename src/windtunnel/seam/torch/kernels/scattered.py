"""Gradients that autograd scatters into fresh zeros: on CUDA in place, below any dispatch mode out of place.

Autograd's formulas for `gather`, `index` and `index_select` make zeros of the input's size and add to them. Where a
dispatch mode is active they take the operators that copy those zeros first (`areAnyTensorSubclassLike` in
torch/csrc/autograd/FunctionsManual.cpp). A program on a GPU has no such mode, and neither the copy nor its memory.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.asserts import guarded
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.call import Call

aten = torch.ops.aten
SCATTERING = frozenset({"GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "TakeBackward0"})
"""Nodes of autograd whose first operand is memory that they have just made and that nothing else sees."""
IN_PLACE: dict[str, OpOverload] = {
    "aten::scatter_add": aten.scatter_add_.default,
    "aten::index_add": aten.index_add_.default,
    "aten::index_put": aten.index_put_.default,
}


def scattered(dispatch: Dispatch, call: Call) -> object:
    """Add into the fresh zeros themselves where autograd asks for a copy of them."""
    node = torch._C._current_autograd_node()
    if node is None or torch.is_grad_enabled() or node.name() not in SCATTERING:
        return guarded(dispatch, call)
    direct = IN_PLACE[call.plan.name]
    known = dispatch.plans.get(id(direct)) or dispatch.plan(direct)
    guarded(dispatch, Call(known, direct, call.args, call.kwargs))
    return call.args[0]


HANDLERS = dict.fromkeys(IN_PLACE, scattered)
"""Operators with handlers of their own."""
