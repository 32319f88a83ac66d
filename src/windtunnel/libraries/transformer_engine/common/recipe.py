"""`transformer_engine.common.recipe`: how tensors are scaled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, NoReturn

from windtunnel.libraries import refuse

LIBRARY = "transformer_engine 2.18.0"
AmaxChoice = str | Callable[..., object]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.common.recipe", name)


class _Largest(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(Enum):
    """The formats of the forward and the backward pass, with their largest numbers."""

    E4M3 = _Largest(448.0, 448.0)
    E5M2 = _Largest(57344.0, 57344.0)
    HYBRID = _Largest(448.0, 57344.0)


class Recipe:
    """What all recipes have."""

    fp8_format: Format
    fp8_dpa: bool
    fp8_mha: bool

    def __post_init__(self) -> None:
        assert self.fp8_format != Format.E5M2, "Pure E5M2 training is not supported."

    def delayed(self) -> bool:
        """Whether scales come from earlier steps."""
        return isinstance(self, DelayedScaling)

    def mxfp8(self) -> bool:
        """Whether 32 numbers have a scale."""
        return isinstance(self, MXFP8BlockScaling)

    def float8_current_scaling(self) -> bool:
        """Whether a tensor's scale comes from itself."""
        return isinstance(self, Float8CurrentScaling)

    def float8_per_tensor_scaling(self) -> bool:
        """Whether a tensor has one scale."""
        return not self.mxfp8()


@dataclasses.dataclass
class DelayedScaling(Recipe):
    """A tensor's scale comes from the largest numbers that it had in earlier steps."""

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: AmaxChoice = "max"
    scaling_factor_compute_algo: Callable[..., object] | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclasses.dataclass
class Float8CurrentScaling(Recipe):
    """A tensor's scale comes from its own largest number."""

    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclasses.dataclass
class MXFP8BlockScaling(Recipe):
    """Each 32 numbers in a row have a power of two as their scale, and each 32 in a column."""

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
