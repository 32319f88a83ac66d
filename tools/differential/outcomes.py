"""What a call left behind: its error, or its tensors with all that a program can ask of them; and how two differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

RTOL = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.complex64: 2e-5, torch.complex32: 4e-3}
"""Relative tolerance of what is called rounding, by type; 1e-9 for the types that are missing here."""


@dataclass
class Leaf:
    """A tensor as a program sees it; `shares` is the first tensor of the call whose memory it has."""

    tensor: torch.Tensor
    device: str
    layout: torch.layout
    requires_grad: bool
    stride: tuple[int, ...] | None
    shares: int | None
    same: bool


@dataclass
class Outcome:
    """The end of one call: the class of its error, or its results, arguments and gradients in order."""

    error: str = ""
    message: str = ""
    others: list[Any] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """One thing that differs; `kind` is error, value, rounding, dtype, shape, stride, device, grad or alias."""

    kind: str
    detail: str


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def others_in(value: Any) -> Iterator[Any]:
    """What is no tensor in a result."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from others_in(part)
    elif not isinstance(value, torch.Tensor):
        yield value


def outcome(call: Callable[[], Any], given: list[torch.Tensor]) -> Outcome:
    """Make a call and describe what it gave and what it left in the tensors that it was given."""
    try:
        result = call()
        found = Outcome(others=[repr(value) for value in others_in(result)])
        described(found, [*tensors_in(result), *given], given)
    except Exception as error:  # noqa: BLE001  # which one it is, is the result
        return Outcome(error=type(error).__name__, message=str(error).partition("\n")[0])
    return found


def described(found: Outcome, tensors: list[torch.Tensor], given: list[torch.Tensor]) -> None:
    """Add the tensors of a call, in order, to what it left behind."""
    places = [memory(tensor) for tensor in given]
    for tensor in tensors:
        place = memory(tensor)
        strided = tensor.layout is torch.strided and not tensor.is_nested
        found.leaves.append(
            Leaf(
                tensor=tensor.detach(),
                device=str(tensor.device),
                layout=tensor.layout,
                requires_grad=tensor.requires_grad,
                stride=tuple(tensor.stride()) if strided else None,
                shares=next((i for i, other in enumerate(places) if place is not None and other == place), None),
                same=any(tensor is other for other in given),
            )
        )


def memory(tensor: torch.Tensor) -> int | None:
    """The identity of a tensor's storage; None where it has none."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return int(tensor.untyped_storage()._cdata)


def differences(want: Outcome, got: Outcome, device: str, values: bool = True) -> list[Difference]:
    """How a call on `device` differs from the same call on plain PyTorch; without `values`, in all but these."""
    if want.error != got.error:
        return [
            Difference(
                "error", f"{want.error or 'no error'} -> {got.error or 'no error'}: {got.message or want.message}"
            )
        ]
    if want.error:
        return []
    if values and want.others != got.others:
        return [Difference("value", f"{want.others} -> {got.others}"[:200])]
    if len(want.leaves) != len(got.leaves):
        return [Difference("value", f"{len(want.leaves)} -> {len(got.leaves)} tensors")]
    found: dict[str, Difference] = {}
    for a, b in zip(want.leaves, got.leaves, strict=True):
        for difference in between(a, b, device, values):
            found.setdefault(difference.kind, difference)
    return list(found.values())


def between(a: Leaf, b: Leaf, device: str, values: bool) -> Iterator[Difference]:
    """How one tensor differs from its counterpart."""
    if a.tensor.dtype != b.tensor.dtype or a.layout != b.layout:
        yield Difference("dtype", f"{a.tensor.dtype} {a.layout} -> {b.tensor.dtype} {b.layout}")
        return
    if b.device != device:
        yield Difference("device", f"{device} -> {b.device}")
    if a.requires_grad != b.requires_grad:
        yield Difference("grad", f"requires_grad {a.requires_grad} -> {b.requires_grad}")
    if (a.shares, a.same) != (b.shares, b.same):
        yield Difference("alias", f"shares {a.shares}, same {a.same} -> shares {b.shares}, same {b.same}")
    if a.tensor.is_nested or b.tensor.is_nested:
        return
    if a.tensor.shape != b.tensor.shape:
        yield Difference("shape", f"{tuple(a.tensor.shape)} -> {tuple(b.tensor.shape)}")
        return
    if a.stride != b.stride:
        yield Difference("stride", f"{tuple(a.tensor.shape)}: {a.stride} -> {b.stride}")
    if values:
        yield from of_values(a.tensor, b.tensor)


def of_values(a: torch.Tensor, b: torch.Tensor) -> Iterator[Difference]:
    """Values that are not bit-equal, NaN equal to NaN: `rounding` within the type's tolerance, else `value`."""
    a, b = plain(a), plain(b)
    if same(a, b, 0):
        return
    if a.shape == b.shape and (a.is_floating_point() or a.is_complex()) and same(a, b, RTOL.get(a.dtype, 1e-9)):
        yield Difference("rounding", "within the tolerance of the type")
    else:
        yield Difference("value", f"{a.flatten()[:4].tolist()} -> {b.flatten()[:4].tolist()}")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor without lazy bits."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.resolve_conj().resolve_neg()


def same(a: torch.Tensor, b: torch.Tensor, rtol: float) -> bool:
    """Whether two tensors have the same values, or differ by `rtol` of the largest one that is finite."""
    if a.dtype.is_complex:
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    a, b = a.double(), b.double()
    finite = a[a.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    return torch.allclose(a, b, rtol=rtol, atol=rtol * scale, equal_nan=True)
