"""What the cost model needs to know of a call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from math import prod

import torch
from torch.utils.flop_counter import flop_registry

from windtunnel.machine.machine import Machine
from windtunnel.operators.card import CUDNN
from windtunnel.operators.described import amount
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.dtypes import is_since
from windtunnel.seam.torch.plans.layout import BENCHMARK, FOUR, ORDERLY, bytes_of, channels_last, disorder
from windtunnel.seam.torch.tags import (
    VERSION,
    is_physically_meta,
    size_of,
)
from windtunnel.trace.operation import Signature

LEAVES_3D_TO_CUDNN = VERSION < (2, 9)
"""Whether PyTorch asks every cuDNN for 3-d convolutions in 16 bits (cost/families/looped_convolutions.py)."""


def signature(call: Call, tf32: bool) -> Signature:
    """What the cost model needs to know of one call: shapes, dtypes, floating point operations and bytes.

    `tf32` is `State.tf32()` of the operator's library.
    """
    plan, args, kwargs = call.plan, call.args, call.kwargs
    inputs = call.tensors()
    outputs = tensors_in((call.out,)) if plan.fresh else []
    read = sum(map(bytes_of, inputs))
    written = sum(map(bytes_of, outputs))
    for position in plan.mutated:
        if position < len(args):
            written += sum(map(bytes_of, tensors_in((args[position],))))
    for keyword in plan.mutated_keywords:
        size = sum(map(bytes_of, tensors_in((kwargs.get(keyword),))))
        written += size
        read -= size
    first = bytes_of(inputs[0]) if inputs else 0
    known = plan.card
    if known.access == "writes":
        read -= sum(map(bytes_of, tensors_in(args[:1])))
    elif known.access == "fills first":
        written += read
    elif known.access == "gathers":
        read += min(first, written) - first
    elif known.access == "scatters":
        touched = min(first, bytes_of(inputs[-1]))
        read += touched - first
        written = touched
    detail: list[tuple[str, str | int]] = []
    if tf32:
        detail.append(("tf32", 1))
    if inputs and inputs[0].dtype is FOUR:
        detail.append(("packed", 1))
    if any(map(channels_last, inputs)):
        detail.append(("channels_last", 1))
    if LEAVES_3D_TO_CUDNN and known.tf32 == CUDNN:
        detail.append(("cudnn", 1))
    if known.tf32 == CUDNN and BENCHMARK():
        detail.append(("benchmark", 1))
    detail += [("together", 1)] * (known.together != "" and is_since(known.together))
    lies = disorder(args, call.out) if known.layout == "order" else ORDERLY
    read -= lies.repeated
    if lies.scattered or lies.strided:
        detail.append(("scattered", lies.scattered) if lies.scattered else ("strided", lies.strided))
    if known.workspace and plan.layout:
        detail += [(name, 1) for name in plan.layout(args)]
    if plan.attributes:
        detail += [(name, _plain(value)) for name, value in zip(plan.names, args, strict=False) if _is_plain(value)]
    flops = None
    if (told := plan.described) is not None:
        detail.append(("like", told.like))
        flops = None if told.flops is None else amount(told.flops, args, kwargs)
        read, written = (read, written) if told.bytes is None else (amount(told.bytes, args, kwargs), 0)
    return Signature(
        plan.name,
        tuple(tuple(int(n) for n in size_of(t)) for t in (*inputs, *outputs)),
        tuple(str(t.dtype)[6:] for t in (*inputs, *outputs)),
        len(inputs),
        flops_of(call) if flops is None else flops,
        max(0, read),
        written,
        tuple(detail),
    )


def _plain(value: object) -> str | int:
    """A value of a call as a signature keeps it: truth values as 0 and 1, since the word "False" would be true."""
    return int(value) if isinstance(value, bool) else str(value)


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, (list, tuple)) and not tensors_in(value))


class Unknown:
    """Where texts begin, without data: PyTorch's counter takes each to be as long as the longest."""

    device = torch.device("meta")

    def __init__(self, places: torch.Tensor) -> None:
        self.shape = places.shape

    def size(self, dim: int) -> int:
        """The length of a dimension."""
        return int(self.shape[dim])


def _has_no_values(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.int32 and is_physically_meta(value)


def flops_of(call: Call) -> int:
    """Floating-point operations of one call as PyTorch's own counter has them; 0 where it has no rule.

    It has none for cuDNN's recurrent layers: every matrix is used once for each step and text, twice as often backward.
    Each of the query's heads counts, also where several share one of the key's, of which PyTorch 2.6 has no rule.
    """
    args = call.args
    if call.plan.name == "aten::convolution_backward":
        return _convolution_backward_flops(args[0], args[1], args[2], args[7], args[-1])
    known = call.plan.card
    if known.passes:
        matrices = sum(weight.numel() for weight in args[1] if weight.dim() > 1)
        return int(2 * known.passes * matrices * prod(args[0].shape[:-1]))
    counted, first = call.plan.func._overloadpacket, known.query
    batch, heads, tokens = 0, 1, 2
    if known.counted_as:
        if args[known.texts] is None:
            counted = getattr(torch.ops.aten, known.counted_as)
            heads, tokens = tokens, heads
        else:
            first = None
            args = tuple(Unknown(one) if _has_no_values(one) else one for one in args)
    count = flop_registry.get(counted)
    if count is None:
        return 0
    if first is not None:
        shared = args[first].shape[heads]
        given = [part.shape for part in args[: first + 3]]
        shapes = [(shape[batch], shared, shape[tokens], *shape[3:]) for shape in given]
        args = (*shapes, *args[first + 3 :])
    if any(tensor.is_nested for tensor in tensors_in(args)):  # a batch of parts, each with a shape of its own
        split = [[part[None] for part in t.unbind()] if isinstance(t, torch.Tensor) else repeat(t) for t in args]
        return sum(int(count(*parts, **call.kwargs, out_val=None)) for parts in zip(*split, strict=False))
    # Its rules know no `out_dtype`, nor that a byte may hold two numbers.
    packed = 2 if args and getattr(args[0], "dtype", None) is FOUR else 1
    counted_args = (value for value in args if not isinstance(value, torch.dtype))
    return packed * int(count(*counted_args, **call.kwargs, out_val=call.out))


def _convolution_backward_flops(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, transposed: bool, mask: Sequence[bool]
) -> int:
    """The gradients of input and weight take as many operations as the forward pass, each.

    PyTorch's counter (torch/utils/flop_counter.py, conv_backward_flop) leaves the groups out of the weight's: it counts
    every input channel against every output channel.
    """
    positions = prod(x.shape) if transposed else prod(gradient.shape)
    return 2 * positions * prod(weight.shape[1:]) * sum(map(bool, mask[:2]))


def on_cpu(machine: Machine, call: Call) -> int:
    """What an operator on host tensors takes the host, in nanoseconds (modelled)."""
    if not call.plan.kernel or not machine.installed:
        return 0
    size = sum(map(bytes_of, tensors_in((*call.args, call.out))))
    return machine.installed[0].cost.host_operator_ns(size, flops_of(call), bool(call.plan.random))
