"""The stand-in for transformer_engine, beside plain PyTorch, and its products in 8 bits beside their definition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn
from windtunnel.errors import MissingNameError, UnsupportedError
from windtunnel.libraries.transformer_engine import pytorch as te
from windtunnel.libraries.transformer_engine.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    Recipe,
)
from windtunnel.session import Session

HALF = torch.bfloat16


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("H100") as session:
        yield session


def in_eight_bits(x: Tensor, largest: float, dtype: torch.dtype, scale: Tensor | None = None) -> Tensor:
    """The numbers that a tensor has after quantization, in float32."""
    x = x.detach().float().cpu()
    scale = largest / x.abs().amax() if scale is None else scale
    return (x * scale).clamp(-largest, largest).to(dtype).float() / scale


def in_blocks(x: Tensor) -> Tensor:
    """The same with a power of two for each 32 numbers of a row (OCP Microscaling, scales rounded up)."""
    blocks = x.detach().float().cpu().unflatten(-1, (-1, 32))
    scale = torch.exp2((blocks.abs().amax(-1, keepdim=True) / 448).log2().ceil())
    return ((blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def given(rows: int, width: int) -> Tensor:
    """A layer's input, with a gradient."""
    (x,) = drawn((rows, width), dtype=HALF)
    return x.cuda().requires_grad_()


def test_layers_are_pytorchs_outside_of_a_block(session: Session) -> None:
    x = given(32, 64)
    here = x.detach().cpu().float()
    both = te.LayerNormLinear(64, 48, params_dtype=HALF, normalization="RMSNorm", zero_centered_gamma=True)
    weights = {name: one.detach().cpu().float() for name, one in both.named_parameters()}
    wanted = F.linear(F.rms_norm(here, (64,), weights["layer_norm_weight"] + 1, 1e-5), weights["weight"])
    torch.testing.assert_close(both(x).cpu().float(), wanted, rtol=2e-2, atol=2e-2)
    for name in ("gelu", "swiglu", "srelu"):
        mlp = te.LayerNormMLP(64, 96, params_dtype=HALF, activation=name)
        weights = {name: one.detach().cpu().float() for name, one in mlp.named_parameters()}
        between = F.linear(F.layer_norm(here, (64,)), weights["fc1_weight"], weights["fc1_bias"])
        if name == "swiglu":
            first, second = between.chunk(2, -1)
            between = F.silu(first) * second
        else:
            between = F.gelu(between, approximate="tanh") if name == "gelu" else F.relu(between).square()
        wanted = F.linear(between, weights["fc2_weight"])
        torch.testing.assert_close(mlp(x).cpu().float(), wanted, rtol=2e-2, atol=2e-3)


def test_a_layer_of_a_transformer_is_its_parts(session: Session) -> None:
    layer = te.TransformerLayer(
        64, 128, 4, num_gqa_groups=2, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=HALF,
        attn_input_format="bshd", activation="swiglu", normalization="RMSNorm",
    )  # fmt: skip
    (x,) = drawn((2, 16, 64), dtype=HALF)
    found = layer(x.cuda())
    w = {name: one.detach().cpu().float() for name, one in layer.named_parameters()}
    here = x.float()
    norm = F.rms_norm(here, (64,), w["self_attention.layernorm_qkv.layer_norm_weight"], 1e-5)
    q, k, v = (
        F.linear(norm, w[f"self_attention.layernorm_qkv.{name}_weight"]).unflatten(-1, (-1, 16)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(-2)
    here = here + F.linear(attended, w["self_attention.proj.weight"])
    norm = F.rms_norm(here, (64,), w["layernorm_mlp.layer_norm_weight"], 1e-5)
    first, second = F.linear(norm, w["layernorm_mlp.fc1_weight"]).chunk(2, -1)
    wanted = here + F.linear(F.silu(first) * second, w["layernorm_mlp.fc2_weight"])
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-2, atol=2e-2)
    found.float().square().sum().backward()
    assert all(one.grad is not None for one in layer.parameters())


@pytest.mark.parametrize("kind", ["no_mask", "causal", "padding", "padding_causal", "arbitrary"])
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_attention_with_masks(session: Session, kind: str, layout: str) -> None:
    q, k, v = (one.cuda() for one in drawn(*[(2, 8, 4, 16)] * 3, dtype=HALF))
    left_out = torch.arange(8)[None, None, None] >= torch.tensor([8, 5])[:, None, None, None]
    later = torch.ones(8, 8, dtype=torch.bool).triu(1)
    hidden = torch.zeros(2, 1, 8, 8, dtype=torch.bool)
    hidden |= left_out if "padding" in kind else False
    hidden |= later if "causal" in kind else torch.eye(8).bool().roll(1, 1) if kind == "arbitrary" else False
    wanted = F.scaled_dot_product_attention(*(one.cpu().float().transpose(1, 2) for one in (q, k, v)), ~hidden)
    mask = {"padding": left_out, "padding_causal": left_out, "arbitrary": hidden}.get(kind)
    layer = te.DotProductAttention(4, 16, qkv_format=layout, attn_mask_type=kind)
    ordered = [one.transpose(0, 1).contiguous() for one in (q, k, v)] if layout == "sbhd" else [q, k, v]
    found = layer(*ordered, attention_mask=None if mask is None else mask.cuda())
    found = found.transpose(0, 1) if layout == "sbhd" else found
    torch.testing.assert_close(found.cpu().float(), wanted.transpose(1, 2).flatten(-2), rtol=2e-2, atol=2e-2)


def test_packed_texts_are_attended_by_themselves(session: Session) -> None:
    q, k, v = (one.cuda() for one in drawn(*[(12, 2, 16)] * 3, dtype=HALF))
    ends = torch.tensor([0, 5, 12], dtype=torch.int32, device="cuda")
    layer = te.DotProductAttention(2, 16, qkv_format="thd", attn_mask_type="padding_causal")
    found = layer(q, k, v, cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=7, max_seqlen_kv=7).cpu().float()
    for start, end in ((0, 5), (5, 12)):
        parts = (one[start:end].cpu().float().transpose(0, 1) for one in (q, k, v))
        wanted = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1).flatten(-2)
        torch.testing.assert_close(found[start:end], wanted, rtol=2e-2, atol=2e-2)


