"""Fused attention, forward and backward, with PyTorch's own choice of kernels and with each that it has."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Calls, backward, half

SHAPES = [
    (batch, 16, keys, length, dim)
    for dim in (64, 128)
    for batch, length in ((64, 197), (16, 256), (8, 1024), (2, 4096), (1, 16384))
    for keys in (16, 4)
]
SHAPES += [(batch, 16, 16, length, dim) for dim in (32, 64, 96) for batch, length in ((256, 49), (16, 512), (4, 2048))]


def calls(short: bool) -> Calls:
    """Batch, heads of queries and of keys, length, size of a head; masked or not."""
    import torch
    from torch.nn.attention import SDPBackend

    for batch, heads, keys, length, dim in [(2, 4, 4, 128, 64)] if short else SHAPES:
        shapes = ((batch, heads, length, dim), (batch, keys, length, dim), (batch, keys, length, dim))
        for causal in (False, True):
            name = f"{batch} x {heads}/{keys} x {length} x {dim}{' causal' if causal else ''}"
            made = [torch.randn(*shape, device="cuda", dtype=half()) for shape in shapes]
            attend = _attend(causal, keys != heads)
            yield name, lambda made=made, attend=attend: attend(*made)
            yield f"{name} backward", backward(attend, *made)
            if keys == heads and not short:
                flash = _attend(causal, False, SDPBackend.FLASH_ATTENTION)
                yield f"{name} flash", lambda made=made, flash=flash: flash(*made)
                yield f"{name} flash backward", backward(flash, *made)
            if keys == heads and length <= 4096 and not short:
                single = [one.float() for one in made]
                yield f"{name} fp32", lambda made=single, attend=attend: attend(*made)
                yield f"{name} fp32 backward", backward(attend, *single)


def _attend(causal: bool, grouped: bool, backend: Any = None) -> Any:
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attend(q: Any, k: Any, v: Any) -> Any:
        if backend is None:
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend
