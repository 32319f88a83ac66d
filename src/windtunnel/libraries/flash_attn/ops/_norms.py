"""Layer norms and RMS norms with a residual added first, in one kernel that keeps what it normalized and its scale."""

from __future__ import annotations

import torch
from torch import nn

from windtunnel.described import kernel
from windtunnel.libraries import unanswered

LIBRARY = "flash_attn 2.8.3"
Tensor = torch.Tensor
Parts = tuple[Tensor, Tensor, Tensor]


def _normalized(z: Tensor, eps: float, rms: bool) -> Parts:
    """(normalized, mean, reciprocal standard deviation) of rows in float32."""
    mean = torch.zeros_like(z[..., :1]) if rms else z.mean(-1, keepdim=True)
    centred = z - mean
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return centred * rstd, mean, rstd


@kernel(
    "flash_attn::norm",
    like="aten::native_layer_norm",
    define="(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, float eps, bool rms, bool zero_centred, "
    "ScalarType kept, ScalarType out) -> (Tensor, Tensor, Tensor)",
)
def _norm(  # type: ignore[no-untyped-def]
    x, weight, bias, residual, eps, rms, zero_centred, kept, out
):
    """(result, the sum in `kept`'s type, reciprocal standard deviations): rows are the last dimension."""
    z = x.float() if residual is None else x.float() + residual.float()
    normalized, _, rstd = _normalized(z, eps, rms)
    made = normalized * (weight.float() + 1.0 if zero_centred else weight.float())
    if bias is not None:
        made = made + bias.float()
    return made.to(out), z.to(kept), rstd.squeeze(-1)


@kernel(
    "flash_attn::norm_bwd",
    like="aten::native_layer_norm_backward",
    define="(Tensor grad, Tensor z, Tensor weight, Tensor? more, float eps, bool rms, bool zero_centred, "
    "ScalarType x_type) -> (Tensor, Tensor, Tensor)",
)
def _norm_bwd(grad, z, weight, more, eps, rms, zero_centred, x_type):  # type: ignore[no-untyped-def]
    """(gradient of the sum, of the weight, of the bias)."""
    normalized, _, rstd = _normalized(z.float(), eps, rms)
    given = grad.float()
    scaled = given * (weight.float() + 1.0 if zero_centred else weight.float())
    along = (scaled * normalized).mean(-1, keepdim=True)
    of_sum = scaled - normalized * along
    if not rms:
        of_sum = of_sum - scaled.mean(-1, keepdim=True)
    of_sum = of_sum * rstd
    if more is not None:
        of_sum = of_sum + more.float()
    rows = tuple(range(grad.dim() - 1))
    return of_sum.to(x_type), (given * normalized).sum(rows).to(weight.dtype), given.sum(rows).to(weight.dtype)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, eps, rms, zero_centred, prenorm, wide, out):  # type: ignore[no-untyped-def]
        kept = residual.dtype if residual is not None else (torch.float32 if wide else x.dtype)
        made, z, _ = torch.ops.flash_attn.norm(x, weight, bias, residual, eps, rms, zero_centred, kept, out or x.dtype)
        ctx.save_for_backward(z, weight)
        ctx.told = eps, rms, zero_centred, x.dtype, bias is not None, None if residual is None else residual.dtype
        return (made, z) if prenorm else made

    @staticmethod
    def backward(ctx, grad, more=None):  # type: ignore[no-untyped-def]
        z, weight = ctx.saved_tensors
        eps, rms, zero_centred, x_type, biased, residual_type = ctx.told
        of_sum, of_weight, of_bias = torch.ops.flash_attn.norm_bwd(
            grad, z, weight, more, eps, rms, zero_centred, x_type
        )
        of_residual = None if residual_type is None else of_sum.to(residual_type)
        return of_sum, of_weight, of_bias if biased else None, of_residual, *[None] * 6


def norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, eps: float, *, rms: bool,
    prenorm: bool = False, residual_in_fp32: bool = False, zero_centred: bool = False,
    out: torch.dtype | None = None, **others: object,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The norm of x + residual; with `prenorm` the sum too."""
    for name, value in others.items():
        if value not in (None, 0.0, False):
            unanswered(LIBRARY, f"a fused norm with {name}", "compute it before the norm")
    return _Norm.apply(x, weight, bias, residual, eps, rms, zero_centred, prenorm, residual_in_fp32, out)


class DropoutAddNorm(nn.Module):
    """The norm of a sum, with its weights: what both kinds of `DropoutAdd...Norm` have."""

    rms = False

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        if not self.rms:
            self.bias = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x0 + residual."""
        return norm(
            x0, self.weight, self.bias, residual, self.eps, rms=self.rms, prenorm=self.prenorm,
            residual_in_fp32=self.residual_in_fp32, dropout_p=self.p if self.training else 0.0,
        )  # fmt: skip
