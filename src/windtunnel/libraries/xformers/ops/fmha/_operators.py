"""The kernels that xformers chooses among, and why one does not take what it is given (flash.py, cutlass.py)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from windtunnel.libraries._flash import bounded

from . import attn_bias as biases
from ._flash import attention
from ._lengths import _PaddedSeqLenInfo

Tensor = torch.Tensor
aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
TOP_LEFT, BOTTOM_RIGHT = 1, 2
"""Causal masks of the memory-efficient kernel."""


class Inputs(NamedTuple):
    """Queries, keys and values [batch, tokens, (groups,) heads, width], and how they attend."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | biases.AttentionBias | None
    p: float
    scale: float | None

    @property
    def capability(self) -> tuple[int, int]:
        """That of the GPU."""
        return torch.cuda.get_device_capability(self.query.device)

    @property
    def texts(self) -> tuple[Tensor, Tensor, int, int] | None:
        """Where texts begin, of queries and of keys, and how long the longest is."""
        if not isinstance(self.bias, biases._Blocks):
            return None
        q, k = self.bias.q_seqinfo, self.bias.k_seqinfo
        return q.seqstart, k.seqstart, q.max_seqlen, k.max_seqlen

    @property
    def used(self) -> Tensor | None:
        """How many keys of each text are in use, of a cache."""
        info = self.bias.k_seqinfo if isinstance(self.bias, biases._Blocks) else None
        return info.seqlen if isinstance(info, _PaddedSeqLenInfo) else None

    def __str__(self) -> str:
        told = [("query", self.query), ("key", self.key), ("value", self.value)]
        lines = [f"     {name:<12}: shape={tuple(one.shape)} ({one.dtype})" for name, one in told]
        return "\n".join([*lines, f"     {'attn_bias':<12}: {type(self.bias)}", f"     {'p':<12}: {self.p}"])


def _common(inputs: Inputs, widest: int, oldest: tuple[int, int], dtypes: tuple[torch.dtype, ...]) -> list[str]:
    query, value = inputs.query, inputs.value
    reasons = []
    if max(query.shape[-1], value.shape[-1]) > widest:
        reasons.append(f"max(query.shape[-1], value.shape[-1]) > {widest}")
    if inputs.capability < oldest:
        reasons.append(
            f"requires device with capability > {oldest} but your GPU has capability {inputs.capability} (too old)"
        )
    if query.dtype not in dtypes:
        reasons.append(f"dtype={query.dtype} (supported: {set(dtypes)})")
    if query.dtype is torch.bfloat16 and inputs.capability < (8, 0):
        reasons.append("bf16 is only supported on A100+ GPUs")
    return reasons


def _aligned(name: str, tensor: Tensor, alignment: int) -> list[str]:
    """Whether rows lie at multiples of so many numbers."""
    reasons = []
    if tensor.shape[-1] % alignment:
        reasons.append(f"{name}.shape[-1] % {alignment} != 0")
    elif tensor.stride(-2) % alignment:
        reasons.append(f"{name}.stride(-2) % {alignment} != 0 ({name}.stride() = {tensor.stride()})")
    if tensor.stride(-1) > 1:
        told = f"{name}.stride(-1) > 1 ({name}.stride() = {tensor.stride()})"
        reasons.append(f"{told} - you should call `.contiguous()` on the input")
    return reasons


def dense(bias: object) -> Tensor | None:
    """A bias that is a tensor, or has one."""
    if isinstance(bias, biases.LowerTriangularMaskWithTensorBias):
        return bias._subtensor
    return bias if isinstance(bias, Tensor) else None


