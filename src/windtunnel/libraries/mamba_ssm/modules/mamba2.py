"""`mamba_ssm.modules.mamba2`: a layer of Mamba 2."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse, unanswered

from ..ops.triton.layernorm_gated import RMSNorm
from ..ops.triton.ssd_combined import UNLIMITED, Limits, mamba_split_conv1d_scan_combined
from .mamba_simple import LIBRARY, Device, steps, undecayed

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "mamba_ssm.modules.mamba2", name)


class Mamba2(nn.Module):
    """A convolution and a scan by chunks between two products."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: Limits = UNLIMITED,
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: object = None,
        sequence_parallel: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if process_group is not None or not use_mem_eff_path:
            unanswered(LIBRARY, "Mamba2 with a process_group or with use_mem_eff_path=False")
        where = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = expand * d_model
        self.headdim, self.ngroups, self.chunk_size, self.layer_idx = headdim, ngroups, chunk_size, layer_idx
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        assert self.d_ssm % self.headdim == 0
        self.nheads = self.d_ssm // headdim
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate, self.dt_limit = (
            D_has_hdim, rmsnorm, norm_before_gate, dt_limit,
        )  # fmt: skip
        outer = 2 * self.d_inner + 2 * ngroups * d_state + self.nheads
        self.in_proj = nn.Linear(d_model, outer, bias=bias, **where)  # type: ignore[arg-type]
        mixed = self.d_ssm + 2 * ngroups * d_state
        self.conv1d = nn.Conv1d(mixed, mixed, d_conv, groups=mixed, padding=d_conv - 1, bias=conv_bias, **where)  # type: ignore[arg-type]
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        self.dt_bias = undecayed(steps(self.nheads, dt_min, dt_max, dt_init_floor, device, dtype))
        assert A_init_range[0] > 0
        assert A_init_range[1] >= A_init_range[0]
        drawn = torch.empty(self.nheads, dtype=torch.float32, device=device).uniform_(*A_init_range)
        self.A_log = undecayed(drawn.log().to(dtype or torch.float32))
        self.D = undecayed(torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device))
        self.norm: RMSNorm | None = None
        if rmsnorm:
            self.norm = RMSNorm(self.d_ssm, 1e-5, self.d_ssm // ngroups, norm_before_gate, **where)  # type: ignore[arg-type]
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **where)  # type: ignore[arg-type]

    def forward(
        self,
        u: Tensor,
        seqlen: int | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: object = None,
    ) -> Tensor:
        """[batch, tokens, width] as it is given, or [batch * tokens, width] with `seqlen`."""
        if inference_params is not None or cu_seqlens is not None:
            unanswered(
                LIBRARY, "Mamba2 with inference_params or cu_seqlens", "transformers' Mamba2ForCausalLM generates"
            )
        product = self.in_proj(u)
        out = mamba_split_conv1d_scan_combined(
            product if seqlen is None else product.unflatten(0, (-1, seqlen)), self.conv1d.weight[:, 0],
            self.conv1d.bias, self.dt_bias, -self.A_log.float().exp(),
            self.D.view(-1, self.headdim) if self.D_has_hdim else self.D, self.chunk_size, seq_idx=seq_idx,
            dt_limit=self.dt_limit, rmsnorm_weight=None if self.norm is None else self.norm.weight,
            rmsnorm_eps=1e-6 if self.norm is None else self.norm.eps, outproj_weight=self.out_proj.weight,
            outproj_bias=self.out_proj.bias, headdim=None if self.D_has_hdim else self.headdim, ngroups=self.ngroups,
            norm_before_gate=self.norm_before_gate,
        )  # fmt: skip
        return out if seqlen is None else out.flatten(0, 1)
