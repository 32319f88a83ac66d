"""Composite functions that check devices before they are taken apart, each with a text of its own.

Texts: `check_attributes` of aten/src/ATen/native/RNN.cpp, aten/src/ATen/native/SpectralOps.cpp, and the warning of
aten/src/ATen/native/cudnn/RNN.cpp.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from understudy.seam.torch.dispatch import COMPOSITE
from understudy.seam.torch.messages import device_name
from understudy.seam.torch.state import State
from understudy.seam.torch.tags import FLOATING, device_of, storage_of

aten = torch.ops.aten
Tensor = torch.Tensor
SCATTERED = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted at "
    "every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)
RECURRENT = tuple(
    getattr(getattr(aten, name), overload) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for overload in ("input", "data")
)  # fmt: skip


def recurrent(state: State, func: Any, *args: Any, **kwargs: Any) -> Any:
    """A recurrent layer: input, hidden states and weights lie on one device, the weights in one buffer there."""
    tensor, *rest = args[: 4 if func._overloadname == "data" else 3]
    hidden, weights = rest[-2:]
    place = device_of(tensor)
    for kind, given in (("hidden", hidden), ("parameter", weights)):
        for other in [given] if isinstance(given, Tensor) else given:
            found = device_of(other)
            if found != place and FLOATING not in (found, place):
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {device_name(place)} "
                    f"and {kind} tensor at {device_name(found)}"
                )
    if place >= 0 and torch._C._get_cudnn_enabled() and _scattered(weights):
        warnings.warn(SCATTERED, stacklevel=3)
    return func._op_dk(COMPOSITE, *args, **kwargs)  # C++'s own parts: some have Python ones that differ


def _scattered(weights: list[Tensor]) -> bool:
    if not all(isinstance(weight, torch.nn.Parameter) for weight in weights):
        return False  # copies that were made on the way, by autocast for one
    return len({storage_of(weight)._cdata for weight in weights}) > 1


def transform(state: State, func: Any, *args: Any, **kwargs: Any) -> Any:
    """A short-time Fourier transform, whose window lies where its input does."""
    tensor, window = args[0], args[4] if len(args) > 4 else kwargs.get("window")
    place = device_of(tensor)
    if window is not None:
        found = device_of(window)
        if found != place and FLOATING not in (found, place):
            name = func._opname
            raise RuntimeError(
                f"{name} input and window must be on the same device but got self on {device_name(place)} and window "
                f"on {device_name(found)}"
            )
    return func._op_dk(COMPOSITE, *args, **kwargs)  # C++'s own parts: some have Python ones that differ


COMPOSITES = {
    **dict.fromkeys(RECURRENT, recurrent),
    aten.stft.default: transform,
    aten.stft.center: transform,
    aten.istft.default: transform,
}
"""By operator, for `composites.Composites`."""
