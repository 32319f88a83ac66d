"""What a card's power limit leaves of the speed of its products, where no timing of its own says it.

Cards of one chip reach less of their peak the fewer watts they have for each operation of it: against a card of the
generation that has many, by a power of that ratio. In 32 bits the exponent is what products of 2,048 and more say
of an A40, an RTX A6000 and an A10G (github.com/zzc0721/torch-performance-test-data, chsasank/device-benchmarks), 0.5 to
0.9 each. Left out, an A10 of 150 W is told 0.61, where it takes 0.62, and an L20 by an RTX 4090's 0.77, where it takes
0.8. In 16 and 8 bits products of 8,192 say 0.37 (A40), 0.58 (RTX A6000), 0.61 (A10) and 0.53 (L4): by 0.5 each is told
within a sixth, and an L40S 0.655, where thousands of its own products say 0.65. On Hopper, by the same 0.5, an H100
NVL is told 0.82, where gated layers say 0.82, an H100 PCIe 0.81 (0.78 in TF32), and cards with more watts than an SXM5
card gain up to an H20's 1.18; FP32 and convolutions stay under the limit there (KernelBench on an H100 PCIe).
Attention keeps the share of 32 bits: by the law of 16, an RTX 3090's would pass its peak. Cards with memory on their
package have timings of their own, and long trainings a limit of their own (`sustained`).
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.gpus import Gpu


class PowerLaw(NamedTuple):
    """Watts for each TFLOP/s of the peak of the card that others are held against, and what that card keeps.

    The others keep a power of their ratio to it, up to `most`. `peak` names the peak, and `convolutions` says whether
    they meet the limit too.
    """

    watts: float
    share: float = 1.0
    exponent: float = 0.7
    most: float = 1.0
    peak: str = "fp32"
    convolutions: bool = True


NARROW = frozenset({"fp16", "bf16", "fp8", "int8"})
STEEPEST = 0.7
_SXM5 = PowerLaw(700 / 989.0, exponent=0.5, most=1.18, peak="bf16", convolutions=False)
LAWS = {
    ("ampere-86", "fp32"): PowerLaw(350 / 35.6),
    ("ampere-86", "tf32"): PowerLaw(350 / 35.6),
    ("ampere-86", "narrow"): PowerLaw(350 / 71.0, exponent=0.5, peak="bf16"),
    ("ada", "fp32"): PowerLaw(450 / 82.6, share=0.88),
    ("ada", "tf32"): PowerLaw(450 / 82.6, share=1.1),
    ("ada", "narrow"): PowerLaw(450 / 165.2, share=1.1, exponent=0.5, peak="bf16"),
    ("blackwell-120", "fp32"): PowerLaw(575 / 104.8, share=0.83),
    ("hopper", "tf32"): _SXM5,
    ("hopper", "narrow"): _SXM5,
}
"""By generation and kind of precision: an RTX 3090's, an RTX 4090's, an RTX 5090's and an H100 SXM5's."""


def sustained_share(gpu: Gpu, precision: str, convolution: bool = False) -> float:
    """What products keep: by the card's watts, or less where it has a share of its own, which is that of 32 bits.

    Fused attention and FP32's convolutions without tensor cores are asked for as products in TF32 and FP32.
    """
    narrow = precision in NARROW
    law = LAWS.get((gpu.generation, "narrow" if narrow else precision))
    if law is None or (convolution and not law.convolutions):
        return gpu.sustained_share
    watts = 1e12 * gpu.power_limit_w / gpu.peak_flops[law.peak]
    told = float(law.share * min(law.most, (watts / law.watts) ** law.exponent))
    return told if narrow or gpu.sustained_share == 1.0 else min(told, gpu.sustained_share)


def unsure(gpu: Gpu, measured: Gpu) -> float:
    """By what part 16-bit products may be off on a card with fewer watts for its peak than the measured one has."""
    dense = flops_per_joule(gpu) / flops_per_joule(measured)
    told = sustained_share(gpu, "bf16") / sustained_share(measured, "bf16")
    return float(max(0.0, 1.0 - dense**-STEEPEST / told))


def flops_per_joule(gpu: Gpu) -> float:
    """What the listed peak in 16 bits asks of each watt of the limit, in operations."""
    return gpu.peak_flops.get("bf16", gpu.peak_flops["fp32"]) / gpu.power_limit_w
