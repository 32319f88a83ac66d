"""How much GPUs of one model differ: the slowest of many as it is expected, and the GPUs of one cluster by a seed.

Sinha et al., Not All GPUs Are Created Equal, SC '22 (arXiv:2208.11035): equal GPUs of one cluster differ by 8 %, on
average on five clusters and over all but outliers. They plot it as the distance of the whiskers, 1.5 times the
quartiles' distance beyond the quartiles: of a normal distribution these are 5.4 standard deviations apart.

The clock is that of the slowest of eight: what tensor cores keep of their speed in trainings was fitted on trainings of
eight GPUs (`tools/calibration/calibrate_sustained.py`), which waited for it. What is later than that is later than the
clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from statistics import NormalDist

VARIATION = 0.08
WHISKERS = 5.4
DEVIATION = VARIATION / WHISKERS
CLOCK_GPUS = 8
"""The slowest of so many has the clock's speed."""


def slowest(gpus: int) -> float:
    """By how much the slowest of so many equal GPUs is slower than the middle one, as it is expected."""
    return 0.0 if gpus < 2 else DEVIATION * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def later(gpus: int) -> float:
    """By how much the slowest of so many equal GPUs is later than the clock, as it is expected."""
    return max(0.0, slowest(gpus) - slowest(CLOCK_GPUS))


def drawn(seed: int, gpu: int) -> float:
    """By how much the GPU of that number is slower than the middle one, in the cluster of a seed."""
    return Random(f"{seed} {gpu}").gauss(0.0, DEVIATION)


def pace(seed: int, gpus: Iterable[int]) -> float:
    """What multiplies the time of kernels where all wait for the slowest of these GPUs."""
    return 1.0 + max(drawn(seed, gpu) for gpu in gpus) - slowest(CLOCK_GPUS)
