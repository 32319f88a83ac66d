"""CUB's buffers against sizes recorded on real GPUs, whose stacks name the function that asked.

The snapshots are named in tests/conformance/memory/README.md; a comment says which number of which is held here.
"""

from __future__ import annotations

import dataclasses

import pytest

from windtunnel import gpus
from windtunnel.seam.torch.scratch import cub

A100 = gpus.parse("A100")[0]
ADA_128 = dataclasses.replace(gpus.parse("RTX4090")[0], sm_count=128, max_threads_per_sm=1536)
V100, H100 = gpus.parse("V100")[0], gpus.parse("H100")[0]


@pytest.mark.parametrize(("count", "recorded"), [(512, 1), (2048, 1), (4096, 72191), (8192, 138751)])
def test_a_sort_of_indices_below_10000(count: int, recorded: int) -> None:
    """Of an embedding's index_put_: Wedsonlin/assignment2-systems (4096), MAGMA27/assignment2-systems (8192)."""
    assert cub.radix_sort(count, 8, 8, ADA_128, cub.bits_of(9999)) == recorded


@pytest.mark.parametrize(("count", "recorded"), [(231, 1), (1578, 1), (32555, 17663)])
def test_counting_truths(count: int, recorded: int) -> None:
    """Of nonzero: Constructor-Sun/code_location, whose GPU has 108 multiprocessors."""
    assert cub.reduce(count, A100) == recorded


@pytest.mark.parametrize("count", [231, 1578, 32555])
def test_selecting_places(count: int) -> None:
    """Of nonzero: Constructor-Sun/code_location took 767 bytes for each of them."""
    assert cub.select(count, A100) == 767


def test_prefix_sums() -> None:
    """Of cumsum over 3 longs, and of topk over 32 blocks: Constructor-Sun/code_location."""
    assert cub.scan(3, 8) == 1023
    assert cub.scan_by_key(32, 4, 4) == 1279


def test_tiles_follow_the_gpu() -> None:
    """By hand: 256 x 11 pairs a block on V100, 384 x 10 on A100, 384 x 12 on H100, each with 1024 bytes of digits."""
    rest = 255 + 8 * 2048 + 2 * 8 * 65536 + 256
    assert cub.radix_sort(65536, 8, 8, V100) == rest + 1024 * 24
    assert cub.radix_sort(65536, 8, 8, A100) == rest + 1024 * 18
    assert cub.radix_sort(65536, 8, 8, H100) == rest + 1024 * 15


def test_one_pass_needs_no_second_buffer() -> None:
    assert cub.radix_sort(65536, 8, 8, A100, bits=8) == 255 + 2048 + 1024 * 18 + 256


def test_small_keys_are_sorted_by_older_passes_before_hopper() -> None:
    assert not cub.one_sweep(2, A100)
    assert cub.one_sweep(2, H100)
    assert cub.radix_sort(65536, 2, 8, A100) == 255 + 65536 * 10
    assert cub.spine_bytes(A100) == 108 * 20 * 128 * 8


def test_halves_are_scanned_in_three_arrays() -> None:
    """By hand: 128 x 30 elements a tile, 32 descriptors more: states of 4 bytes, two values of 2."""
    assert cub.scan(1_000_000, 2, single_word=False) == 255 + (1280 + 768 + 768 + 255 + 1)
