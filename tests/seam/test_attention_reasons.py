"""Why no kernel of attention runs, as PyTorch warns (pytorch/pytorch#97514 and #117354; sdp_utils.cpp)."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from windtunnel import emulate

EFFICIENT, FLASH, CUDNN = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
DISABLED = {
    EFFICIENT: "Memory Efficient attention has been runtime disabled.",
    FLASH: "Flash attention has been runtime disabled.",
    CUDNN: "cuDNN attention has been runtime disabled.",
}
HEADINGS = {
    EFFICIENT: "Memory efficient kernel not used because:",
    FLASH: "Flash attention kernel not used because:",
    CUDNN: "cuDNN attention kernel not used because:",
}
HALF_ONLY = "Expected query, key and value to all be of dtype: {{{}}}. Got Query dtype: {type}, Key dtype: {type}, and "
HALF_ONLY += "Value dtype: {type} instead."
HALF, FLOAT = torch.float16, torch.float32


def refused(backend: SDPBackend, *tensors: torch.Tensor, **options: object) -> list[str]:
    """The warnings of an attention that only one kernel may compute."""
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel(backend):
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=r"^No available kernel\. Aborting execution\.$"):
            scaled_dot_product_attention(*tensors, **options)
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("gpu", "backend", "dtype", "width", "options", "reason"),
    [
        ("A100", FLASH, FLOAT, 64, {}, HALF_ONLY.format("Half, BFloat16", type="float")),
        ("V100", CUDNN, torch.bfloat16, 64, {}, HALF_ONLY.format("Half", type="c10::BFloat16")),
        ("V100", EFFICIENT, torch.bfloat16, 64, {}, HALF_ONLY.format("Half, Float", type="c10::BFloat16")),
        ("A100", EFFICIENT, torch.float64, 64, {}, HALF_ONLY.format("Half, Float, BFloat16", type="double")),
        (
            "V100", FLASH, HALF, 64, {},
            "Flash attention only supports gpu architectures in the range [sm80, sm121]. Attempting to run on a sm 7.0 "
            "gpu.",
        ),
        (
            "A100", FLASH, HALF, 64, {"attn_mask": torch.ones(8, 8)},
            "Flash Attention does not support non-null attn_mask.",
        ),
        (
            "A100", FLASH, HALF, 320, {},
            "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256. "
            "Got Query.size(-1): 320, Key.size(-1): 320, Value.size(-1): 320 instead.",
        ),
        (
            "A100", EFFICIENT, HALF, 20, {},
            "Mem efficient attention requires last dimension of inputs to be divisible by 8. "
            "Got Query.size(-1): 20, Key.size(-1): 20, Value.size(-1): 20 instead.",
        ),
        ("A100", CUDNN, HALF, 20, {}, "head_dim should be a multiple of 8"),
        ("A100", CUDNN, HALF, 192, {}, "head_dim should be no more than 128"),
    ],
)  # fmt: skip
def test_each_kernel_gives_its_reason(
    gpu: str, backend: SDPBackend, dtype: torch.dtype, width: int, options: dict, reason: str
) -> None:
    with emulate(f"1x{gpu}"):
        tensors = [torch.rand(1, 2, 8, width, device="cuda", dtype=dtype) for _ in range(3)]
        options = {name: mask.to("cuda", dtype) for name, mask in options.items()}
        said = refused(backend, *tensors, **options)
    expected = []
    for kernel, heading in HEADINGS.items():
        expected += [heading, reason if kernel is backend else DISABLED[kernel]]
    assert said == expected


def test_shapes_that_no_kernel_takes() -> None:
    with emulate("1xA100"):
        query, key = (torch.rand(1, heads, 8, 64, device="cuda", dtype=HALF) for heads in (4, 2))
        said = refused(FLASH, query, key, key)
        assert said[3].startswith(
            "For dense input, both fused kernels require query, key and value to have the same num_heads. "
            "Query.sizes(): [1, 4, 8, 64], Key sizes(): [1, 2, 8, 64], Value sizes(): [1, 2, 8, 64] instead."
        )
        with sdpa_kernel(FLASH):
            assert scaled_dot_product_attention(query, key, key, enable_gqa=True).shape == query.shape
        strided = torch.rand(1, 4, 64, 8, device="cuda", dtype=HALF).mT
        assert refused(EFFICIENT, strided, strided, strided)[1] == (
            "All fused kernels require the last dimension of the input to have stride 1. Got Query.stride(-1): 8, "
            "Key.stride(-1): 8, Value.stride(-1): 8"
        )
        assert refused(FLASH, query, query[:, :, :4], query[:, :, :4], is_causal=True)[3].startswith(
            "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got seqlen_q: 8 seqlen_k: "
            "4."
        )


def test_without_any_kernel() -> None:
    switches = ("flash", "mem_efficient", "math", "cudnn")
    with emulate("1xA100"):
        tensor = torch.rand(1, 2, 8, 64, device="cuda")
        try:
            for name in switches:
                getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
            with pytest.raises(RuntimeError, match="No viable backend for scaled_dot_product_attention was found"):
                scaled_dot_product_attention(tensor, tensor, tensor)
        finally:
            for name in switches:
                getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)
