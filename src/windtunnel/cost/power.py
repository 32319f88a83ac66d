"""What a card's power limit leaves of the speed of its products, where no timing of its own says it.

Cards of one chip reach less of their peak the fewer watts they have for each operation of it: against the card of the
generation that has the most, by a power of that ratio. In 32 bits the exponent is what products of 2,048 and more say
of an A40, an RTX A6000 and an A10G (github.com/zzc0721/torch-performance-test-data, chsasank/device-benchmarks), 0.5 to
0.9 each. Left out, an A10 of 150 W is told 0.61, where it takes 0.62, and an L20 by an RTX 4090's 0.98, where it takes
1.0. In 16 and 8 bits products of 8,192 say 0.37 (A40), 0.58 (RTX A6000), 0.61 (A10) and 0.53 (L4): by 0.5 each is told
within a sixth, and an L40S 0.655, where thousands of its own products say 0.65. Attention keeps the share of 32 bits:
by the law of 16, an RTX 3090's would pass its peak. Cards with memory on their package have timings of their own, and
long trainings a limit of their own (`sustained`).
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.gpus import Gpu


class FullPower(NamedTuple):
    """The card of a generation with the most watts for each TFLOP/s of its peaks in 32 and 16 bits, and its share."""

    watts: float
    watts_16: float
    share: float


FULL_POWER = {
    "ampere-86": FullPower(350 / 35.6, 350 / 71.0, 1.0),
    "ada": FullPower(450 / 82.6, 450 / 165.2, 1.1),
}
"""An RTX 3090's, and an RTX 4090's."""
EXPONENT, EXPONENT_16 = 0.7, 0.5
NARROW = frozenset({"fp16", "bf16", "fp8", "int8"})


def sustained_share(gpu: Gpu, precision: str = "fp32") -> float:
    """What products keep: by the card's watts, unless it has a share of its own, which is that of 32 bits."""
    full = FULL_POWER.get(gpu.generation)
    if full is not None and precision in NARROW:
        return float(full.share * min(1.0, 1e12 / flops_per_joule(gpu) / full.watts_16) ** EXPONENT_16)
    if full is None or gpu.sustained_share != 1.0:
        return gpu.sustained_share
    watts = 1e12 * gpu.power_limit_w / gpu.peak_flops["fp32"]
    return float(full.share * min(1.0, watts / full.watts) ** EXPONENT)


def unsure(gpu: Gpu, measured: Gpu) -> float:
    """By what part products may be off on a card with fewer watts for its peak in 16 bits than the measured one has."""
    dense = flops_per_joule(gpu) / flops_per_joule(measured)
    return float(1.0 - min(1.0, dense**-EXPONENT))


def flops_per_joule(gpu: Gpu) -> float:
    """What the listed peak in 16 bits asks of each watt of the limit, in operations."""
    return gpu.peak_flops.get("bf16", gpu.peak_flops["fp32"]) / gpu.power_limit_w
