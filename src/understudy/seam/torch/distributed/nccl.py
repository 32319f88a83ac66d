"""`torch.cuda.nccl`: collectives of one process over tensors on its several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from understudy.errors import UnsupportedError
from understudy.seam.patching import Patch
from understudy.seam.torch.state.late import alias
from understudy.seam.torch.state.state import State, stream_of
from understudy.seam.torch.tags import device_of

if TYPE_CHECKING:
    Streams = Sequence[torch.Stream | None] | None
    """One stream a tensor; None stands for the current one of its device."""

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
NCCL_VERSION = (2, 27, 5)
"""What `torch.cuda.nccl.version()` says: the NCCL that the CUDA 12 wheels of torch 2.9 require."""

REDUCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    0: lambda stack: stack.sum(0),
    1: lambda stack: stack.prod(0),
    2: lambda stack: stack.amax(0),
    3: lambda stack: stack.amin(0),
    4: lambda stack: stack.sum(0) / stack.shape[0],
}
"""ncclRedOp_t: sum, product, maximum, minimum, average."""


def patches(state: State) -> list[Patch]:
    """The functions `torch._C._nccl_*`."""

    def run(name: str, tensors: Sequence[Tensor], size: int, streams: Streams) -> None:
        _submit(state, name, tensors, size, streams)

    def version() -> int:
        return NCCL_VERSION[0] << 32 | NCCL_VERSION[1] << 16 | NCCL_VERSION[2]

    def init_rank(ranks: int, uid: bytes, rank: int) -> object:
        raise UnsupportedError(
            "understudy has no raw NCCL communicators (torch.cuda.nccl.init_rank): use torch.distributed"
        )

    functions = {
        "version": version,
        "version_suffix": lambda: b"",
        "unique_id": lambda: bytes(128),
        "init_rank": init_rank,
        **_collectives(run),
    }
    return [Patch(torch._C, f"_nccl_{name}", function) for name, function in functions.items()]


def _collectives(run: Callable[..., None]) -> dict[str, Callable[..., None]]:
    def all_reduce(
        inputs: Tensors, outputs: Tensors, op: int = 0, streams: Streams = None, comms: object = None
    ) -> None:
        _write(outputs, [_reduced(inputs, op)] * len(outputs))
        run("nccl:all_reduce", inputs, _size(inputs[0]), streams)

    def reduce(
        inputs: Tensors, output: Tensor, root: int = 0, op: int = 0, streams: Streams = None, comms: object = None
    ) -> None:
        _write([output], [_reduced(inputs, op)])
        run("nccl:reduce", inputs, _size(inputs[0]), streams)

    def broadcast(inputs: Tensors, root: int = 0, streams: Streams = None, comms: object = None) -> None:
        _write(inputs, [inputs[root]] * len(inputs))
        run("nccl:broadcast", inputs, _size(inputs[0]), streams)

    def all_gather(inputs: Tensors, outputs: Tensors, streams: Streams = None, comms: object = None) -> None:
        _write(outputs, [_joined(inputs)] * len(outputs))
        run("nccl:all_gather", inputs, _size(inputs[0]), streams)

    def reduce_scatter(
        inputs: Tensors, outputs: Tensors, op: int = 0, streams: Streams = None, comms: object = None
    ) -> None:
        _write(outputs, list(_reduced(inputs, op).flatten().chunk(len(outputs))))
        run("nccl:reduce_scatter", inputs, _size(inputs[0]), streams)

    return {f.__name__: f for f in (all_reduce, reduce, broadcast, all_gather, reduce_scatter)}


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _reduced(tensors: Sequence[Tensor], op: int) -> Tensor:
    with torch._C._DisableTorchDispatch():
        plain = [alias(tensor) for tensor in tensors]
        if op == 0:  # in the order of the ranks, so that two summands give what `a + b` gives
            total = plain[0].clone()
            for other in plain[1:]:
                total += other
            return total
        return REDUCTIONS[op](torch.stack(plain))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    with torch._C._DisableTorchDispatch():
        return torch.cat([alias(tensor).flatten() for tensor in tensors])


def _write(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch._C._DisableTorchDispatch():
        for output, value in zip(outputs, values, strict=True):
            alias(output).copy_(alias(value).reshape(output.shape))


def _submit(state: State, name: str, tensors: Sequence[Tensor], size: int, streams: Streams) -> None:
    """One collective on every tensor's device; none starts before the last is ready, and all end together."""
    machine, host = state.machine, state.local.host
    devices = [device_of(tensor) for tensor in tensors]
    if streams is None:
        chosen = [state.local.streams[device] for device in devices]
    else:
        chosen = [
            state.local.streams[device] if given is None else stream_of(state, given)
            for device, given in zip(devices, streams, strict=True)
        ]
    site = state.site()
    for stream in chosen[1:]:
        machine.barrier(host, stream, chosen[0])
    cost = machine.devices[chosen[0].device].cost
    last = host.now_ns + len(chosen) * cost.dispatch_ns(name) + cost.launch_ns
    chosen[0].ready_ns = max(chosen[0].ready_ns, last)
    for stream in chosen[1:]:
        machine.barrier(host, chosen[0], stream)
    for stream in chosen:
        machine.collective(host, stream, name, size, len(chosen), site)
    end = max(stream.ready_ns for stream in chosen)
    for stream in chosen:
        stream.ready_ns = end
