"""Composite functions that check devices before they are taken apart, each with a text of its own.

Texts: aten/src/ATen/native/SpectralOps.cpp, checkDeviceType in aten/src/ATen/TensorUtils.cpp, and checkSameDevice in
aten/src/ATen/native/LinearAlgebraUtils.h, for which PyTorch's names of these functions differ from those in Python;
GridSamplerUtils.h, TensorShape.cpp, Sorting.cpp, WeightNorm.cpp, LinearAlgebra.cpp and ReduceOps.cpp beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.messages import device_name
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


Sentence = Callable[..., str | None]
"""What a function says of its arguments where their devices differ, None where they do not."""


def _apart(*tensors: Tensor) -> tuple[str, str] | None:
    """The names of the first tensor's device and of another's, where one lies elsewhere."""
    places = [place for place in map(device_of, tensors) if place != FLOATING]
    other = next((place for place in places if place != places[0]), None)
    return None if other is None else (device_name(places[0]), device_name(other))


def _mesh(tensors: Sequence[Tensor], **kwargs: object) -> str | None:
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        return None
    return "meshgrid expects all tensors to have the same device" if _apart(*tensors) else None


def _quantile(tensor: Tensor, q: Tensor, *args: object, **kwargs: object) -> str | None:
    if q.dtype != tensor.dtype or q.dim() > 1 or not _apart(tensor, q):
        return None
    return "quantile() q tensor must be on the same device as the input tensor"


def _weights(v: Tensor, g: Tensor, dim: int = 0) -> str | None:
    words = "weight_norm: expected v_in and g_in to be on the same device, but v_in is on {} and g_in is on {}"
    return words.format(*apart) if (apart := _apart(v, g)) else None


def _chain(tensors: Sequence[Tensor], **kwargs: object) -> str | None:
    if len(tensors) < 3 or not _apart(*tensors):
        return None
    first = device_of(tensors[0])
    other = next(index for index, tensor in enumerate(tensors) if device_of(tensor) not in (first, FLOATING))
    return (
        f"multi_dot(): all tensors must be on the same device but tensor 0 is on {device_name(first)} and tensor "
        f"{other} {device_name(device_of(tensors[other]))}"
    )


def _spacing(tensor: Tensor, *, spacing: Sequence[Tensor], **kwargs: object) -> str | None:
    words = "torch.gradient expected each tensor to be on the same device, but got devices {} and {}!"
    return next((words.format(*apart) for one in spacing if (apart := _apart(tensor, one))), None)


def _split(tensor: Tensor, places: Tensor, *args: object, **kwargs: object) -> str | None:
    words = "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {}"
    found = device_of(places)
    return words.format(device_name(found)) if tensor.dim() and found >= 0 else None


def saying(sentence: Sentence) -> Callable[..., object]:
    """A function of C++ that raises with this sentence where its tensors lie apart."""

    def checked(state: State, func: OpOverload, *args: object, **kwargs: object) -> object:
        if (text := sentence(*args, **kwargs)) is not None:
            raise RuntimeError(text)
        return func._op_dk(COMPOSITE, *args, **kwargs)

    return checked


COMPOSITES = {
    **dict.fromkeys((aten.meshgrid.default, aten.meshgrid.indexing), saying(_mesh)),
    **dict.fromkeys((aten.quantile.default, aten.nanquantile.default), saying(_quantile)),
    aten._weight_norm.default: saying(_weights),
    aten.tensor_split.tensor_indices_or_sections: saying(_split),
    aten.linalg_multi_dot.default: saying(_chain),
    aten.gradient.tensorarray: saying(_spacing),
    aten.gradient.tensorarrayint: saying(_spacing),
    **dict.fromkeys((aten.linalg_cond.out, aten.linalg_cond.p_str_out), into("linalg.cond")),
    aten.linalg_tensorinv.out: into("tensorinv"),
    aten.linalg_tensorsolve.out: into("tensorsolve"),
    aten.stft.default: transform,
    aten.stft.center: transform,
    aten.istft.default: transform,
    aten.take_along_dim.default: along,
}
"""By operator, for `composites.Composites`."""
