"""The buffers on GPUs that a copy takes where types or layouts differ: between GPU and host, or GPUs that are no peers.

Source: aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries, copy_kernel_cuda). Between GPU and host a blocking
copy converts on the host, a non_blocking one on the GPU; what is not contiguous is packed where it is, or unpacked
where it goes. Between GPUs that are peers one kernel does all and needs nothing; where they are not, a non_blocking
copy converts on the source's GPU and a blocking one on the destination's.
"""

from __future__ import annotations

import torch


def between(source: torch.Tensor, destination: torch.Tensor, non_blocking: bool) -> tuple[tuple[int, ...], ...]:
    """Bytes of the buffers on the source's GPU and on the destination's, which are no peers."""
    return staging(source, destination, False, non_blocking), staging(source, destination, True, not non_blocking)


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
