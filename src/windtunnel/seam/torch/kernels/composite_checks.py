"""Composite functions that check devices before they are taken apart, each with a text of its own.

Texts: aten/src/ATen/native/SpectralOps.cpp, checkDeviceType in aten/src/ATen/TensorUtils.cpp, and checkSameDevice in
aten/src/ATen/native/LinearAlgebraUtils.h, for which PyTorch's names of these functions differ from those in Python.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.operators.call import OpOverload
from windtunnel.seam.torch.operators.messages import device_name
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import FLOATING, device_of

aten = torch.ops.aten
Tensor = torch.Tensor


def transform(
    state: State,
    func: OpOverload,
    tensor: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    *args: object,
    **kwargs: object,
) -> object:
    """A short-time Fourier transform, whose window lies where its input does."""
    place = device_of(tensor)
    if window is not None:
        found = device_of(window)
        if found != place and FLOATING not in (found, place):
            name = func._opname
            raise RuntimeError(
                f"{name} input and window must be on the same device but got self on {device_name(place)} and window "
                f"on {device_name(found)}"
            )
    # C++'s own parts: some have Python ones that differ.
    return func._op_dk(COMPOSITE, tensor, n_fft, hop_length, win_length, window, *args, **kwargs)


def along(state: State, func: OpOverload, tensor: Tensor, indices: Tensor, *args: object, **kwargs: object) -> object:
    """`take_along_dim`, whose indices lie where its input does (_take_along_dim_helper, TensorAdvancedIndexing.cpp)."""
    wanted, found = ("cuda" if device_of(one) >= 0 else "cpu" for one in (tensor, indices))
    if wanted != found and FLOATING not in (device_of(tensor), device_of(indices)):
        raise RuntimeError(
            f"Expected tensor to have {wanted} DeviceType, but got tensor with {found} DeviceType "
            "(while checking arguments for torch.take_along_dim())"
        )
    return func._op_dk(COMPOSITE, tensor, indices, *args, **kwargs)


def beside(name: str, out: Tensor, tensor: Tensor) -> None:
    """Raises where a result is to be written to another device than its input's."""
    wanted, found = device_of(tensor), device_of(out)
    if wanted != found and FLOATING not in (wanted, found):
        raise RuntimeError(
            f"{name}: Expected result and input tensors to be on the same device, but got result on "
            f"{device_name(found)} and input on {device_name(wanted)}"
        )


def into(name: str) -> Callable[..., object]:
    """A function of linear algebra that checks `out` under this name."""

    def written(state: State, func: OpOverload, tensor: Tensor, *args: object, out: Tensor, **kwargs: object) -> object:
        beside(name, out, tensor)
        return func._op_dk(COMPOSITE, tensor, *args, out=out, **kwargs)

    return written


COMPOSITES = {
    **dict.fromkeys((aten.linalg_cond.out, aten.linalg_cond.p_str_out), into("linalg.cond")),
    aten.linalg_tensorinv.out: into("tensorinv"),
    aten.linalg_tensorsolve.out: into("tensorsolve"),
    aten.stft.default: transform,
    aten.stft.center: transform,
    aten.istft.default: transform,
    aten.take_along_dim.default: along,
}
"""By operator, for `composites.Composites`."""