def test_rotary_positions_turn_pairs(session: Session) -> None:
    (x,) = drawn((6, 2, 3, 8), dtype=torch.float32)
    angles = te.RotaryPositionEmbedding(8)(10)
    assert angles.shape == (10, 1, 1, 8)
    found = te.attention.apply_rotary_pos_emb(x.cuda(), angles).cpu()
    turns = torch.polar(torch.ones(6, 4), torch.outer(torch.arange(6.0), 10000.0 ** (-torch.arange(4) / 4)))
    wanted = torch.complex(x[..., :4], x[..., 4:]) * turns[:, None, None]
    torch.testing.assert_close(found, torch.cat((wanted.real, wanted.imag), -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hybrid", [True, False])
def test_delayed_scaling_takes_scales_of_the_last_steps(session: Session, hybrid: bool) -> None:
    recipe = DelayedScaling(fp8_format=Format.HYBRID if hybrid else Format.E4M3, amax_history_len=4)
    back, most = (torch.float8_e5m2, 57344.0) if hybrid else (torch.float8_e4m3fn, 448.0)
    layer = te.Linear(64, 48, params_dtype=HALF)
    x, (grad,) = given(32, 64), drawn((32, 48), dtype=HALF, seed=3)
    scales: tuple[Tensor, ...] = (torch.tensor(1.0),) * 3
    for step in range(2):
        x.grad = layer.weight.grad = layer.bias.grad = None
        since = len(session.trace)
        with te.autocast(recipe=recipe):
            out = layer(x * (step + 1))
        out.backward(grad.cuda())
        names = [row.signature.name for row in session.trace.since(since)]
        assert names.count("aten::_scaled_mm") == 3
        assert names.count("transformer_engine::quantize") == 3
        there = in_eight_bits(x * (step + 1), 448.0, torch.float8_e4m3fn, scales[0])
        weight = in_eight_bits(layer.weight, 448.0, torch.float8_e4m3fn, scales[1])
        given_back = in_eight_bits(grad, most, back, scales[2])
        torch.testing.assert_close(out.detach().cpu().float(), there @ weight.T, rtol=2e-2, atol=2e-2)
        assert x.grad is not None
        assert layer.weight.grad is not None
        torch.testing.assert_close(x.grad.cpu().float(), given_back @ weight * (step + 1), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(layer.weight.grad.cpu().float(), given_back.T @ there, rtol=2e-2, atol=5e-2)
        torch.testing.assert_close(layer.bias.grad.cpu().float(), grad.float().sum(0), rtol=2e-2, atol=2e-2)
        tensors = (x * (step + 1), layer.weight, grad)
        scales = tuple(
            largest / one.detach().float().abs().amax().cpu()
            for one, largest in zip(tensors, (448.0, 448.0, most), strict=True)
        )
        torch.testing.assert_close(torch.cat([one.cpu() for one in layer.scales.scale])[[0, 1, 3]], torch.stack(scales))


def test_the_state_of_scales_is_saved(session: Session) -> None:
    recipe = DelayedScaling(amax_history_len=4)
    layer, other = (te.Linear(64, 48, params_dtype=HALF) for _ in range(2))
    with te.autocast(recipe=recipe):
        layer(given(32, 64))
    other.load_state_dict(layer.state_dict())
    with torch.no_grad(), te.autocast(recipe=recipe):  # in which no scales are renewed
        other(given(32, 64))
    torch.testing.assert_close(other.scales.scale[0].cpu(), layer.scales.scale[0].cpu())
    assert not te.Linear(64, 48).state_dict()["_extra_state"].numel()


def test_current_scaling_takes_the_tensors_own(session: Session) -> None:
    layer, x = te.Linear(64, 48, bias=False, params_dtype=HALF), given(32, 64)
    with te.autocast(recipe=Float8CurrentScaling()):
        out = layer(x)
    there, weight = (in_eight_bits(one, 448.0, torch.float8_e4m3fn) for one in (x, layer.weight))
    torch.testing.assert_close(out.detach().cpu().float(), there @ weight.T, rtol=1e-2, atol=1e-2)


def test_blackwell_keeps_no_transposes() -> None:
    with windtunnel.emulate("B200"):
        layer, x = te.Linear(64, 48, bias=False, params_dtype=HALF), given(32, 64)
        with te.autocast(recipe=Float8CurrentScaling()):
            out = layer(x)
        out.backward(torch.ones_like(out))
        weight = in_eight_bits(layer.weight, 448.0, torch.float8_e4m3fn)
        torch.testing.assert_close(x.grad.cpu().float(), weight.sum(0).expand(32, 64), rtol=1e-2, atol=1e-2)
        there = in_eight_bits(x, 448.0, torch.float8_e4m3fn)
        torch.testing.assert_close(layer.weight.grad.cpu().float(), there.sum(0).expand(48, 64), rtol=1e-2, atol=2e-2)


def test_mxfp8_scales_rows_and_columns_by_themselves() -> None:
    with windtunnel.emulate("B200"):
        layer, x = te.Linear(64, 160, bias=False, params_dtype=HALF), given(96, 64)
        (grad,) = drawn((96, 160), dtype=HALF, seed=3)
        with te.autocast(recipe=MXFP8BlockScaling()):
            out = layer(x)
        out.backward(grad.cuda())
        wanted = in_blocks(x) @ in_blocks(layer.weight).T
        torch.testing.assert_close(out.detach().cpu().float(), wanted, rtol=1e-2, atol=1e-2)
        of_x = in_blocks(grad) @ in_blocks(layer.weight.T).T
        torch.testing.assert_close(x.grad.cpu().float(), of_x, rtol=1e-2, atol=1e-2)
        of_weight = in_blocks(grad.T) @ in_blocks(x.T).T
        torch.testing.assert_close(layer.weight.grad.cpu().float(), of_weight, rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize(
    ("gpu", "recipe", "words"),
    [
        ("A100", DelayedScaling(), "Device compute capability 8.9 or higher required for FP8 execution."),
        ("H100", MXFP8BlockScaling(), "Device compute capability 10.0 or higher required for MXFP8 execution."),
    ],
)
def test_gpus_that_cannot_say_so(gpu: str, recipe: Recipe, words: str) -> None:
    with windtunnel.emulate(gpu):
        with pytest.raises(RuntimeError, match=words), te.autocast(recipe=recipe):
            pass
        assert te.is_mxfp8_available(return_reason=True)[0] is False


def test_what_is_refused_as_the_library_does(session: Session) -> None:
    layer = te.Linear(712, 896, params_dtype=HALF)
    with te.autocast(), pytest.raises(ValueError, match=r"divisible by 16, but got tensor with dims=\[8, 712\]"):
        layer(given(8, 712))
    with pytest.raises(TypeError, match=r"Found input dtype: torch.float32 and 'weight' dtype: torch.bfloat16"):
        layer(torch.ones(8, 712, device="cuda"))
    with pytest.raises(RuntimeError, match=r"TransformerEngine needs CUDA\. Got input on device: cpu"):
        layer(torch.ones(8, 712, dtype=HALF))
    small = te.Linear(64, 64, params_dtype=HALF)
    with te.autocast():
        out = small(given(8, 64))
    with pytest.raises(RuntimeError, match=r"Leading dimension requirement on A for FP8 GEMM\. Caller"):
        out.sum().backward()
    with pytest.raises(UnsupportedError, match=r"Linear over several ranks \(tp_size 2\)"):
        te.Linear(64, 64, tp_size=2)
    with pytest.raises(MissingNameError, match=r"transformer_engine\.pytorch\.GroupedLinear is not in"):
        te.GroupedLinear  # noqa: B018


def test_without_data_memory_is_the_same() -> None:
    peaks = []
    for no_data in (False, True):
        with windtunnel.emulate("H100", no_data=no_data):
            layer = te.TransformerLayer(64, 128, 4, params_dtype=HALF, fuse_qkv_params=True)
            for _ in range(2):
                with te.autocast(recipe=DelayedScaling()):
                    out = layer(torch.ones(16, 2, 64, device="cuda", dtype=HALF))
                out.float().sum().backward()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def test_inputs_are_kept_in_eight_bits(session: Session) -> None:
    layer = nn.Sequential(*(te.Linear(1024, 1024, bias=False, params_dtype=HALF) for _ in range(4)))
    x = torch.randn(4096, 1024, device="cuda", dtype=HALF, requires_grad=True)
    with te.autocast():
        layer(x).sum().backward()
        layer.zero_grad()
        before = torch.cuda.memory_allocated()
        out = layer(x)
    kept = torch.cuda.memory_allocated() - before - out.numel() * 2
    assert 4 * (x.numel() + 2 * 1024 * 1024) <= kept < 4.2 * (x.numel() + 2 * 1024 * 1024)
