"""`scaled_dot_product_attention`: CUDA's choice of a kernel, its values, what it keeps for the backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import windtunnel
from windtunnel import gpus
from windtunnel.seam.torch.kernels import attention_choice as choice

cuda = torch.cuda
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def heads(dtype: torch.dtype = SINGLE, length: int = 24, width: int = 16, device: str = "cpu") -> list[torch.Tensor]:
    """Query, key and value of two examples with four heads."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(2, 4, length, width, generator=generator).to(dtype) for _ in range(3)]
    return [part.to(device).requires_grad_() for part in made]


def kernel(out: torch.Tensor) -> str:
    """The kernel that made a result: "Flash", "Efficient", "Cudnn", or "" for plain math."""
    name = type(out.grad_fn).__name__
    return name.removeprefix("ScaledDotProduct").partition("Attention")[0] if name.startswith("Scaled") else ""


@pytest.mark.parametrize(
    ("gpu", "dtype", "expected"),
    [
        ("P100", HALF, "Efficient"), ("V100", HALF, "Efficient"), ("V100", SINGLE, "Efficient"), ("V100", DOUBLE, ""),
        ("T4", torch.bfloat16, ""), ("A100", torch.bfloat16, "Flash"), ("A100", HALF, "Flash"),
        ("A100", SINGLE, "Efficient"),
    ],
)  # fmt: skip
def test_the_kernel_follows_gpu_and_type(gpu: str, dtype: torch.dtype, expected: str) -> None:
    with windtunnel.emulate(gpu, no_data=True):
        assert kernel(F.scaled_dot_product_attention(*heads(dtype, device="cuda"))) == expected


