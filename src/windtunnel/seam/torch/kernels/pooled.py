"""The gradient of a maximum pooling in two dimensions: CUDA gathers it, in float32, and the CPU scatters it.

Each element of the input looks through the windows that contain it for those whose index is its own: an index outside
its window, which no pooling gives, adds to nothing. Source: `max_pool_backward_nchw` in
aten/src/ATen/native/cuda/DilatedMaxPool2d.cu; seen in pytorch/pytorch#122024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from windtunnel.seam.torch.plans.halves import narrow, wide

Tensor = torch.Tensor
aten = torch.ops.aten


def gathering(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """aten::max_pool2d_with_indices_backward."""

    def run(
        grad: Tensor, self: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], ceil_mode: bool, indices: Tensor, **kwargs: Tensor,
    ) -> Tensor:  # fmt: skip
        options = (kernel_size, stride, padding, dilation, ceil_mode)
        if grad.is_meta or grad.shape != indices.shape or grad.dtype is not self.dtype or not grad.numel():
            return kernel(grad, self, *options, indices, **kwargs)
        inside = _inside(indices, self.shape[-1], kernel_size, stride or kernel_size, padding, dilation)
        if not bool(inside.all()):
            grad, indices = grad.masked_fill(~inside, 0), indices.masked_fill(~inside, 0)
        if kwargs:
            return kernel(grad, self, *options, indices, **kwargs)
        made = narrow(kernel(wide(grad), wide(self), *options, indices), grad.dtype)
        assert isinstance(made, Tensor)
        return made

    return run


def _inside(indices: Tensor, width: int, *options: Sequence[int]) -> Tensor:
    """Whether each index, counted along rows of `width`, lies in the window that gives it."""
    rows, columns = torch.div(indices, width, rounding_mode="floor"), indices % width
    inside = torch.ones_like(indices, dtype=torch.bool)
    for axis, found in ((0, rows), (1, columns)):
        size, step, pad, gap = (option[axis] if len(option) > 1 else option[0] for option in options)
        places = torch.arange(indices.shape[axis - 2], device="cpu") * step - pad
        first = places.view(-1, 1) if axis == 0 else places
        inside &= (found >= first) & (found <= first + (size - 1) * gap)
    return inside


NAMES = ("default", "grad_input")
RUN = {
    func.name(): gathering(func._op)
    for func in (getattr(aten.max_pool2d_with_indices_backward, overload) for overload in NAMES)
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
