"""`mamba_ssm.ops.triton.layernorm_gated`: an RMS norm with a gate, in one kernel."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.described import kernel
from windtunnel.libraries import refuse

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("mamba_ssm 2.2.4", "mamba_ssm.ops.triton.layernorm_gated", name)


@kernel(
    "mamba_ssm::gated_rms_norm",
    like="aten::native_layer_norm",
    define="(Tensor x, Tensor weight, Tensor? bias, Tensor? z, float eps, int group, bool before) -> Tensor",
)
def _norm(x, weight, bias, z, eps, group, before):  # type: ignore[no-untyped-def]
    """The norm of groups of numbers; the gate comes after it (`before` the gate), or before it."""
    wide, gate = x.float(), None if z is None else F.silu(z.float())
    if gate is not None and not before:
        wide = wide * gate
    groups = wide.unflatten(-1, (-1, group))
    normalized = groups * (groups.square().mean(-1, keepdim=True) + eps).rsqrt()
    out = normalized.flatten(-2) * weight.float()
    out = out if bias is None else out + bias.float()
    return (out * gate if gate is not None and before else out).to(x.dtype)


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Tensor:
    """norm(x) * silu(z), or norm(x * silu(z))."""
    group = group_size or x.shape[-1]
    out: Tensor = torch.ops.mamba_ssm.gated_rms_norm(x, weight, bias, z, eps, group, norm_before_gate)
    return out


class RMSNorm(nn.Module):
    """The same with a weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """The norm, with the gate where there is one."""
        return rmsnorm_fn(x, self.weight, None, z, self.eps, self.group_size, self.norm_before_gate)
