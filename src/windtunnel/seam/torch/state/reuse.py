"""Which memory a large kernel touches, told to the machine before its launch, so that it knows what L2 still holds."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from windtunnel.machine.machine import Cost, Machine
from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.tags import Tag, storage_of
from windtunnel.trace.operation import REUSED


def reusing(machine: Machine, stream: Stream, cost: Cost, values: Iterable[object]) -> Cost:
    """What a kernel on tensors among these values costs now; in a capture, whose replays come later, what it did."""
    if stream.capture is not None:
        return cost
    operands = []
    for tensor in tensors_in(values):
        if tensor.layout is torch.strided and not tensor.is_nested:
            tag = storage_of(tensor)._wt
            if tag.block is not None and tag.device >= 0:
                start = 0 if tensor.nbytes == tag.size else int(tensor.storage_offset()) * tensor.element_size()
                operands.append((tag.block.address + start, min(tensor.nbytes, tag.size - start)))
    return _touching(machine, stream, cost, operands)


def reusing_whole(machine: Machine, stream: Stream, cost: Cost, tags: Iterable[Tag | None]) -> Cost:
    """The same of a kernel that touches all of some storages."""
    return reusing_ranges(machine, stream, cost, ((tag, 0, tag.size) for tag in tags if tag is not None))


def reusing_ranges(machine: Machine, stream: Stream, cost: Cost, ranges: Iterable[tuple[Tag, int, int]]) -> Cost:
    """The same of a kernel that touches ranges of bytes of storages."""
    if stream.capture is not None or not cost.is_large:
        return cost
    operands = [(tag.block.address + start, end - start) for tag, start, end in ranges
                if tag.block is not None and tag.device >= 0]  # fmt: skip
    return _touching(machine, stream, cost, operands)


def _touching(machine: Machine, stream: Stream, cost: Cost, operands: list[tuple[int, int]]) -> Cost:
    """The same of a kernel that touches so many bytes at these addresses."""
    device = machine.devices[stream.device]
    said = device.reuse.touch(operands)
    variants = cost.variants
    if variants is None:
        return cost
    found = variants.get(said)
    if found is None:
        signature = machine.trace.signatures[variants[""].number]
        found = machine.price(device, signature._replace(detail=(*signature.detail, (REUSED, said))))
        found.variants = variants
        variants[said] = found
    return found
