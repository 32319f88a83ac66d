"""`xformers.ops.fmha.attn_bias`: which keys a query sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, NoReturn, Self

import torch

from windtunnel.libraries import refuse

from ._lengths import Device, _PaddedSeqLenInfo, _SeqLenInfo

Tensor = torch.Tensor
Where = torch.device | str


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.ops.fmha.attn_bias", name)


class _Sight(NamedTuple):
    """What a query sees of its text: with `causal` nothing behind it; `left` and `right` keys beside it (-1: all).

    Places are counted from the last query and the last key, or with `from_first` from the first ones.
    """

    causal: bool = False
    from_first: bool = False
    left: int = -1
    right: int = -1

    def added(self, shape: tuple[int, ...], dtype: torch.dtype, device: Where) -> Tensor:
        """Zero where a query looks, else minus infinity, as [..., queries, keys]."""
        queries, keys = shape[-2:]
        shift = 0 if self.from_first else keys - queries
        distance = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - shift
        hidden = distance > (0 if self.causal else self.right if self.right >= 0 else queries + keys)
        if self.left >= 0:
            hidden = hidden | (distance < -self.left)
        return torch.zeros(shape, dtype=dtype, device=device).masked_fill(hidden, -math.inf)


def _window(size: int) -> None:
    if size <= 0:
        raise ValueError(f"Expected `window_size > 0`, but window_size={size}")


class AttentionBias:
    """What is added to the scores."""

    HOLDS_DENSE_TENSOR = False
    sight = _Sight()

    def to(self, device: Device) -> Self:
        """The same on another device."""
        return self

    def materialize(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: Where = "cpu"
    ) -> Tensor:  # fmt: skip
        """What is added, as a tensor [..., queries, keys]."""
        return self.sight.added(tuple(shape), dtype, device)


class LowerTriangularMask(AttentionBias):
    """A query sees the keys before it, counted from the first of each."""

    sight = _Sight(causal=True, from_first=True)

    def __init__(self, *, device: Device = None) -> None:
        self.device = device

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        """The same mask, and a bias."""
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """The same mask, and a bias [batch, heads, queries, keys]."""

    HOLDS_DENSE_TENSOR = True

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self._subtensor = bias

    def materialize(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: Where = "cpu"
    ) -> Tensor:  # fmt: skip
        """What is added, as a tensor [..., queries, keys]."""
        return super().materialize(shape, dtype, device) + self._subtensor


class LowerTriangularFromBottomRightMask(AttentionBias):
    """A query sees the keys before it, counted from the last of each."""

    sight = _Sight(causal=True)

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        """The same, and of those before it the nearest alone."""
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """A query sees `_window_size` keys that end with it, counted from the last of each."""

    _window_size: int

    def __post_init__(self) -> None:
        _window(self._window_size)
        self.sight = _Sight(causal=True, left=self._window_size - 1)


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """A query sees `window_left` keys before it and `window_right` behind it, counted from the last of each."""

    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        for name, size in (("window_left", self.window_left), ("window_right", self.window_right)):
            if size < 0:
                raise ValueError(
                    "Invalid window value passed to `LocalAttentionFromBottomRightMask`: expected"
                    f"`{name} > 0` but got {name}={size}"
                )
        self.sight = _Sight(left=self.window_left, right=self.window_right)


@dataclass
class _Blocks(AttentionBias):
    """Texts one behind another, of which each sees itself."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo

    def to(self, device: Device) -> Self:
        """The same on another device."""
        return replace(self, q_seqinfo=self.q_seqinfo.to(device), k_seqinfo=self.k_seqinfo.to(device))

    def materialize(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: Where = "cpu"
    ) -> Tensor:  # fmt: skip
        """What is added, as a tensor [..., all queries, all keys]."""
        if (shape[-2], shape[-1]) != (self.q_seqinfo.seqstart_py[-1], self.k_seqinfo.seqstart_py[-1]):
            raise ValueError("q or k shapes wrong")
        mask = torch.full(tuple(shape[-2:]), -math.inf, dtype=dtype, device=device)
        for (q, q_end), (k, k_end) in zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True):
            mask[q:q_end, k:k_end] = self.sight.added((q_end - q, k_end - k), dtype, device)
        return mask.expand(shape)


