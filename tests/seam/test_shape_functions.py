"""Shapes that a rehearsal without data computes by itself are those of PyTorch's own meta kernels."""

import pytest
import torch

from windtunnel.seam.torch.kernels.rms_norm import FUSED
from windtunnel.seam.torch.rehearsal.shape_functions import SHAPES

pytestmark = pytest.mark.skipif(not FUSED, reason="PyTorch before 2.9 has no fused RMS norm on CUDA")


def described(results):
    return [None if one is None else (one.shape, one.stride(), one.dtype) for one in results]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wanted", [[True, True], [True, False], [False, True]])
def test_rms_norms(dtype, wanted):
    x = torch.empty(5, 2, 3, 8, dtype=dtype, device="meta").transpose(0, 1)
    weight = torch.empty(3, 8, dtype=dtype, device="meta")
    aten = torch.ops.aten
    forward = aten._fused_rms_norm.default(x, [3, 8], weight, None)
    assert described(SHAPES["aten::_fused_rms_norm"](x, [3, 8], weight, None)) == described(forward)
    given = (torch.empty_like(forward[0]), x, [3, 8], forward[1], weight, wanted)
    backward = aten._fused_rms_norm_backward.default(*given)
    assert described(SHAPES["aten::_fused_rms_norm_backward"](*given)) == described(backward)
