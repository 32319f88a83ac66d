"""The calls of one operator of PyTorch's database: its samples, each in the variants in which programs call it.

A case is made anew for each place where it runs, from tensors of plain PyTorch that nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch

from tools.differential.outcomes import Outcome, outcome, tensors_in

Build = Callable[["Place"], Outcome]
SEED = 20260


class Place:
    """Where a case runs: it puts copies of a sample there, with the sample's strides, offsets and shared elements."""

    def __init__(self, device: str) -> None:
        self.device = device

    def put(self, value: Any) -> Any:
        """A copy of a sample's argument in this place."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (list, tuple)):
            parts = [self.put(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, dict):
            return {key: self.put(part) for key, part in value.items()}
        if isinstance(value, torch.device) or value == "cpu":
            return torch.device(self.device)
        return value

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in this place; of one on another device, which errors are about, the tensor."""
        if value.device.type != "cpu":
            return value
        if value.layout is not torch.strided or value.is_nested:
            return value.detach().clone().to(self.device).requires_grad_(value.requires_grad)
        base = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())  # without lazy bits
        moved = base.clone().to(self.device)
        copy = moved.as_strided(value.shape, value.stride(), value.storage_offset())
        copy = copy.conj() if value.is_conj() else copy
        copy = torch._neg_view(copy) if value.is_neg() else copy
        return copy.detach().requires_grad_(value.requires_grad)


@dataclass(frozen=True)
class OperatorCase:
    """One call: `variant` names the way of calling, `build` makes it in a place and gives what it left."""

    variant: str
    index: int
    build: Build


