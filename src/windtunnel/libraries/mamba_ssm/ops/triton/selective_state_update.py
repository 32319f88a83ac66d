"""`mamba_ssm.ops.triton.selective_state_update`: the scan's next token."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.nn import functional as F

from windtunnel.described import kernel
from windtunnel.libraries import refuse, unanswered

LIBRARY = "mamba_ssm 2.2.4"
Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "mamba_ssm.ops.triton.selective_state_update", name)


@kernel(
    "mamba_ssm::state_update",
    flops=lambda state, *others: 8 * state.numel(),
    define="(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
    "Tensor? dt_bias, bool softplus) -> Tensor",
)
def _update(state, x, dt, A, B, C, D, z, dt_bias, softplus):  # type: ignore[no-untyped-def]
    """[batch, heads, channels, states]: heads of a group share B and C."""
    step = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    step = F.softplus(step) if softplus else step
    inward, outward = (one.float().repeat_interleave(x.shape[1] // one.shape[1], 1)[:, :, None] for one in (B, C))
    moved = state.float() * (step[..., None] * A.float()).exp() + (step * x.float())[..., None] * inward
    state.copy_(moved)
    out = (moved * outward).sum(-1)
    out = out if D is None else out + x.float() * D.float()
    return (out if z is None else out * F.silu(z.float())).to(x.dtype)


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """The result [batch, channels] for one token, or [batch, heads, channels]; the state moves on."""
    if state_batch_indices is not None:
        unanswered(LIBRARY, "selective_state_update with state_batch_indices")
    heads = state.dim() == 4
    if not heads:
        state, x, dt, B, C = (one.unsqueeze(1) for one in (state, x, dt, B, C))
        A, D, dt_bias = (one if one is None else one.unsqueeze(0) for one in (A, D, dt_bias))  # type: ignore[assignment]
        z = z if z is None else z.unsqueeze(1)
    assert x.shape == state.shape[:3]
    assert state.shape[1] % B.shape[1] == 0, "nheads must be divisible by ngroups"
    found: Tensor = torch.ops.mamba_ssm.state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    return found if heads else found[:, 0]
