"""What a kernel family is asked, and what it answers."""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.cost.cache import Reused, reused
from windtunnel.gpus import Gpu
from windtunnel.trace.operation import REUSED, Signature


class Problem(NamedTuple):
    """One kernel on one GPU, with what the model knows of it already.

    `name` is the operator's plain name, `inputs` are the shapes of its inputs, `precision` is the arithmetic that runs
    (a key of `Gpu.peak_flops`) and `peak_flops` its rate. `aligned_share` is what tensor cores keep of their rate where
    the contiguous dimensions are no multiples of 16 bytes. `cuda_version` tells the age of the libraries.
    """

    signature: Signature
    name: str
    inputs: tuple[tuple[int, ...], ...]
    precision: str
    peak_flops: float
    item_bytes: int
    aligned_share: float
    gpu: Gpu
    cuda_version: tuple[int, int] = (11, 8)

    @property
    def reused(self) -> tuple[Reused, ...]:
        """Which of its bytes were touched how long before, where that is known."""
        return reused(str(dict(self.signature.detail).get(REUSED, "")))


class Price(NamedTuple):
    """The time of one kernel, the fixed part of it, and the relative half-width of its band.

    `of_steps` says that the band is that of whole steps, of which kernels like this one take much, `own` that it is
    that of many kernels that were timed on this very GPU.
    """

    duration_ns: float
    floor_ns: float
    band: float
    of_steps: bool = False
    own: bool = False
