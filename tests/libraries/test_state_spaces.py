"""The stand-ins for causal_conv1d and mamba_ssm, beside plain loops."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn, on_both
from windtunnel.errors import UnsupportedError
from windtunnel.libraries.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from windtunnel.libraries.mamba_ssm import Mamba, Mamba2
from windtunnel.libraries.mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from windtunnel.libraries.mamba_ssm.ops.triton.selective_state_update import selective_state_update
from windtunnel.libraries.mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
from windtunnel.session import Session

Tensor = torch.Tensor


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("A100") as session:
        yield session


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for token in range(x.shape[2]):
        for place in range(weight.shape[1]):
            source = token + place - weight.shape[1] + 1
            if source >= 0:
                out[:, :, token] = out[:, :, token] + weight[:, place] * x[:, :, source]
    return out + bias[:, None]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_a_causal_convolution(session: Session, width: int, activation: str | None) -> None:
    def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = convolved(x, weight, bias)
        return F.silu(out) if activation else out

    since = len(session.trace)
    on_both(lambda x, w, b: causal_conv1d_fn(x, w, b, activation=activation), reference,
            drawn((2, 5, 9), (5, width), (5,)))  # fmt: skip
    names = [row.signature.name for row in session.trace.since(since)]
    assert names.count("causal_conv1d::fwd") == names.count("causal_conv1d::bwd") == 1


def test_states_before_and_after_join_two_halves(session: Session) -> None:
    x, weight, bias = (t.cuda() for t in drawn((2, 5, 12), (5, 4), (5,), dtype=torch.float32))
    whole = causal_conv1d_fn(x, weight, bias, activation="silu")
    _, states = causal_conv1d_fn(x[..., :7], weight, bias, return_final_states=True)
    second = causal_conv1d_fn(x[..., 7:].contiguous(), weight, bias, initial_states=states, activation="silu")
    torch.testing.assert_close(second.cpu(), whole[..., 7:].cpu())
    state = x[..., 4:7].contiguous()
    tokens = [causal_conv1d_update(x[..., t], state, weight, bias, "silu") for t in range(7, 12)]
    torch.testing.assert_close(torch.stack(tokens, -1).cpu(), whole[..., 7:].cpu())
    assert state.cpu().equal(x[..., 9:].cpu())


def scanned(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, bias: Tensor) -> Tensor:  # noqa: N803
    """h(t) = exp(step A) h(t - 1) + step B u, y = C h + D u, gated by silu(z): the paper's recurrence."""
    step = F.softplus(delta + bias[:, None])
    state = torch.zeros(*u.shape[:2], A.shape[1])
    out = []
    for t in range(u.shape[2]):
        grown = torch.exp(step[:, :, t, None] * A) * state
        state = grown + step[:, :, t, None] * B[:, None, :, t] * u[:, :, t, None]
        out.append((state * C[:, None, :, t]).sum(-1) + D * u[:, :, t])
    return torch.stack(out, -1) * F.silu(z)


def test_a_selective_scan(session: Session) -> None:
    tensors = drawn((2, 6, 10), (2, 6, 10), (6, 4), (2, 4, 10), (2, 4, 10), (6,), (2, 6, 10), (6,), dtype=torch.float32)
    tensors[2] = -tensors[2].abs()
    since = len(session.trace)
    on_both(lambda *given: selective_scan_fn(*given, delta_softplus=True), scanned, tensors, 1e-4)
    names = [row.signature.name for row in session.trace.since(since)]
    assert names.count("mamba_ssm::scan_fwd") == names.count("mamba_ssm::scan_bwd") == 1


def test_the_last_state_goes_on_token_by_token(session: Session) -> None:
    shapes = (1, 6, 9), (1, 6, 9), (6, 4), (1, 4, 9), (1, 4, 9), (6,), (1, 6, 9), (6,)
    u, delta, A, B, C, D, z, bias = (t.cuda() for t in drawn(*shapes, dtype=torch.float32))
    A = -A.abs()
    told = {"delta_bias": bias, "delta_softplus": True}
    whole = selective_scan_fn(u, delta, A, B, C, D, z, **told)
    first = [t[..., :8].contiguous() for t in (u, delta, B, C, z)]
    _, state = selective_scan_fn(*first[:2], A, *first[2:4], D, first[4], **told, return_last_state=True)
    state = state.contiguous()
    last = selective_state_update(
        state, u[..., 8], delta[..., 8], A, B[..., 8], C[..., 8], D, z[..., 8], bias, dt_softplus=True
    )
    torch.testing.assert_close(last.cpu(), whole[..., 8].cpu(), rtol=1e-4, atol=1e-5)


