"""The stand-in for apex, beside PyTorch's norms and optimizers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn, on_both
from windtunnel.errors import MissingNameError, UnsupportedError
from windtunnel.libraries import apex
from windtunnel.libraries.apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm
from windtunnel.libraries.apex.normalization.fused_layer_norm import fused_layer_norm_affine
from windtunnel.libraries.apex.optimizers import FusedAdam
from windtunnel.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("A100") as session:
        yield session


def test_norms_are_pytorchs(session: Session) -> None:
    x, weight, bias = drawn((3, 5, 16), (16,), (16,), dtype=torch.float32)
    on_both(lambda *t: fused_layer_norm_affine(*t, (16,), 1e-5), lambda *t: F.layer_norm(t[0], (16,), *t[1:]),
            [x, weight, bias], 1e-5)  # fmt: skip
    layer, rms, mixed = FusedLayerNorm(16).cuda(), FusedRMSNorm((16,)).cuda(), MixedFusedRMSNorm(16).cuda()
    assert [sorted(dict(one.named_parameters())) for one in (layer, rms)] == [["bias", "weight"], ["weight"]]
    torch.testing.assert_close(layer(x.cuda()).cpu(), F.layer_norm(x, (16,)))
    for one in (rms, mixed):
        torch.testing.assert_close(one(x.cuda()).cpu(), F.rms_norm(x, (16,), eps=1e-5))


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_pytorchs(session: Session, decoupled: bool, decay: float) -> None:
    start, *gradients = drawn(*[(7, 5)] * 4, dtype=torch.float32)
    found, wanted = nn.Parameter(start.cuda()), nn.Parameter(start.clone())
    ours = FusedAdam([found], lr=1e-2, adam_w_mode=decoupled, weight_decay=decay)
    theirs = (torch.optim.AdamW if decoupled else torch.optim.Adam)([wanted], lr=1e-2, weight_decay=decay)
    for gradient in gradients:
        found.grad, wanted.grad = gradient.cuda(), gradient
        ours.step()
        theirs.step()
    torch.testing.assert_close(found.detach().cpu(), wanted.detach(), rtol=1e-5, atol=1e-6)


def test_a_step_is_a_kernel_a_type_and_state_is_float32(session: Session) -> None:
    params = [nn.Parameter(torch.ones(8, device="cuda", dtype=t)) for t in (torch.bfloat16,) * 3 + (torch.float32,)]
    optimizer = FusedAdam(params)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    since = len(session.trace)
    optimizer.step()
    kernels = [row.signature.name for row in session.trace.since(since) if "::" in row.signature.name]
    assert kernels == ["apex::multi_tensor_adam"] * 2
    assert optimizer.state[params[0]]["exp_avg"].dtype is torch.float32
    optimizer.zero_grad()
    assert params[0].grad is None


def test_what_is_refused(session: Session) -> None:
    with pytest.raises(RuntimeError, match="FusedAdam does not support the AMSGrad variant"):
        FusedAdam([nn.Parameter(torch.ones(1))], amsgrad=True)
    with pytest.raises(UnsupportedError, match="FusedAdam with capturable"):
        FusedAdam([nn.Parameter(torch.ones(1))], capturable=True)
    with pytest.raises(UnsupportedError, match="a norm with memory_efficient"):
        FusedLayerNorm(4, memory_efficient=True)
    with pytest.raises(MissingNameError, match=r"apex\.amp is not in windtunnel's stand-in for apex 0\.1"):
        apex.amp  # noqa: B018


@pytest.mark.parametrize("kind", [FusedLayerNorm, FusedRMSNorm])
def test_types_are_those_of_the_librarys_kernels(session: Session, kind: type[nn.Module]) -> None:
    layer, half = kind(64).cuda(), kind(64).cuda().half()
    x = torch.randn(4, 64, device="cuda")
    with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
        layer(x.half())
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        half(x)
    with torch.autocast("cuda", torch.bfloat16):
        assert layer(x).dtype is layer(x.half()).dtype is torch.bfloat16
    assert kind(64)(torch.ones(2, 64)).shape == (2, 64)  # by PyTorch's on the CPU


@pytest.mark.parametrize("kind", [MixedFusedLayerNorm, MixedFusedRMSNorm])
def test_mixed_norms_have_the_weights_type(session: Session, kind: type[nn.Module]) -> None:
    layer = kind(64).cuda().bfloat16()
    (x,) = drawn((4, 64), dtype=torch.float32)
    since = len(session.trace)
    there = x.cuda().requires_grad_()
    out = layer(there)
    out.float().square().sum().backward()
    names = [row.signature.name for row in session.trace.since(since)]
    assert names.count("apex::norm_mixed_dtypes") == names.count("apex::norm_mixed_dtypes_backward") == 1
    assert (out.dtype, there.grad.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    here = x.clone().requires_grad_()
    wanted = F.layer_norm(here, (64,)) if kind is MixedFusedLayerNorm else F.rms_norm(here, (64,), eps=1e-5)
    wanted.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu().float(), wanted.detach(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=2e-2, atol=3e-2)
    with pytest.raises(RuntimeError, match="does not support `elementwise_affine = False`"):
        kind(64, elementwise_affine=False)
