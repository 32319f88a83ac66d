"""The root of a collective is a rank, and brings or takes a tensor of equal shape for each.

The sentences are those of ProcessGroupNCCL.cpp (gather, scatter) and of NCCL's src/misc/argcheck.cc.
"""

import pytest
import torch
import torch.distributed as dist

from windtunnel.seam.torch.distributed.values import check

pytestmark = pytest.mark.filterwarnings("ignore")
PAIR, THREE = torch.ones(2), torch.ones(3)


def wrong(name, reads, writes, root=0, error=ValueError):
    with pytest.raises(error) as raised:
        check(f"c10d::{name}", reads, writes, 2, "", {"root_rank": root})
    return str(raised.value)


def test_what_a_root_scatters_has_the_shape_of_what_each_rank_gets():
    said = wrong("scatter_", [PAIR, THREE], [PAIR])
    assert said == "ProcessGroupNCCL::scatter: invalid tensor size at index 1 (expected (2), got (3))"


def test_what_a_root_gathers_has_the_shape_of_what_each_rank_brings():
    said = wrong("gather_", [PAIR], [torch.ones(1, 2), PAIR])
    assert said == "ProcessGroupNCCL::gather: invalid tensor size at index 0 (expected (2), got (1, 2))"


@pytest.mark.parametrize(("name", "side"), [("gather", "output"), ("scatter", "input")])
def test_a_root_has_a_tensor_for_each_rank(name, side):
    lists = ([PAIR], [PAIR] * 3) if side == "output" else ([PAIR] * 3, [PAIR])
    assert wrong(f"{name}_", *lists) == (
        f"ProcessGroupNCCL::{name}: Incorrect {side} list size 3. {side.capitalize()} list size should be 2, same as "
        "size of the process group."
    )


@pytest.mark.parametrize("root", [-1, 2])
@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_a_root_that_is_no_rank_is_refused(name, root):
    assert wrong(f"{name}_", [PAIR], [PAIR], root) == f"ProcessGroupNCCL::{name}: invalid root rank: {root}"


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_nccl_refuses_a_root_that_is_no_rank(name, monkeypatch):
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    said = wrong(f"{name}_", [PAIR], [PAIR], 5, dist.DistBackendError)
    assert "invalid argument (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5" in said
    assert said.endswith(f"{name.capitalize()} : invalid root 5 (root should be in the 0..2 range)")


@pytest.mark.parametrize(("name", "reads", "writes"), [
    ("gather_", [PAIR], [PAIR, PAIR]), ("gather_", [PAIR], []), ("scatter_", [PAIR, PAIR], [PAIR]),
    ("scatter_", [], [PAIR]), ("broadcast_", [PAIR], [PAIR]), ("reduce_", [PAIR], [PAIR]),
])  # fmt: skip
def test_other_calls_pass(name, reads, writes):
    assert check(f"c10d::{name}", reads, writes, 2, "", {"root_rank": 1}) is None
