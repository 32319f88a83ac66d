"""One process and several devices: what `torch.nn.DataParallel`, `torch.cuda.comm` and foreach optimizers call in C++.

Shapes, checks and texts are those of torch/csrc/cuda/comm.cpp; every transfer between two devices is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch._utils import _flatten_dense_tensors, _reorder_tensors_as, _take_tensors, _unflatten_dense_tensors

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import Keywords
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, device_of
from windtunnel.trace.operation import Note

if TYPE_CHECKING:
    from windtunnel.seam.torch.distributed.nccl import Streams

CPU_DEVICE = torch.device("cpu")

Tensor = torch.Tensor
Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Tensor | None]], list[int]]]


def patches(state: State) -> list[Patch]:
    """The functions of `torch._C` that move tensors between devices, and the remark that DataParallel ran."""
    functions = {
        "_broadcast": broadcast,
        "_broadcast_out": broadcast_out,
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_scatter_out": scatter_out,
        "_gather": gather,
        "_gather_out": gather_out,
        "_group_tensors_by_device_and_dtype": group,
    }
    found = [Patch(torch._C, name, function) for name, function in functions.items()]
    found.append(Patch(torch.nn.parallel._functions, "_streams", None))  # a cache of the emulated streams
    found.append(Patch(torch.nn.DataParallel, "scatter", _remarking(state)))
    return found


# ---------------------------------------------------------------------------------------------- one to many


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """A copy of `tensor` on every device; the tensor itself where it is."""
    if not devices:
        raise RuntimeError("Expected at least one device to broadcast to")
    return [tensor if device == device_of(tensor) else _to(tensor, device) for device in devices]


def broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copy `tensor` into every one of `out`, all on devices and of its shape."""
    for index, each in enumerate(out):
        _check_on_device("output", each, index)
        if each.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape {list(each.shape)}"
            )
    for each in out:
        each.copy_(tensor, non_blocking=True)
    return out


def broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    """Copies of many tensors on every device, in pieces of up to `buffer_size` bytes; the first device has its own."""
    if any(device_of(tensor) != devices[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    outputs: list[list[Tensor]] = [list(tensors)]
    dense = [tensor for tensor in tensors if not tensor.is_sparse]
    chunks = list(_take_tensors(dense, buffer_size))
    flat = [_flatten_dense_tensors(chunk) for chunk in chunks]
    for device in devices[1:]:
        made: list[Tensor] = []
        order: list[Tensor] = []
        for tensor in tensors:
            if tensor.is_sparse:
                made.append(_to(tensor, device))
                order.append(tensor)
        for chunk, one in zip(chunks, flat, strict=True):
            # `.data`: the parts share memory but not a version counter, as in C++.
            parts = _unflatten_dense_tensors(_to(one, device), chunk)
            made += [
                part.data if part.numel() else _to(whole, device) for part, whole in zip(parts, chunk, strict=True)
            ]
            order += chunk
        outputs.append(list(_in_order(made, order, tensors)))
    return outputs


def _in_order(made: list[Tensor], order: list[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(order) == len(tensors) and all(a is b for a, b in zip(order, tensors, strict=True)):
        return made
    places = {id(tensor): index for index, tensor in enumerate(order)}
    if len(places) < len(order):
        return list(_reorder_tensors_as(made, tensors))
    return [made[places[id(tensor)]] for tensor in tensors]


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Streams = None,
) -> list[Tensor]:
    """The pieces of `tensor` along `dim`, each on its device; copied on `streams` where those are given."""
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    here = device_of(tensor)
    out = []
    for index, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):
        if device != here:
            with _on_stream(streams, index, device):
                chunk = _to(chunk, device)
        out.append(chunk)
    return out


def scatter_out(tensor: Tensor, out: Sequence[Tensor], dim: int = 0, streams: Streams = None) -> Sequence[Tensor]:
    """Copy the pieces of `tensor` along `dim` into `out`, whose sizes say how large they are."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = dim % tensor.dim()
    for index, each in enumerate(out):
        _check_on_device("output", each, index)
        if _without(each, dim) != _without(tensor, dim):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(each.shape)}. Expected same "
                f"shape except for scatter dim {dim} as the source tensor: {list(tensor.shape)}"
            )
    sizes = [each.size(dim) for each in out]
    if sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim "
            f"{dim}. Expected {tensor.size(dim)}, but got total size {sum(sizes)}"
        )
    for index, (chunk, each) in enumerate(zip(tensor.split(sizes, dim), out, strict=True)):
        with _on_stream(streams, index, device_of(each)):
            each.copy_(chunk, non_blocking=True)
    return out


def _on_stream(streams: Streams, index: int, device: int) -> AbstractContextManager[object]:
    stream = streams[index] if streams is not None and index < len(streams) else None
    if stream is None:
        return nullcontext()
    if stream.device_index != device:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {index} (was {stream.device_index}) "
            f"to match the device supplied at that index (expected {device})"
        )
    return stream


# ---------------------------------------------------------------------------------------------- many to one


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
    """The tensors joined along `dim`, on a device (the current one where None is given, the CPU for -1)."""
    shape, dim = _joined_shape(tensors, dim)
    where = torch.device("cpu" if destination == CPU else "cuda" if destination is None else f"cuda:{destination}")
    channels_last = all(
        t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in tensors
    )
    form = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(shape, dtype=tensors[0].dtype, device=where, memory_format=form)
    return _gather_into(tensors, out, dim)


def gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    """The same into a tensor that is there."""
    shape, dim = _joined_shape(tensors, dim)
    if list(out.shape) != shape:
        raise RuntimeError(f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
    return _gather_into(tensors, out, dim)


def _gather_into(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    parts = out.split([tensor.size(dim) for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=out.is_cuda)
    return out


def _joined_shape(tensors: Sequence[Tensor], dim: int) -> tuple[list[int], int]:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    dim = dim % max(1, first.dim())
    expected = list(first.shape)
    for index, tensor in enumerate(tensors):
        _check_on_device("input", tensor, index)
        if tensor.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but "
                f"tensor at index {index}has {tensor.dim()} dimensions, (expected {first.dim()})"
            )
        expected[dim] = tensor.size(dim)
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but expected {expected}"
            )
    expected[dim] = sum(tensor.size(dim) for tensor in tensors)
    return expected, dim


# ---------------------------------------------------------------------------------------------- pieces


def _to(tensor: Tensor, device: int) -> Tensor:
    if device < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {device}")
    return tensor.to(torch.device("cuda", device), non_blocking=True)


def _check_on_device(role: str, tensor: Tensor, index: int) -> None:
    found = device_of(tensor)
    if found < 0:
        named = "tensor" if role == "input" else "output tensor"
        raise RuntimeError(
            f"Expected all {role} tensors to be CUDA tensors, but {named} at index {index} "
            f"has device '{device_name(found)}'"
        )


def _without(tensor: Tensor, dim: int) -> list[int]:
    return [size for index, size in enumerate(tensor.shape) if index != dim]


def group(nested: list[list[Tensor | None]], with_indices: bool = False) -> Groups:
    """Lists of tensors split by the device and dtype of the first list's, as foreach optimizers ask for them.

    Steps and the like may lie on the CPU in float32 or float64; anything else of another device or dtype is refused.
    """
    found: Groups = {}
    for index, tensor in enumerate(nested[0]):
        if tensor is None:
            raise RuntimeError(
                "Tensors of the first list of nested Tensor lists are supposed to be defined but "
                f"the {index}-th Tensor is not."
            )
        device, dtype = tensor.device, tensor.dtype
        lists, indices = found.setdefault((device, dtype), ([[] for _ in nested], []))
        for made, given in zip(lists, nested, strict=True):
            if given:
                other = given[index]
                made.append(other if other is tensor else _checked(other, device, dtype))
        if with_indices:
            indices.append(index)
    return found


def _checked(tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    if tensor is None:
        return None
    found = tensor.device
    if tensor.dtype != dtype or found != device:
        floats = tensor.dtype in (torch.float32, torch.float64)
        if not floats or found not in (device, CPU_DEVICE):
            raise RuntimeError(
                "Tensors of the same index must be on the same device and the same dtype except `step` tensors "
                "that can be CPU and float32/64 notwithstanding"
            )
    return tensor


def _remarking(state: State) -> object:
    stock = torch.nn.DataParallel.scatter

    def scatter(
        self: torch.nn.DataParallel[torch.nn.Module],
        inputs: tuple[object, ...],
        kwargs: Keywords | None,
        device_ids: Sequence[int],
    ) -> object:
        batch = next((v for v in (*inputs, *(kwargs or {}).values()) if isinstance(v, Tensor) and v.dim()), None)
        if batch is not None and len(device_ids) > 1:
            site = state.machine.trace.sites[state.site()]
            detail = (("devices", len(device_ids)), ("batch", batch.size(self.dim)))
            state.machine.note(state.local.host, Note("data-parallel", site, detail))
        return stock(self, inputs, kwargs, device_ids)

    return scatter
