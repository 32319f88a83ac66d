"""A stand-in's function on an emulated GPU, beside plain PyTorch in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float16, seed: int = 0) -> list[Tensor]:
    """Random tensors on the host."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def on_both(
    function: Callable[..., Tensor], reference: Callable[..., Tensor], tensors: list[Tensor], atol: float = 4e-3
) -> None:
    """Compare values and the gradients of all tensors."""
    there = [tensor.cuda().requires_grad_() for tensor in tensors]
    here = [tensor.float().requires_grad_() for tensor in tensors]
    found, wanted = function(*there), reference(*here)
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=1e-2, atol=atol)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(9))
    (found.float() * weights.cuda()).sum().backward()
    (wanted * weights).sum().backward()
    for one, other in zip(there, here, strict=True):
        torch.testing.assert_close(one.grad.cpu().float(), other.grad, rtol=2e-2, atol=5 * atol)