@pytest.mark.parametrize(("cuda_version", "expected"), [("11.8", "Flash"), ("13.0", "Cudnn")])
def test_the_kernel_follows_cudnns_version(cuda_version: str, expected: str) -> None:
    if choice.VERSION < (2, 8):
        expected = "Flash"  # cuDNN's was not preferred yet
    with windtunnel.emulate("H100", no_data=True, cuda_version=cuda_version):
        assert kernel(F.scaled_dot_product_attention(*heads(HALF, device="cuda"))) == expected


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}, {"attn_mask": True}], ids=str)
@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE], ids=str)
def test_values_and_gradients_are_the_cpus(options: dict, dtype: torch.dtype) -> None:
    found = []
    for device in ("cpu", "cuda"):
        with windtunnel.emulate("A100"):
            given = dict(options)
            if "attn_mask" in given:
                given["attn_mask"] = (torch.arange(24)[:, None] >= torch.arange(24)).to(device)
            parts = heads(dtype, device=device)
            out = F.scaled_dot_product_attention(*parts, **given)
            out.square().sum().backward()
            found.append([out.detach().cpu(), *(part.grad.cpu() for part in parts)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=4e-3, rtol=2e-2)


def test_dropout_is_drawn_from_the_devices_generator_and_repeats_in_the_backward_pass() -> None:
    with windtunnel.emulate("V100"):
        parts = heads(device="cuda")
        outs = []
        for seed in (1, 1, 2):
            cuda.manual_seed(seed)
            outs.append(F.scaled_dot_product_attention(*parts, dropout_p=0.5))
        assert torch.equal(outs[0], outs[1])
        assert not torch.equal(outs[0], outs[2])
        value = parts[2]
        (slope,) = torch.autograd.grad(outs[0].sum(), value)
        moved = [parts[0], parts[1], (value + 1).detach()]
        cuda.manual_seed(1)
        change = F.scaled_dot_product_attention(*moved, dropout_p=0.5) - outs[0]
        torch.testing.assert_close(change.sum(), slope.sum(), atol=0.05, rtol=1e-3)  # it is linear in the values


def test_the_gradient_of_a_mask() -> None:
    grads = []
    for device in ("cpu", "cuda"):
        with windtunnel.emulate("A100"):
            mask = torch.zeros(24, 24, device=device, requires_grad=True)
            F.scaled_dot_product_attention(*heads(device=device), attn_mask=mask).square().sum().backward()
            grads.append(mask.grad.cpu())
    torch.testing.assert_close(*grads)


def test_fewer_key_heads() -> None:
    found = []
    for device in ("cpu", "cuda"):
        with windtunnel.emulate("A100"):
            query, key, value = heads(HALF, device=device)
            key, value = (part[:, :2].detach().requires_grad_() for part in (key, value))
            out = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            out.square().sum().backward()
            found.append([out.detach().cpu(), key.grad.cpu(), value.grad.cpu()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=4e-3, rtol=2e-2)


def test_shared_heads_cost_what_the_querys_heads_cost() -> None:
    for backward in (False, True):
        flops = []
        for heads_of_keys in (4, 2):
            with windtunnel.emulate("A100", no_data=True) as session:
                query, key, value = heads(HALF, device="cuda")
                key, value = (part[:, :heads_of_keys].detach().requires_grad_() for part in (key, value))
                out = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
                if backward:
                    out.sum().backward()
                rows = [row for row in session.trace if "flash_attention" in row.signature.name]
                flops.append([row.signature.flops for row in rows])
        assert flops[0] == flops[1]
        assert flops[0][0] == 4 * 2 * 4 * 24 * 24 * 16


@pytest.mark.parametrize(("gpu", "dtype", "queries", "keys"), [
    ("V100", SINGLE, 4, 6), ("V100", SINGLE, 6, 4), ("A100", HALF, 4, 6), ("A100", HALF, 6, 4),
])  # fmt: skip
def test_a_causal_bias_of_other_lengths(gpu: str, dtype: torch.dtype, queries: int, keys: int) -> None:
    """`causal_lower_right` calls flash attention, which aligns its mask at the end, or the kernel below the
    memory-efficient operator, whose tensors have tokens before heads."""
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)

    def cut(device: str) -> list[torch.Tensor]:
        parts = zip(heads(dtype), (queries, keys, keys), strict=True)
        return [part[:, :, :length].detach().to(device).requires_grad_() for part, length in parts]

    plain = cut("cpu")
    scores = (plain[0].float() @ plain[1].float().mT / 4).masked_fill(hidden, -torch.inf)
    expected = torch._safe_softmax(scores, -1) @ plain[2].float()
    expected.square().sum().backward()
    with windtunnel.emulate(gpu) as session:
        placed = cut("cuda")
        out = F.scaled_dot_product_attention(*placed, attn_mask=causal_lower_right(queries, keys))
        out.square().sum().backward()
        found = [out.detach().cpu(), *(part.grad.cpu() for part in placed)]
        rows = [row for row in session.trace if "attention" in row.signature.name]
    for one, other in zip(found, [expected.detach(), *(part.grad for part in plain)], strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=4e-3, rtol=2e-2)
    product = 2 * 2 * 4 * queries * keys * 16
    assert [row.signature.flops for row in rows] == [2 * product, 5 * product]


def test_switches_decide() -> None:
    with windtunnel.emulate("A100", no_data=True):
        parts = heads(HALF, device="cuda")
        with sdpa_kernel(SDPBackend.MATH):
            assert kernel(F.scaled_dot_product_attention(*parts)) == ""
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            assert kernel(F.scaled_dot_product_attention(*parts)) == "Efficient"
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(*heads(DOUBLE, device="cuda"))
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            assert kernel(F.scaled_dot_product_attention(*parts)) == "Efficient"


def test_autocast_comes_before_the_choice() -> None:
    with windtunnel.emulate("A100", no_data=True), torch.autocast("cuda", dtype=HALF):
        assert kernel(F.scaled_dot_product_attention(*heads(SINGLE, device="cuda"))) == "Flash"


def test_inference_mode_runs_the_fused_kernel() -> None:
    with windtunnel.emulate("A100", no_data=True) as session, torch.inference_mode():
        out = F.scaled_dot_product_attention(*heads(HALF, device="cuda"))
        assert out.shape == (2, 4, 24, 16)
        assert any(record.signature.name == "aten::_scaled_dot_product_flash_attention" for record in session.trace)


def test_scores_are_kept_by_plain_math_alone() -> None:
    kept = {}
    for gpu, dtype in (("A100", HALF), ("V100", SINGLE), ("V100", DOUBLE)):
        with windtunnel.emulate(gpu, no_data=True):
            parts = heads(dtype, 1024, 64, "cuda")
            before = cuda.memory_allocated()
            out = F.scaled_dot_product_attention(*parts, dropout_p=0.1)
            extra = cuda.memory_allocated() - before - out.nbytes
            kept[kernel(out)] = extra
    scores = 2 * 4 * 1024 * 1024
    rows = 2 * 4 * 1024 * 4
    assert kept["Flash"] == kept["Efficient"] == rows + 1024  # the rows' logarithms, seed and offset
    assert kept[""] > scores * (8 + 8 + 1)  # scores, weights and dropout's mask


@pytest.mark.parametrize(
    ("version", "cudnn", "capability", "expected"),
    [
        ((2, 7), 90800, (9, 0), False), ((2, 8), 90900, (9, 0), True), ((2, 8), 90900, (8, 0), False),
        ((2, 13), 91300, (9, 0), False), ((2, 13), 91501, (9, 0), True), ((2, 13), 91501, (8, 9), False),
    ],
)  # fmt: skip
def test_cudnn_comes_first_where_pytorch_prefers_it(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], cudnn: int, capability: tuple[int, int], expected: bool
) -> None:
    monkeypatch.setattr(choice, "VERSION", version)
    gpu = dataclasses.replace(gpus.parse("H100")[0], compute_capability=capability)
    problem = choice.Problem(*heads(HALF), None, 0.0, False, gpu, cudnn, (13, 0))
    assert (choice.order(problem)[0] == choice.CUDNN) is expected
    assert choice.choose(problem) == (choice.CUDNN if expected else choice.FLASH)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (lambda: torch.ones(24, 24, dtype=torch.bool), choice.CUDNN),
        (lambda: torch.ones(2, 1, 24, 24, dtype=torch.bool), choice.CUDNN),
        (lambda: torch.ones(24, 1, dtype=torch.bool).expand(2, 1, 24, 24), choice.MATH),  # its rows have one element
        (lambda: torch.ones(24, 24).mT, choice.MATH),
        (lambda: torch.ones(2, 24, 24), choice.EFFICIENT),  # three dimensions
        (lambda: torch.ones(24, 24, requires_grad=True), choice.EFFICIENT),
    ],
)  # fmt: skip
def test_the_kernel_follows_the_masks_layout(
    monkeypatch: pytest.MonkeyPatch, mask: Callable[[], torch.Tensor], expected: int
) -> None:
    monkeypatch.setattr(choice, "VERSION", (2, 11))
    problem = choice.Problem(*heads(HALF), mask(), 0.0, False, gpus.parse("H100")[0], 91900, (13, 0))
    assert choice.choose(problem) == expected