def samples(op: Any, dtype: torch.dtype, limit: int, grad: bool) -> list[Any]:
    """The first samples of an operator, spread over eight times as many."""
    torch.manual_seed(SEED)
    made = list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), 8 * limit))
    step = max(1, len(made) // limit)
    return made[::step][:limit]


def cases(op: Any, dtype: torch.dtype, limit: int) -> Iterator[OperatorCase]:
    """All cases of an operator with one type."""
    for index, sample in enumerate(samples(op, dtype, limit, False)):
        for variant, build in of_sample(op, sample, dtype):
            yield OperatorCase(variant, index, build)
    if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
        for index, sample in enumerate(samples(op, dtype, limit, True)):
            yield OperatorCase("gradients", index, gradients(op, sample))
            if dtype.is_complex:
                yield OperatorCase("gradients of conjugate views", index, gradients(op, changed(sample, conjugated)))
    if op.error_inputs_func is not None and dtype is torch.float32:
        for index, error in enumerate(op.error_inputs("cpu")):
            yield OperatorCase("errors", index, call(op.get_op(), error.sample_input))


def current(function: Any) -> Any:
    """What a program that writes `torch.arange` calls now: an emulation puts an equal stand-in there."""
    found = getattr(torch, getattr(function, "__name__", ""), function)
    return found if found == function else function


def of_sample(op: Any, sample: Any, dtype: torch.dtype) -> Iterator[tuple[str, Build]]:
    """The variants of one sample, by name."""
    function = op.get_op()
    yield "function", call(function, sample)
    yield "inference mode", call(function, sample, torch.inference_mode)
    yield "non-contiguous", call(function, changed(sample, spread))
    yield "empty", call(function, changed(sample, emptied))
    if dtype.is_complex:
        yield "conjugate views", call(function, changed(sample, conjugated))
    if dtype.is_complex or dtype.is_floating_point:
        yield "negative views", call(function, changed(sample, negated))
    if op.inplace_variant is not None and op.supports_inplace_autograd is not None:
        yield "in-place", call(op.inplace_variant, sample)
        if dtype.is_complex:
            yield "in-place on a conjugate view", call(op.inplace_variant, changed(sample, conjugated))
    if op.method_variant is not None:
        yield "method", call(op.method_variant, sample)
    if op.supports_out:
        for name, make in OUTS.items():
            yield name, into(function, sample, make)
        yield "out= in inference mode", into(function, sample, OUTS["out="], torch.inference_mode)


def changed(sample: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A sample whose tensors, all strided, went through `change`."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested:
            return change(value.detach()).requires_grad_(value.requires_grad)
        return value

    return sample.transform(one)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them, after an offset."""
    if tensor.dim() == 0:
        return torch.stack([tensor, tensor])[1]
    wide = torch.stack([tensor, tensor], -1).flatten(-2)
    return wide[..., ::2]


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    """No rows of a tensor."""
    return tensor if tensor.dim() == 0 else tensor[:0].clone()


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a conjugate view."""
    return tensor.conj().resolve_conj().conj() if tensor.is_complex() else tensor


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a negative view."""
    if not (tensor.is_complex() or tensor.is_floating_point()):
        return tensor
    return torch._neg_view((-tensor).resolve_neg().resolve_conj())


def call(function: Any, sample: Any, around: Any = torch.no_grad) -> Build:
    """The operator with a sample's arguments."""

    def build(place: Place) -> Outcome:
        arguments = place.put((sample.input, *sample.args)), place.put(sample.kwargs)

        def run() -> Any:
            torch.manual_seed(SEED)
            with around():
                return current(function)(*arguments[0], **arguments[1])

        return outcome(run, list(tensors_in(arguments)))

    return build


def fitting(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, 1, memory_format=torch.contiguous_format)


def turned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(tuple(reversed(tensor.shape)), 1, dtype=tensor.dtype).permute(
        tuple(reversed(range(tensor.dim())))
    )


def none(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype)


def wider(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex or tensor.dtype.is_floating_point:
        return fitting(tensor).to(torch.complex128 if tensor.dtype.is_complex else torch.float64)
    return fitting(tensor).to(torch.float32)


OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "out=": fitting,
    "non-contiguous out=": turned,
    "empty out=": none,
    "wider out=": wider,
}
"""What tensors are given as `out=`, from those of the result."""


def into(
    function: Any, sample: Any, make: Callable[[torch.Tensor], torch.Tensor], around: Any = torch.no_grad
) -> Build:
    """The operator with `out=`."""

    @cache
    def prepared() -> tuple[tuple[torch.Tensor, ...], bool]:
        torch.manual_seed(SEED)
        try:
            with torch.no_grad():
                results = function(*Place("cpu").put((sample.input, *sample.args)), **Place("cpu").put(sample.kwargs))
        except Exception:  # noqa: BLE001  # the variant "function" compares the error
            return (), False
        made = list(tensors_in((results,)))
        if any(t.layout is not torch.strided or t.is_nested for t in made):
            return (), False
        outs = tuple(make(t.detach().resolve_conj()) for t in made)
        return outs, not isinstance(results, torch.Tensor)

    def build(place: Place) -> Outcome:
        arguments = place.put((sample.input, *sample.args)), place.put(sample.kwargs)
        outs, several = prepared()  # first on plain PyTorch
        out = place.put(outs)

        def run() -> Any:
            torch.manual_seed(SEED)
            with around():
                return current(function)(*arguments[0], **arguments[1], out=out if several else out[0])

        return outcome(run, [*tensors_in(arguments), *out]) if out else Outcome()

    return build


def gradients(op: Any, sample: Any) -> Build:
    """The operator, and the gradients of all its inputs."""

    def build(place: Place) -> Outcome:
        positional, named = place.put((sample.input, *sample.args)), place.put(sample.kwargs)

        def run() -> Any:
            torch.manual_seed(SEED)
            result = op.get_op()(*positional, **named)
            process = sample.output_process_fn_grad
            outs = [t for t in tensors_in(process(result)) if t.requires_grad]
            leaves = [t for t in tensors_in((positional, named)) if t.requires_grad and t.is_leaf]
            weights = [weight(t, place) for t in outs]
            grads = torch.autograd.grad(outs, leaves, weights, allow_unused=True)
            return result, [g for g in grads if g is not None]

        return outcome(run, list(tensors_in((positional, named))))

    return build


def weight(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """A gradient to begin a backward pass with: numbers between -0.75 and 0.75."""
    values = (torch.arange(tensor.numel(), device="cpu") % 7 - 3).to(tensor.dtype) / 4
    values = values.view(tensor.shape).to(tensor.dtype)
    return values.to(place.device)
