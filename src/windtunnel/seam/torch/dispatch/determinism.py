"""`torch.use_deterministic_algorithms(True)`: operators that CUDA computes in no fixed order raise, as on a GPU.

The CPU's kernels are deterministic, so they would pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch

from windtunnel.operators.card import stating
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler, hand_on
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.dtypes import is_since
from windtunnel.seam.torch.tags import device_of

MAXIMUM = 2
"""EmbeddingBag's mode "max"."""

ONLY_WHEN: Mapping[str, Callable[[dict[str, object]], bool]] = {
    "aten::_embedding_bag_backward": lambda given: given["mode"] == MAXIMUM,
    "aten::_embedding_bag_dense_backward": lambda given: given["mode"] == MAXIMUM,
    "aten::bincount": lambda given: given.get("weights") is not None,
    "aten::histc": lambda given: not is_since("2.8") or cast(torch.Tensor, given["self"]).dtype.is_floating_point,
    "aten::median": lambda given: "dim" in given,
    "aten::nanmedian": lambda given: "dim" in given,
    "aten::scatter": lambda given: given.get("reduce") == "multiply" and "src" in given,
    "aten::scatter_": lambda given: given.get("reduce") == "multiply" and "src" in given,
    "aten::scatter_reduce": lambda given: given["reduce"] == "prod",
    "aten::scatter_reduce_": lambda given: given["reduce"] == "prod",
}
"""Of some operators only some uses are nondeterministic; by their arguments.

PyTorch 2.8 took integers out of `histc`'s alert: https://github.com/pytorch/pytorch/pull/151701.
"""

NAMES = {"_histc_cuda": "_histc_cuda with floating point input"} if is_since("2.8") else {}
"""What kernels call themselves in the alerts of this PyTorch, where that differs from the first that alerted."""

SET = "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True{})'. "
FILE = (
    "ile an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
    "this operation."
)
RAISED = (
    "You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's "
    "acceptable for your application. You can also f" + FILE
)
"""aten/src/ATen/Context.cpp: `alertNotDeterministic`."""


def around(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers of the operators that alert: they look at the switch, then go on with the handler that there was."""
    ordered = {name for name, version in stating("ordered").items() if is_since(version)}
    return {name: partial(_checked, handlers.get(name, hand_on)) for name in stating("alert") if name not in ordered}


def _checked(inner: Handler, dispatch: Dispatch, call: Call) -> object:
    if torch.are_deterministic_algorithms_enabled() and any(device_of(t) >= 0 for t in tensors_in(call.args)):
        only = ONLY_WHEN.get(call.plan.name)
        if only is None or only(call.named()):
            stated = call.plan.card.alert
            alert(NAMES.get(stated, stated))
    return inner(dispatch, call)


def alert(name: str) -> None:
    """Raise, or warn where the program asked for warnings only."""
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(SET.format(name, ", warn_only=True") + "You can f" + FILE, stacklevel=4)
    else:
        raise RuntimeError(SET.format(name, "") + RAISED)