def test_a_scan_keeps_its_inputs_its_result_and_a_state_a_chunk(session: Session) -> None:
    batch, channels, tokens, states = 1, 64, 64, 16
    given = [torch.ones(batch, channels, tokens, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    A = -torch.ones(channels, states, device="cuda", requires_grad=True)
    B = torch.ones(batch, states, tokens, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    out = selective_scan_fn(given[0], given[1], A, B, B, z=given[2])
    kept = torch.cuda.memory_allocated() - before
    assert kept == 2 * out.nbytes + batch * channels * 2 * states * 4


def test_what_is_not_answered(session: Session) -> None:
    x = torch.ones(1, 4, 8, device="cuda")
    with pytest.raises(NotImplementedError, match="activation must be None, silu, or swish"):
        causal_conv1d_fn(x, torch.ones(4, 4, device="cuda"), activation="relu")
    with pytest.raises(RuntimeError, match="causal_conv1d only supports width between 2 and 4"):
        causal_conv1d_fn(x, torch.ones(4, 5, device="cuda"))
    with pytest.raises(UnsupportedError, match=r"stand-in for causal_conv1d 1\.5\.0 does not answer .* with seq_idx"):
        causal_conv1d_fn(x, torch.ones(4, 4, device="cuda"), seq_idx=torch.zeros(1, 8, device="cuda"))
    with pytest.raises(UnsupportedError, match="a selective scan with complex A"):
        selective_scan_fn(x, x, torch.ones(4, 2, device="cuda", dtype=torch.complex64), x, x)


def test_without_data_memory_is_the_same() -> None:
    peaks = []
    for no_data in (False, True):
        with windtunnel.emulate("A100", no_data=no_data):
            x = torch.ones(1, 16, 32, device="cuda", requires_grad=True)
            y = causal_conv1d_fn(x, torch.ones(16, 4, device="cuda"), activation="silu")
            B = torch.ones(1, 4, 32, device="cuda")
            selective_scan_fn(y, y, -torch.ones(16, 4, device="cuda"), B, B).sum().backward()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def scanned_by_heads(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, bias: Tensor, before: Tensor,  # noqa: N803
) -> Tensor:  # fmt: skip
    """h(t) = exp(step A) h(t - 1) + step x B, y = C h + D x, gated by silu(z), a head at a time."""
    step = F.softplus(dt + bias)
    inward, outward = (one.repeat_interleave(x.shape[2] // one.shape[2], 2) for one in (B, C))
    state, out = before, []
    for t in range(x.shape[1]):
        added = (step[:, t, :, None] * x[:, t])[..., None] * inward[:, t, :, None]
        state = torch.exp(step[:, t] * A)[..., None, None] * state + added
        out.append((state * outward[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(out, 1) * F.silu(z)


@pytest.mark.parametrize("tokens", [16, 21])
def test_a_scan_by_chunks(session: Session, tokens: int) -> None:
    shapes = (2, tokens, 4, 8), (2, tokens, 4), (4,), (2, tokens, 2, 6), (2, tokens, 2, 6), (4,), (2, tokens, 4, 8)
    tensors = drawn(*shapes, (4,), (2, 4, 8, 6), dtype=torch.float32)
    tensors[2] = -tensors[2].abs()

    def scan(*given: Tensor) -> Tensor:
        x, dt, A, B, C, D, z, bias, before = given
        out = mamba_chunk_scan_combined(x, dt, A, B, C, 8, D, z, bias, before, dt_softplus=True)
        assert isinstance(out, Tensor)
        return out

    since = len(session.trace)
    on_both(scan, scanned_by_heads, tensors, 1e-4)
    names = [row.signature.name for row in session.trace.since(since) if row.signature.name.startswith("mamba")]
    assert names == [f"mamba_ssm::{one}" for one in (
        "chunk_cumsum", "chunk_state", "state_passing", "bmm_chunk", "chunk_scan", "chunk_scan_bwd",
    )]  # fmt: skip


def test_heads_go_on_token_by_token(session: Session) -> None:
    shapes = (1, 9, 4, 8), (1, 9, 4), (4,), (1, 9, 2, 6), (1, 9, 2, 6), (4,), (4,)
    x, dt, A, B, C, D, bias = (t.cuda() for t in drawn(*shapes, dtype=torch.float32))
    A = -A.abs()
    told = {"dt_bias": bias, "dt_softplus": True}
    whole = mamba_chunk_scan_combined(x, dt, A, B, C, 4, D, **told)
    _, state = mamba_chunk_scan_combined(
        *(one[:, :8] for one in (x, dt)), A, *(one[:, :8] for one in (B, C)), 4, D, **told, return_final_states=True
    )
    last = selective_state_update(
        state, x[:, 8], dt[:, 8, :, None].expand(-1, -1, 8), A[:, None, None].expand(-1, 8, 6), B[:, 8], C[:, 8],
        D[:, None].expand(-1, 8), None, bias[:, None].expand(-1, 8), dt_softplus=True,
    )  # fmt: skip
    torch.testing.assert_close(last.cpu(), whole[:, 8].cpu(), rtol=1e-4, atol=1e-5)


def test_a_layer_with_norms_of_its_steps_and_matrices(session: Session) -> None:
    """FalconMamba's. In the library no gradient goes through those norms (`MambaInnerFn.backward` of mamba_ssm)."""
    channels, states, rank = 6, 4, 3
    shapes = (2, 2 * channels, 7), (channels, 1, 4), (channels,), (rank + 2 * states, channels), (channels, rank)
    tensors = drawn(*shapes, (5, channels), (channels, states), (channels,), (channels,), dtype=torch.float32)
    tensors[6] = -tensors[6].abs()
    ones = {"dt": torch.ones(channels), "b": torch.ones(states), "c": torch.ones(states)}

    def layer(xz, conv, bias, x_weight, dt_weight, out_weight, decay, skip, dt_bias):
        norms = {f"{name}_rms_weight": one.cuda() for name, one in ones.items()}
        return mamba_inner_fn(
            xz,
            conv,
            bias,
            x_weight,
            dt_weight,
            out_weight,
            None,
            decay,
            D=skip,
            delta_bias=dt_bias,
            **norms,
            b_c_dt_rms_eps=1e-6,
        )

    def normed(of: Tensor) -> Tensor:
        return of + (F.rms_norm(of, of.shape[-1:], eps=1e-6) - of).detach()

    def reference(xz, conv, bias, x_weight, dt_weight, out_weight, decay, skip, dt_bias):
        x, z = xz.chunk(2, 1)
        x = F.silu(convolved(x, conv[:, 0], bias))
        dt, B, C = F.linear(x.transpose(1, 2), x_weight).split([rank, states, states], -1)
        delta, B, C = (normed(one).transpose(1, 2) for one in (F.linear(dt, dt_weight), B, C))
        return F.linear(scanned(x, delta, decay, B, C, skip, z, dt_bias).transpose(1, 2), out_weight)

    on_both(layer, reference, tensors, 1e-4)


def of_mamba(layer: Mamba, u: Tensor) -> Tensor:
    """A layer of Mamba by its parameters, as the paper's figure 3 has it."""
    w = dict(layer.named_parameters())
    x, z = F.linear(u, w["in_proj.weight"]).transpose(1, 2).chunk(2, 1)
    x = F.silu(convolved(x, w["conv1d.weight"][:, 0], w["conv1d.bias"]))
    small = F.linear(x.transpose(1, 2), w["x_proj.weight"])
    dt, B, C = small.split([layer.dt_rank, layer.d_state, layer.d_state], -1)
    delta = F.linear(dt, w["dt_proj.weight"]).transpose(1, 2)
    A = -w["A_log"].exp()
    y = scanned(x, delta, A, B.transpose(1, 2), C.transpose(1, 2), w["D"], z, w["dt_proj.bias"])
    return F.linear(y.transpose(1, 2), w["out_proj.weight"])


def of_mamba2(layer: Mamba2, u: Tensor) -> Tensor:
    """A layer of Mamba 2 by its parameters."""
    w = dict(layer.named_parameters())
    groups, states, heads = layer.ngroups, layer.d_state, layer.nheads
    sizes = [layer.d_inner, layer.d_inner + 2 * groups * states, heads]
    z, mixed, dt = F.linear(u, w["in_proj.weight"]).split(sizes, -1)
    mixed = F.silu(convolved(mixed.transpose(1, 2), w["conv1d.weight"][:, 0], w["conv1d.bias"])).transpose(1, 2)
    x, B, C = mixed.split([layer.d_inner, groups * states, groups * states], -1)
    x, z = x.unflatten(-1, (heads, -1)), z.unflatten(-1, (heads, -1))
    B, C = B.unflatten(-1, (groups, -1)), C.unflatten(-1, (groups, -1))
    before = torch.zeros(u.shape[0], heads, layer.headdim, states)
    gates = torch.full_like(x, 20.0)  # whose gate is 20
    y = scanned_by_heads(x, dt, -w["A_log"].exp(), B, C, w["D"], gates, w["dt_bias"], before) / F.silu(gates)
    y = (y * F.silu(z)).flatten(-2).unflatten(-1, (groups, -1))
    y = F.rms_norm(y, y.shape[-1:], eps=1e-5).flatten(-2) * w["norm.weight"]
    return F.linear(y, w["out_proj.weight"])


@pytest.mark.parametrize("second", [False, True])
def test_layers(session: Session, second: bool) -> None:
    torch.manual_seed(0)
    layer = Mamba2(32, d_state=8, headdim=8, ngroups=2, chunk_size=8) if second else Mamba(32, d_state=8)
    there = copy.deepcopy(layer).cuda()
    (u,) = drawn((2, 11, 32), dtype=torch.float32)
    here, given = u.clone().requires_grad_(), u.cuda().requires_grad_()
    wanted = of_mamba2(layer, here) if isinstance(layer, Mamba2) else of_mamba(layer, here)
    found = there(given)
    torch.testing.assert_close(found.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
    wanted.square().sum().backward()
    found.square().sum().backward()
    pairs = zip((given, *there.parameters()), (here, *layer.parameters()), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-5)


def test_layers_keep_little(session: Session) -> None:
    layer = Mamba(64, d_state=8).cuda().bfloat16()
    layer.A_log.data, layer.D.data = layer.A_log.data.float(), layer.D.data.float()
    x = torch.ones(2, 128, 64, device="cuda", dtype=torch.bfloat16)
    layer(x).sum().backward()
    layer.zero_grad()
    before = torch.cuda.memory_allocated()
    out = layer(x)
    kept = torch.cuda.memory_allocated() - before - out.nbytes
    rows, inner = 2 * 128, 128
    wanted = rows * 2 * inner * 2 + rows * inner * 2 + rows * (4 + 16) * 2 + 2 * rows * 8 * 2 + 2 * inner * 16 * 4
    assert wanted <= kept < wanted + 16 * 1024  # what A, D and the bias are in float32


def test_channels_last_are_multiples_of_eight(session: Session) -> None:
    weight = torch.ones(12, 4, device="cuda")
    with pytest.raises(RuntimeError, match="only supports channel dimension divisible by 8 for now"):
        causal_conv1d_fn(torch.ones(2, 9, 12, device="cuda").transpose(1, 2), weight)
    with pytest.raises(RuntimeError, match=r"channel last layout requires strides .* to be multiples of 8"):
        Mamba2(64, headdim=64).cuda()(torch.ones(4, 16, 64, device="cuda"))
    x = torch.ones(2, 9, 24, device="cuda")[..., ::2].transpose(1, 2)  # neither: it is made contiguous
    assert causal_conv1d_fn(x, weight).shape == (2, 12, 9)
    with pytest.raises(AssertionError):
        Mamba2(16)