@pytest.mark.parametrize(("gpu", "cudnn", "expected"), [
    ("H100", 91900, choice.CUDNN), ("H100", 90900, choice.FLASH), ("B200", 91900, choice.FLASH),
])  # fmt: skip
def test_cudnns_wide_heads(monkeypatch: pytest.MonkeyPatch, gpu: str, cudnn: int, expected: int) -> None:
    monkeypatch.setattr(choice, "VERSION", (2, 9))
    problem = choice.Problem(*heads(HALF, width=256), None, 0.0, False, gpus.parse(gpu)[0], cudnn, (13, 0))
    assert choice.choose(problem) == expected


@pytest.mark.parametrize(("version", "dropout", "expected"), [
    ((2, 11), 0.1, choice.CUDNN), ((2, 12), 0.1, choice.FLASH), ((2, 12), 0.125, choice.CUDNN),
])  # fmt: skip
def test_cudnns_dropout(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], dropout: float, expected: int
) -> None:
    monkeypatch.setattr(choice, "VERSION", version)
    problem = choice.Problem(*heads(HALF), None, dropout, False, gpus.parse("H100")[0], 91900, (13, 0))
    assert choice.choose(problem) == expected


def test_cudnns_mask_is_not_written_out_for_every_head() -> None:
    with windtunnel.emulate("H100", no_data=True), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        parts = [part.detach() for part in heads(HALF, 1024, 64, "cuda")]
        mask = torch.ones(2, 1, 1024, 1024, dtype=torch.bool, device="cuda")
        F.scaled_dot_product_attention(*parts)
        cuda.reset_peak_memory_stats()
        before = cuda.max_memory_allocated()
        F.scaled_dot_product_attention(*parts, attn_mask=mask)
        assert 2 * mask.numel() < cuda.max_memory_allocated() - before < 2 * 2 * mask.numel()


def test_wide_heads_do_not_train_with_flash_on_small_ampere() -> None:
    gpu = dataclasses.replace(gpus.parse("A100")[0], compute_capability=(8, 6))
    parts = heads(HALF, width=200)
    problem = choice.Problem(*parts, None, 0.0, False, gpu, 90100, (12, 4))
    assert choice.choose(problem) == choice.EFFICIENT
    assert choice.choose(problem._replace(query=parts[0].detach(), key=parts[1].detach(), value=parts[2].detach())) == 1


@pytest.mark.parametrize(("name", "dtype"), [("flash", HALF), ("efficient", SINGLE)])
def test_gradients_of_a_part_of_the_keys_use_the_logarithms_of_all(name: str, dtype: torch.dtype) -> None:
    """Ring attention: each rank has a part of the keys, and the result and the logarithms of all of them."""
    leaves = heads(dtype)
    weights = torch.randn(2, 4, 24, 16, generator=torch.Generator().manual_seed(1))
    (F.scaled_dot_product_attention(*(t.float() for t in leaves)) * weights).sum().backward()
    with windtunnel.emulate("A100"):
        q, k, v = (t.detach().transpose(1, 2).cuda() for t in leaves)
        grad = weights.transpose(1, 2).to("cuda", dtype)
        if name == "flash":
            out, lse, *seed, _ = torch.ops.aten._flash_attention_forward(q, k, v, None, None, 24, 24, 0.0, False, False)
        else:
            out, lse, *seed, _, _ = torch.ops.aten._efficient_attention_forward(
                q, k, v, None, None, None, None, None, 0.0, 0, True
            )
        parts = []
        for keys, values in zip(k.split(12, 1), v.split(12, 1), strict=True):
            if name == "flash":
                given = grad, q, keys, values, out, lse, None, None, 24, 12, 0.0, False, *seed
                parts.append(torch.ops.aten._flash_attention_backward(*given))
            else:
                given = grad, q, keys, values, None, out, None, None, 24, 12, lse, 0.0, *seed, 0, False
                parts.append(torch.ops.aten._efficient_attention_backward(*given)[:3])
        found = [parts[0][0] + parts[1][0], *(torch.cat([part[i] for part in parts], 1) for i in (1, 2))]
        for one, leaf in zip(found, leaves, strict=True):
            torch.testing.assert_close(one.cpu().transpose(1, 2), leaf.grad, rtol=1e-2, atol=4e-3)