class _Operator:
    NAME = ""

    @classmethod
    def not_supported_reasons(cls, inputs: Inputs) -> list[str]:
        """Why it does not take these; empty where it does."""
        raise NotImplementedError

    @classmethod
    def apply(cls, inputs: Inputs, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        """The result, and the logarithms of the sums."""
        raise NotImplementedError


def _folded(tensor: Tensor) -> Tensor:
    """[batch, tokens, heads, width] of groups of heads, whose keys repeat or do not."""
    if tensor.dim() == 5:
        return tensor[:, :, :, 0] if tensor.stride(3) == 0 else tensor.flatten(2, 3)
    return tensor


class Flash(_Operator):
    """Flash attention."""

    NAME = "fa2F@2.5.7-pt"

    @classmethod
    def not_supported_reasons(cls, inputs: Inputs) -> list[str]:
        """Why it does not take these; empty where it does."""
        query, key, value, bias = inputs[:4]
        reasons = _common(inputs, 256, (8, 0), HALVES)
        if query.shape[-1] != value.shape[-1]:
            reasons.append("query.shape[-1] != value.shape[-1]")
        if dense(bias) is not None:
            reasons.append(f"attn_bias type is {type(bias)}")
        reasons += _aligned("query", query, 8)
        causal = bias if isinstance(bias, biases.BlockDiagonalCausalMask) else None
        if causal is not None and causal.q_seqinfo.seqstart_py != causal.k_seqinfo.seqstart_py:
            reasons.append("Only support BlockDiagonalCausalMask if equal numbers of keys and queries")
        if isinstance(bias, biases.LowerTriangularMask) and query.shape[1] != key.shape[1]:
            reasons.append("Only support LowerTriangularMask if equal number ofkeys and queries")
        return reasons

    @classmethod
    def apply(cls, inputs: Inputs, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        """The result, and the logarithms of the sums."""
        query, key, value, bias = (*map(_folded, inputs[:3]), inputs.bias)
        shape = inputs.query.shape
        if key.stride(2) == value.stride(2) == 0:  # one key for all heads, broadcast
            key, value = key[:, :, :1], value[:, :, :1]
        sight = bias.sight if isinstance(bias, biases.AttentionBias) else biases._Sight()
        scale = query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
        begins_q, begins_k, most_q, most_k = inputs.texts or (None, None, query.shape[1], key.shape[1])
        if inputs.texts:
            query, key, value = (one.flatten(0, 1) for one in (query, key, value))
        window = bounded((sight.left, sight.right), sight.causal)
        texts = begins_q, begins_k, inputs.used, most_q, most_k
        out, lse = attention(query, key, value, *texts, inputs.p, scale, sight.causal, window)
        return out.reshape(shape), lse


class Cutlass(_Operator):
    """The memory-efficient kernel."""

    NAME = "cutlassF-pt"
    MASKS = (
        type(None), Tensor, torch.nn.Parameter, biases.LowerTriangularMask, biases.LowerTriangularFromBottomRightMask,
        biases.LowerTriangularFromBottomRightLocalAttentionMask, biases.LowerTriangularMaskWithTensorBias,
        biases.BlockDiagonalMask, biases.BlockDiagonalCausalMask, biases.BlockDiagonalCausalWithOffsetPaddedKeysMask,
        biases.BlockDiagonalCausalFromBottomRightMask, biases.BlockDiagonalCausalLocalAttentionMask,
        biases.BlockDiagonalCausalLocalAttentionFromBottomRightMask,
    )  # fmt: skip

    @classmethod
    def not_supported_reasons(cls, inputs: Inputs) -> list[str]:
        """Why it does not take these; empty where it does."""
        half = inputs.query.dtype in HALVES
        reasons = _common(inputs, 65536, (5, 0), (torch.float32, *HALVES))
        if type(inputs.bias) not in cls.MASKS:
            reasons.append(f"attn_bias type is {type(inputs.bias)}")
        modern, cores = inputs.capability >= (8, 0), inputs.capability >= (7, 0)
        alignment = (8 if half else 4) if modern else 8 if half and cores else 1
        reasons += _aligned("query", inputs.query, alignment) + _aligned("value", inputs.value, alignment)
        bias = dense(inputs.bias)
        return reasons if bias is None else reasons + _rows(bias)

    @classmethod
    def apply(cls, inputs: Inputs, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        """The result, and the logarithms of the sums."""
        if inputs.query.dim() == 4:
            return cls._attend(inputs, needs_gradient)
        groups = [cls._attend(one, needs_gradient) for one in _groups(inputs)]
        return torch.stack([out for out, _ in groups], 2), torch.stack([lse for _, lse in groups], 1)

    @classmethod
    def _attend(cls, inputs: Inputs, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        query, key, value, bias = inputs[:4]
        begins_q, begins_k, longest_q, longest_k = inputs.texts or (None, None, None, None)
        sight = bias.sight if isinstance(bias, biases.AttentionBias) else biases._Sight()
        mask = (TOP_LEFT if sight.from_first else BOTTOM_RIGHT) if sight.causal else 0
        out, lse, *_ = aten._efficient_attention_forward(
            query, key, value, dense(bias), begins_q, begins_k, longest_q, longest_k, inputs.p, mask,
            compute_log_sumexp=needs_gradient, scale=inputs.scale, seqlen_k=inputs.used,
            window_size=sight.left + 1 if sight.left >= 0 else None,
        )  # fmt: skip
        return out, lse


def _groups(inputs: Inputs) -> list[Inputs]:
    """Each group of heads by itself."""
    bias = inputs.bias
    parts: list[Tensor | biases.AttentionBias | None] = (
        [bias] * inputs.query.shape[2] if not isinstance(bias, Tensor) else list(bias.unbind(1))
    )
    own = zip(*(one.unbind(2) for one in inputs[:3]), parts, strict=True)
    return [Inputs(q, k, v, part, inputs.p, inputs.scale) for q, k, v, part in own]


def _rows(bias: Tensor) -> list[str]:
    """Whether a bias's rows lie at multiples of 16 bytes."""
    alignment = 128 // torch.finfo(bias.dtype).bits
    strides = bias.stride()
    reasons = [
        f"attn_bias.stride(-2) % {alignment} != 0 (attn_bias.stride() = {strides})"
        for stride in strides[:-1]
        if stride % alignment
    ]
    if reasons:
        reasons.append(
            "HINT: To use an `attn_bias` with a sequence length that is not a multiple of 8, you need to ensure memory "
            "is aligned by slicing a bigger tensor. Example: use `attn_bias = torch.zeros([1, 1, 5, 8])[:,:,:,:5]` "
            "instead of `torch.zeros([1, 1, 5, 5])`"
        )
    if strides[-1] > 1:
        reasons.append(
            f"attn_bias.stride(-1) > 1 (attn_bias.stride() = {strides}) - you should call `.contiguous()` on the bias"
        )
    return reasons


def _told(kernel: type[_Operator], reasons: list[str]) -> str:
    return f"`{kernel.NAME}` is not supported because:\n    " + "\n    ".join(reasons)


def chosen(inputs: Inputs, asked: type[_Operator] | None) -> type[_Operator]:
    """The kernel that is asked for, or the first that takes these.

    Raises:
        ValueError: that one does not take them.
        NotImplementedError: none does.
    """
    if asked is not None:
        reasons = asked.not_supported_reasons(inputs)
        if reasons:
            text = f"Operator `memory_efficient_attention` does not support inputs:\n{inputs}\n{_told(asked, reasons)}"
            raise ValueError(text)
        return asked
    texts = []
    for kernel in (Flash, Cutlass):
        reasons = kernel.not_supported_reasons(inputs)
        if not reasons:
            return kernel
        texts.append(_told(kernel, reasons))
    told = "\n".join(texts)
    raise NotImplementedError(
        f"No operator found for `memory_efficient_attention_forward` with inputs:\n{inputs}\n{told}"
    )


def require_backward(inputs: Inputs, kernel: type[_Operator]) -> None:
    """Whether gradients have a kernel.

    Raises:
        NotImplementedError: of groups of heads, of a cache, and of a window or a bias on a mask there is none.
    """
    bias = inputs.bias
    reason = ""
    windows = (
        biases.LowerTriangularMaskWithTensorBias,
        biases.LowerTriangularFromBottomRightLocalAttentionMask,
        biases.BlockDiagonalCausalLocalAttentionFromBottomRightMask,
    )
    if inputs.query.dim() == 5:
        reason = "operator does not support BMGHK format"
    elif inputs.used is not None or isinstance(bias, windows if kernel is Cutlass else ()):
        reason = f"attn_bias type is {type(bias)}"
    if reason:
        text = f"`{kernel.NAME.replace('F', 'B', 1)}` is not supported because:\n    {reason}"
        raise NotImplementedError(
            f"No operator found for `memory_efficient_attention_backward` with inputs:\n{inputs}\n{text}"
        )
