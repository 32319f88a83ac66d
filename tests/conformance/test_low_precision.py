"""8-bit and 4-bit products, casts and refusals beside what an H200 answered (torch 2.11, CUDA 13.0)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from tools.hardware.stages import precision

import windtunnel

ANSWERS = Path(__file__).parent / "hardware" / "2026-11-27-H200-answers.json.gz"
SATURATES = (2, 13)
"""From this version on a number beyond float8_e4m3fn's range becomes its largest (Float8_e4m3fn.h); before, NaN."""
MISPLACED = "1 x 128 by 128 x 128, 128"
"""cuBLASLt reads scales of squares at every fourth place; with one block along the sum PyTorch gives it others, so all
but the first 128 columns are multiplied by whatever lies there (the second version asks for padded scales)."""
PROMOTED = 128
"""After so many products a sum that is not fast is added to one in float32."""


def answers(kind: str) -> dict[str, str]:
    with gzip.open(ANSWERS) as file:
        found: dict[str, str] = json.load(file)["stages"]["precision"]["native"][kind]
    return found


def tensor(answer: str) -> torch.Tensor:
    head, _, digits = answer.rpartition(" ")
    raw = torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8) if digits else torch.zeros(0)
    return raw.view(getattr(torch, head.split()[0])).float()


def ours(kind: object) -> dict[str, str]:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        with windtunnel.emulate("H200"):
            return precision._answers(kind)  # type: ignore[arg-type]
    finally:  # the stage chooses it for products
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize(
    "kind", ["scaled_mm_refusals", "grouped", "eight_bit_integers", "four_bit_weights", "block_scales"]
)
def test_it_refuses_what_the_h200_refused_in_the_same_words(kind: str) -> None:
    real, found = answers(kind.replace("_", " ")), ours(getattr(precision, kind))
    refused = {name: text for name, text in real.items() if text.startswith("error: ")}
    assert {name: found[name] for name in refused} == refused
    assert all(not found[name].startswith("error: ") for name in real.keys() - refused.keys())


@pytest.mark.parametrize("kind", ["eight_bit_integers", "four_bit_weights"])
def test_products_of_integers_have_the_h200s_bits(kind: str) -> None:
    assert ours(getattr(precision, kind)) == answers(kind.replace("_", " "))


def test_casts_have_the_h200s_values() -> None:
    """Bits of NaN aside, whose payload and sign C++ leaves to the processor."""
    real, found = answers("casts"), ours(precision.casts)
    for name, answer in real.items():
        wanted, got = tensor(answer), tensor(found[name])
        if name.endswith("e4m3fn") and windtunnel_saturates():
            assert got[wanted.isnan() & ~got.isnan()].abs().eq(448).all(), name
            wanted = torch.where(wanted.isnan(), got, wanted)
        assert torch.equal(wanted.nan_to_num(-1.0), got.nan_to_num(-1.0)), name


def windtunnel_saturates() -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) >= SATURATES


@pytest.mark.parametrize("kind", ["scaled_mm", "scaled_mm_refusals", "grouped", "block_scales"])
def test_products_of_8_bits_differ_by_what_the_accumulator_rounds(kind: str) -> None:
    """Ours are sums in float32. Hopper's tensor cores keep 14 bits; a fast accumulation stays in them to its end."""
    real, found = answers(kind.replace("_", " ")), ours(getattr(precision, kind))
    compared = 0
    for name, answer in real.items():
        if answer.startswith("error: "):
            continue
        wanted, got = tensor(answer), tensor(found[name])
        if name == MISPLACED:
            wanted, got = wanted[:128], got[:128]
        if not wanted.numel():
            continue
        head = answer.rpartition(" ")[0]
        unit = {"bfloat16": 2**-7, "float16": 2**-10, "float8_e4m3fn": 2**-3}.get(head.split()[0], 0.0)
        length = max((int(word) for word in name.replace(",", "").split() if word.isdigit()), default=32)
        grows = max(1.0, length / PROMOTED) ** 0.5 if "precise" not in name else 1.0
        most = wanted.abs().max()
        error = (wanted - got).abs() - unit * torch.maximum(wanted.abs(), got.abs())
        assert error.max() <= 4 * grows * 2**-13 * most, name
        compared += 1
    assert compared >= 1
