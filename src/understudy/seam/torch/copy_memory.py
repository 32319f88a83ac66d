"""The buffers on a GPU that a copy between it and the host takes, where types or layouts differ.

Source: aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries, copy_kernel_cuda). A blocking copy converts on the
host, a non_blocking one on the GPU; what is not contiguous is packed where it is, or unpacked where it goes. Copies
between GPUs that are peers, as emulated ones are, run as one kernel and need nothing.
"""

from __future__ import annotations

import torch


def staging(source: torch.Tensor, destination: torch.Tensor, to_device: bool, non_blocking: bool) -> tuple[int, ...]:
    """Bytes of the buffers on the GPU, alive together; none where the copy is one `cudaMemcpyAsync`."""
    same = source.dtype == destination.dtype
    if same and _together(source, destination):
        return ()
    count = destination.numel()
    if to_device:
        if destination.is_contiguous() and (same or not non_blocking):
            return ()
        return (count * (source if non_blocking else destination).element_size(),)
    plain = source.shape == destination.shape and source.is_contiguous()
    if non_blocking and not same:
        return (source.numel() * destination.element_size(), *(() if plain else (count * destination.element_size(),)))
    return () if plain else (count * source.element_size(),)


def _together(source: torch.Tensor, destination: torch.Tensor) -> bool:
    """Whether both lie densely and in the same order of dimensions."""
    if source.shape != destination.shape:
        return False
    if source.is_contiguous() and destination.is_contiguous():
        return True
    order = sorted((step, size) for step, size in zip(source.stride(), source.shape, strict=True) if size > 1)
    dense, expected = True, 1
    for step, size in order:
        dense, expected = dense and step == expected, expected * size
    steps = zip(source.stride(), destination.stride(), source.shape, strict=True)
    return dense and all(one == other for one, other, size in steps if size > 1)
