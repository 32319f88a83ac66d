"""`embedding_bag` with a weight a sample: which types CUDA gives that weight a gradient in (pytorch#185808)."""

import pytest
import torch
import torch.nn.functional as F

import windtunnel
from windtunnel.seam.torch.tags import VERSION


def gradient(device: str, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of the samples' weights."""
    table = torch.arange(40, device=device).reshape(10, 4).to(dtype).requires_grad_()
    weight = torch.ones(4, device=device, dtype=dtype, requires_grad=True)
    indices, offsets = torch.arange(4, device=device), torch.tensor([0, 2], device=device)
    F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weight).sum().backward()
    assert weight.grad is not None
    return weight.grad.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_weights_gradient_is_in_the_types_of_its_cuda_kernel(dtype: torch.dtype) -> None:
    expected = gradient("cpu", dtype)
    with windtunnel.emulate("H100"):
        if dtype is torch.bfloat16 and VERSION < (2, 13):
            with pytest.raises(RuntimeError, match="weights_backward_cuda\" not implemented for 'BFloat16'"):
                gradient("cuda", dtype)
        else:
            assert torch.equal(gradient("cuda", dtype), expected)
