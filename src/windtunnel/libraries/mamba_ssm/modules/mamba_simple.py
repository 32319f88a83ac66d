"""`mamba_ssm.modules.mamba_simple`: a layer of Mamba."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse, unanswered

from ..ops.selective_scan_interface import mamba_inner_fn

LIBRARY = "mamba_ssm 2.2.4"
Tensor = torch.Tensor
Device = torch.device | str | None


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "mamba_ssm.modules.mamba_simple", name)


def steps(count: int, least: float, most: float, floor: float, device: Device, dtype: torch.dtype | None) -> Tensor:
    """What softplus makes steps of that are drawn between two bounds, evenly in their logarithms."""
    drawn = torch.rand(count, device=device, dtype=dtype)
    step = (drawn * (math.log(most) - math.log(least)) + math.log(least)).exp().clamp(min=floor)
    return step + torch.log(-torch.expm1(-step))


def undecayed(value: Tensor) -> nn.Parameter:
    """A parameter that optimizers are told not to decay."""
    parameter = nn.Parameter(value)
    parameter._no_weight_decay = True  # type: ignore[attr-defined]
    return parameter


class Mamba(nn.Module):
    """A convolution and a selective scan between two products."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not use_fast_path:
            unanswered(LIBRARY, "Mamba with use_fast_path=False")
        where = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand, self.layer_idx = (
            d_model, d_state, d_conv, expand, layer_idx,
        )  # fmt: skip
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias, **where)  # type: ignore[arg-type]
        self.conv1d = nn.Conv1d(
            self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1, bias=conv_bias, **where  # type: ignore[arg-type]
        )  # fmt: skip
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **where)  # type: ignore[arg-type]
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, **where)  # type: ignore[arg-type]
        bound = self.dt_rank**-0.5 * dt_scale
        if dt_init not in ("constant", "random"):
            raise NotImplementedError
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, bound)
        else:
            nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        with torch.no_grad():
            self.dt_proj.bias.copy_(steps(self.d_inner, dt_min, dt_max, dt_init_floor, device, dtype))
        numbers = torch.arange(1, d_state + 1, dtype=torch.float32, device=device)
        self.A_log = undecayed(numbers.repeat(self.d_inner, 1).log())
        self.D = undecayed(torch.ones(self.d_inner, device=device))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **where)  # type: ignore[arg-type]

    def forward(self, hidden_states: Tensor, inference_params: object = None) -> Tensor:
        """[batch, tokens, width] as it is given."""
        if inference_params is not None:
            unanswered(LIBRARY, "Mamba with inference_params", "transformers' MambaForCausalLM generates")
        batch, tokens, _ = hidden_states.shape
        xz = (self.in_proj.weight @ hidden_states.flatten(0, 1).t()).view(-1, batch, tokens).transpose(0, 1)
        if self.in_proj.bias is not None:
            xz = xz + self.in_proj.bias.to(xz.dtype)[:, None]
        return mamba_inner_fn(
            xz, self.conv1d.weight, self.conv1d.bias, self.x_proj.weight, self.dt_proj.weight, self.out_proj.weight,
            self.out_proj.bias, -self.A_log.float().exp(), None, None, self.D.float(),
            delta_bias=self.dt_proj.bias.float(), delta_softplus=True,
        )  # fmt: skip