@dataclass
class BlockDiagonalMask(_Blocks):
    """Texts one behind another, of which each sees itself."""

    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Device = None
    ) -> Self:  # fmt: skip
        """Texts of these lengths, and of keys."""
        assert kv_seqlen is None or len(q_seqlen) == len(kv_seqlen)
        queries = keys = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        if kv_seqlen is not None and list(kv_seqlen) != list(q_seqlen):
            keys = _SeqLenInfo.from_seqlens(kv_seqlen, device=device)
        return cls(q_seqinfo=queries, k_seqinfo=keys)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[Self, Tensor]:
        """The mask of tensors [batch, tokens, ...], and these as [1, all tokens, ...]."""
        mask, joined, _, _ = cls.from_tensor_lists_qkv(tensors, tensors)
        return mask, joined

    @classmethod
    def from_tensor_lists_qkv(
        cls, tensors_q: Sequence[Tensor], tensors_k: Sequence[Tensor], tensors_v: Sequence[Tensor] | None = None
    ) -> tuple[Self, Tensor, Tensor, Tensor | None]:
        """The same of queries, keys and values."""
        lengths = [[t.shape[1] for t in tensors for _ in range(t.shape[0])] for tensors in (tensors_q, tensors_k)]
        mask = cls.from_seqlens(lengths[0], lengths[1])
        mask._batch_sizes = [tensor.shape[0] for tensor in tensors_q]
        queries = _joined(tensors_q)
        keys = queries if tensors_k is tensors_q else _joined(tensors_k)
        return mask, queries, keys, None if tensors_v is None else _joined(tensors_v)

    def split(self, tensor: Tensor) -> Sequence[Tensor]:
        """The texts of a tensor [1, all tokens, ...]."""
        assert self.q_seqinfo is self.k_seqinfo
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_queries(self, tensor: Tensor) -> Sequence[Tensor]:
        """The texts of queries [1, all tokens, ...]."""
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: Tensor) -> Sequence[Tensor]:
        """The texts of keys [1, all tokens, ...]."""
        return self.k_seqinfo.split(tensor, self._batch_sizes)  # type: ignore[no-any-return]

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same where a query sees the keys before it, counted from the first of its text."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        """The same, counted from the last of its text."""
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        """The same where a query sees `window_size` keys that end with it, counted from the first of its text."""
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)

    def make_local_attention_from_bottomright(
        self, window_size: int
    ) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        """The same, counted from the last of its text."""
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size
        )


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape([1, -1, *tensor.shape[2:]]) for tensor in tensors], dim=1)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """The same where a query sees the keys before it, counted from the first of its text."""

    sight = _Sight(causal=True, from_first=True)


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """The same, counted from the last of its text."""

    sight = _Sight(causal=True)

    def __post_init__(self) -> None:
        texts = zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True)
        for i, ((q, q_end), (k, k_end)) in enumerate(texts):
            if k_end - k < q_end - q:
                raise ValueError(
                    f"Block #{i} has num_keys={k_end - k} and num_queries={q_end - q}."
                    " Expected `num_keys >= num_queries`"
                )


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    """The same where a query sees `_window_size` keys that end with it, counted from the first of its text."""

    _window_size: int = 0

    def __post_init__(self) -> None:
        _window(self._window_size)
        self.sight = _Sight(causal=True, from_first=True, left=self._window_size - 1)
        both = (pairwise(info.seqstart_py) for info in (self.q_seqinfo, self.k_seqinfo))
        for (a, b), (c, d) in zip(*both, strict=True):
            if b - a - self._window_size >= d - c:
                raise RuntimeError(
                    f"No keys are attended in q_seqlen {b - a} k_seqlen {d - c} with sliding window {self._window_size}"
                )


@dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    """The same, counted from the last of its text."""

    _window_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _window(self._window_size)
        self.sight = _Sight(causal=True, left=self._window_size - 1)


class BlockDiagonalPaddedKeysMask(_Blocks):
    """Texts whose keys lie in a cache with room for `kv_padding` of each; a query sees those in use."""

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], causal_diagonal: object = None, *,
        device: Device = None,
    ) -> Self:  # fmt: skip
        """Texts of so many queries, and of so many keys in use."""
        assert len(q_seqlen) == len(kv_seqlen), (q_seqlen, kv_seqlen)
        queries = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        return cls(queries, _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, kv_padding, device=device))


class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """The same where a query sees the keys before it, counted from the last in use."""

    sight = _Sight(causal=True)


@dataclass
class BlockDiagonalCausalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """The same where a query sees `_window_size` keys that end with it."""

    _window_size: int

    def __post_init__(self) -> None:
        self.sight = _Sight(causal=True, left=self._window_size - 1)

    @classmethod
    def from_seqlens_local(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_size: int
    ) -> Self:  # fmt: skip
        """Texts of so many queries, and of so many keys in use."""
        told = BlockDiagonalPaddedKeysMask.from_seqlens(q_seqlen, kv_padding, kv_seqlen)
        return cls(told.q_seqinfo, told.k_seqinfo, window_size)


@dataclass
class BlockDiagonalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """The same where a query sees `window_left` keys before it and `window_right` behind it."""

    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        self.sight = _Sight(left=self.window_left, right=self.window_right)

    @classmethod
    def from_seqlens_local(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_left: int, window_right: int
    ) -> Self:  # fmt: skip
        """Texts of so many queries, and of so many keys in use."""
        told = BlockDiagonalPaddedKeysMask.from_seqlens(q_seqlen, kv_padding, kv_seqlen)
        return cls(told.q_seqinfo, told.k_seqinfo, window_left, window_right)
