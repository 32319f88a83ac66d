"""Operators whose kernels a library has in a binary that this machine cannot load: what is said of them counts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import windtunnel
from windtunnel import libraries

SCHEMA = (
    "mxfp8_quantize(Tensor input, bool rowwise, bool colwise, int scale_dim_x, int scale_dim_y, str fp8_format, "
    "str scaling_mode) -> (Tensor, Tensor, Tensor, Tensor)"
)
"""As torchao/prototype/mx_formats/kernels.py defines it."""


@pytest.fixture
def torchao() -> Iterator[torch.library.Library]:
    library = torch.library.Library("torchao", "FRAGMENT")
    library.define(SCHEMA)
    library.define("of_the_binary(Tensor x) -> Tensor")
    finder = libraries.offer(lambda library: None)
    yield library
    libraries.withdraw(finder)
    library._destroy()


def exponent(largest: float, mode: str) -> int:
    """The biased exponent of a block's scale: of the next power of two above, or below."""
    if mode == "rceil":
        return 127 + math.ceil(math.log2(largest / 448))
    return 127 + math.floor(math.log2(largest / 256))


@pytest.mark.parametrize("mode", ["rceil", "floor"])
def test_the_cast_to_mxfp8(torchao: torch.library.Library, mode: str) -> None:
    torch.manual_seed(0)
    plain = torch.randn(64, 96) * torch.logspace(-6, 6, 96)
    with windtunnel.emulate("B200") as session:
        x = plain.cuda()
        since = len(session.trace)
        nothing, cast, no_scales, scales = torch.ops.torchao.mxfp8_quantize(x, False, True, 1, 32, "e4m3", mode)
        assert [row.signature.name for row in session.trace.since(since)] == ["torchao::mxfp8_quantize"]
        assert nothing.numel() == no_scales.numel() == 0
        assert cast.stride() == (1, 64)
        assert scales.shape == (96, 2)
        assert scales.stride() == (1, 96)
        bits, found = cast.cpu().float(), scales.cpu().view(torch.uint8)
    blocks = plain.view(2, 32, 96)
    for column in range(96):
        for block in range(2):
            power = exponent(float(blocks[block, :, column].abs().max()), mode)
            assert int(found[column, block]) == power
            wanted = (blocks[block, :, column] * 2.0 ** (127 - power)).clamp(-448, 448).to(torch.float8_e4m3fn)
            assert torch.equal(bits.view(2, 32, 96)[block, :, column], wanted.float())


def test_without_data_it_takes_the_same_memory(torchao: torch.library.Library) -> None:
    peaks = []
    for no_data in (False, True):
        with windtunnel.emulate("B200", no_data=no_data):
            x = torch.zeros(512, 256, device="cuda", dtype=torch.bfloat16)
            torch.ops.torchao.mxfp8_quantize(x, False, True, 1, 32, "e4m3", "rceil")
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def test_what_the_library_refuses(torchao: torch.library.Library) -> None:
    with windtunnel.emulate("B200"), pytest.raises(RuntimeError, match="rows must be a multiple of 32"):
        torch.ops.torchao.mxfp8_quantize(torch.zeros(40, 64, device="cuda"), False, True, 1, 32, "e4m3", "rceil")


def test_one_that_nobody_describes_says_how(torchao: torch.library.Library) -> None:
    with windtunnel.emulate("B200"), pytest.raises(NotImplementedError, match="Could not run") as refusal:
        torch.ops.torchao.of_the_binary(torch.zeros(4, device="cuda"))
    assert "windtunnel.kernel" in refusal.value.__notes__[0]
