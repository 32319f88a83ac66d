"""Upsampling: sizes that CUDA refuses since its grid of blocks would be too large, and integers.

Sources, in aten/src/ATen/native/cuda: upsample_nearest2d_out_cuda_template in UpSampleNearest2d.cu, whose kernel gives
each row of blocks a part of the picture's height (CUDA's grids have 65535 blocks in their second dimension); the
AT_DISPATCH macros of UpSampleBilinear2d.cu (the antialiased ones too) and UpSampleBicubic2d.cu.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.plans.dtypes import REAL

Tensor = torch.Tensor
MOST_THREADS = 512
MOST_ROWS = 65535
CHANNELS_LAST = 4
"""Channels from which on a picture whose channels lie together takes another kernel."""


def nearest(input: Tensor, out: Tensor) -> None:
    """Raise where a picture of shape (batch, channels, height, width) becomes too high."""
    together = out.is_contiguous(memory_format=torch.channels_last) and not out.is_contiguous()
    if input.shape == out.shape or (together and out.shape[1] >= CHANNELS_LAST):
        return
    height, width = out.shape[2:]
    columns = min(_power_of_two(width), MOST_THREADS)
    rows = min(_power_of_two(height), MOST_THREADS // columns)
    if -(-height // rows) > MOST_ROWS:
        raise RuntimeError("input tensor has spatial dimension larger than the kernel capacity")


def _power_of_two(number: int) -> int:
    """The largest that is not more."""
    return 1 << (int(number).bit_length() - 1)


LIMITS = {
    "aten::upsample_nearest2d": nearest,
    "aten::_upsample_nearest_exact2d": nearest,
}
"""By operator, what looks at its first argument and its result."""
DTYPES = {
    "aten::upsample_bilinear2d": ("upsample_bilinear2d_out_frame", REAL),
    "aten::upsample_bicubic2d": ("upsample_bicubic2d_out_frame", REAL),
    "aten::_upsample_bilinear2d_aa": ("upsample_bilinear2d_out_frame", REAL),
    "aten::_upsample_bicubic2d_aa": ("upsample_bilinear2d_out_frame", REAL),
}
