"""`torch.cuda.nccl`: collectives of one process over tensors on its several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed.values import NAMES, TYPES
from windtunnel.seam.torch.state.late import alias
from windtunnel.seam.torch.state.state import State, stream_of
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Signature

if TYPE_CHECKING:
    Streams = Sequence[torch.Stream | None] | None
    """One stream a tensor; None stands for the current one of its device."""

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
Outputs = Sequence[Tensor | None]
"""One an input; None where only another device gets the result."""
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

    def run(name: str, inputs: Tensors, outputs: Outputs, streams: Streams) -> None:
        _submit(state, name, inputs, outputs, streams)

    def version() -> int:
        return NCCL_VERSION[0] << 32 | NCCL_VERSION[1] << 16 | NCCL_VERSION[2]

    def init_rank(ranks: int, uid: bytes, rank: int) -> object:
        raise UnsupportedError(
            "windtunnel has no raw NCCL communicators (torch.cuda.nccl.init_rank): use torch.distributed"
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
        _check(inputs, outputs)
        _write(outputs, [_reduced(inputs, op)] * len(outputs))
        run("nccl:all_reduce", inputs, outputs, streams)

    def reduce(
        inputs: Tensors, output: Tensor, root: int = 0, op: int = 0, streams: Streams = None, comms: object = None
    ) -> None:
        _check_root(inputs, root)
        outputs = [output if number == root else None for number in range(len(inputs))]
        _check(inputs, outputs)
        _write([output], [_reduced(inputs, op)])
        run("nccl:reduce", inputs, outputs, streams)

    def broadcast(inputs: Tensors, root: int = 0, streams: Streams = None, comms: object = None) -> None:
        _check_root(inputs, root)
        _check(inputs, inputs)
        _write(inputs, [inputs[root]] * len(inputs))
        run("nccl:broadcast", inputs, inputs, streams)

    def all_gather(inputs: Tensors, outputs: Tensors, streams: Streams = None, comms: object = None) -> None:
        _check(inputs, outputs, grows=len(inputs))
        _write(outputs, [_joined(inputs)] * len(outputs))
        run("nccl:all_gather", inputs, outputs, streams)

    def reduce_scatter(
        inputs: Tensors, outputs: Tensors, op: int = 0, streams: Streams = None, comms: object = None
    ) -> None:
        _check(inputs, outputs, shrinks=len(inputs))
        _write(outputs, list(_reduced(inputs, op).flatten().chunk(len(outputs))))
        run("nccl:reduce_scatter", inputs, outputs, streams)

    return {f.__name__: f for f in (all_reduce, reduce, broadcast, all_gather, reduce_scatter)}


def _check_root(inputs: Tensors, root: int) -> None:
    if not 0 <= root < len(inputs):
        raise RuntimeError("invalid root")


def _check(inputs: Tensors, outputs: Outputs, grows: int = 1, shrinks: int = 1) -> None:
    """Raise what PyTorch raises for tensors that it does not give to NCCL (torch/csrc/cuda/nccl.cpp, check_inputs).

    An output has `grows` times as many elements as an input, or `shrinks` times as few.

    Raises:
        RuntimeError: tensors that are not dense, contiguous, of one type and size, and each on a GPU of its own.
    """
    if not inputs:
        raise RuntimeError("input sequence can't be empty")
    if len(inputs) != len(outputs):
        raise RuntimeError(
            "inputs and outputs sequences have to be of the same length, but got input of length "
            f"{len(inputs)} and output of length {len(outputs)}"
        )
    first, seen = inputs[0], set()
    for given, made in zip(inputs, outputs, strict=True):
        _check_one(given, first)
        if given.numel() != first.numel():
            raise RuntimeError("all inputs must have the same number of elements")
        if made is not None:
            _check_one(made, first)
            if device_of(made) != device_of(given):
                raise RuntimeError("input and output must be on the same device")
            if made.numel() * shrinks != first.numel() * grows:
                raise RuntimeError("output must be of size input_size * size_multiplier")
        if device_of(given) in seen:
            raise RuntimeError("inputs must be on unique devices")
        seen.add(device_of(given))
    if first.dtype not in TYPES or first.is_complex():
        raise RuntimeError(f"Unconvertible NCCL type {NAMES.get(first.dtype, first.dtype)}")


def _check_one(tensor: Tensor, first: Tensor) -> None:
    if not tensor.is_cuda or tensor.is_sparse:
        raise RuntimeError("input and output elements have to be cuda dense Tensors")
    if tensor.dtype != first.dtype:
        raise RuntimeError("all inputs and outputs must be of the same Tensor dtype")
    if not tensor.is_contiguous():
        raise RuntimeError("all inputs and outputs have to be contiguous")


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


def _submit(state: State, name: str, inputs: Tensors, outputs: Outputs, streams: Streams) -> None:
    """A collective on every tensor's device: none starts before all are ready, and what follows waits for all."""
    machine, host = state.machine, state.local.host
    devices = [device_of(tensor) for tensor in inputs]
    size = inputs[0].numel() * inputs[0].element_size()
    if streams is None:
        chosen = [state.local.streams[device] for device in devices]
    else:
        if len(streams) != len(inputs):
            raise RuntimeError("number of streams is not equal to number of inputs")
        chosen = [
            state.local.streams[device] if given is None else stream_of(state, given)
            for device, given in zip(devices, streams, strict=True)
        ]
    site, call = state.site(), Signature(name, detail=(("ranks", len(chosen)),))
    machine.align(host, chosen)
    for stream in chosen:
        machine.collective(host, stream, call, size, site)
    machine.align(host, chosen)
    for stream, read, written in zip(chosen, inputs, outputs, strict=True):
        if machine.concurrent:
            state.order.touched([read], [] if written is None else [written], stream, site)
