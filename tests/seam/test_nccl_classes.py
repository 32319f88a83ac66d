"""The classes that newer versions of PyTorch have for NCCL beside ProcessGroupNCCL."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import windtunnel
from windtunnel.seam.torch.distributed.process_groups import _hash_tensors


def test_a_backend_of_nccl2_is_made_and_split_as_pytorch_2_15_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "_create_nccl2_process_group", None, raising=False)
    with windtunnel.emulate("V100"):
        made, options = c10d.ProcessGroupNCCL2, c10d.ProcessGroupNCCL.Options()
        options.global_ranks_in_group = [0]
        backend = made(dist.HashStore(), 0, 1, options, torch.device("cuda", 0))
        part = backend.split(dist.HashStore(), [0], options)
        assert type(part) is made
        assert (part.rank(), part.size(), made.__name__) == (0, 1, "ProcessGroupNCCL2")
        assert backend.split(dist.HashStore(), [1], options) is None


def test_the_hash_of_tensors_is_that_of_their_bytes() -> None:
    """`hash_combine(0, hash_combine(1, 3))`: the first of one byte, whose count is the seed of its hash."""
    golden = 0x9E3779B9
    inner = 1 ^ (3 + golden + (1 << 6) + (1 >> 2))
    assert _hash_tensors([torch.tensor([3], dtype=torch.uint8)]) == inner + golden
    assert _hash_tensors([torch.empty(0)]) == 0
