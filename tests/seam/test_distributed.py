"""torch.distributed with backend nccl in two processes: values, devices, errors, streams, agreed time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import windtunnel
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Trace

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

PROGRAMS = Path(__file__).parent / "programs"
ANY_SOURCE = "NotImplementedError: ProcessGroupNCCL does not support recvAnysource"
VERSION = tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2])


class Ranks:
    """What the two ranks of a program saw, and their traces."""

    def __init__(self, folder: Path, name: str) -> None:
        out, trace = folder / "seen", folder / "run.trace"
        options = ["-q", "--gpus", "2xV100", "--nproc-per-node", "2", "--trace", str(trace)]
        done = subprocess.run(
            [sys.executable, "-m", "windtunnel", "run", *options, str(PROGRAMS / name), str(out)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.seen = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)]
        self.traces = [Trace.load(path) for path in (trace, folder / "run.rank1.trace") if path.exists()]

    def __getitem__(self, name):
        """What rank 0 and rank 1 saw under a name."""
        return self.seen[0][name], self.seen[1][name]

    def collectives(self, rank):
        """The collectives of a rank, in order."""
        return [record for record in self.traces[rank] if record.kind == Kind.COLLECTIVE]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The program that calls every collective once."""
    return Ranks(tmp_path_factory.mktemp("collectives"), "collectives.py")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The program that trains."""
    return Ranks(tmp_path_factory.mktemp("models"), "models.py")


def test_the_group_says_that_it_is_nccls(ranks):
    assert ranks["backend"] == ("nccl", "nccl")
    assert ranks["available"] == (True, True)
    assert ranks["devices"] == (["cuda"], ["cuda"])


def test_destroying_the_groups_gives_nccls_memory_back(ranks):
    """Two communicators of both ranks over NVLink: the world's, and that of the group with gloo for the host."""
    assert ranks["given_back"] == (2 * 544, 2 * 544)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("all_reduce", [3.0], [3.0]),
        ("average", [1.5], [1.5]),
        ("integer_average", [1], [1]),
        ("maximum", [2.0], [2.0]),
        ("premultiplied", [1.5], [1.5]),
        ("truth", [1, 1], [1, 1]),
        ("half", [3.0], [3.0]),
        ("float8", [0.0, 2.0, 1.0, 2.0], [0.0, 2.0, 1.0, 2.0]),
        ("float8_functional", [0.0, 2.0, 1.0, 2.0], [0.0, 2.0, 1.0, 2.0]),
        ("all_gather", [[0.0], [1.0]], [[0.0], [1.0]]),
        ("all_gather_into_tensor", [0.0, 5.0, 1.0, 5.0], [0.0, 5.0, 1.0, 5.0]),
        ("reduce_scatter", [2.0], [4.0]),
        ("reduce_scatter_tensor", [0.5], [2.0]),
        ("uneven_gather", [[0.0], [0.0, 1.0]], [[0.0], [0.0, 1.0]]),
        ("uneven_scatter", [2.0], [2.0, 4.0]),
        ("scattered_maximum", [1.0], [10.0]),
        ("all_to_all", [[0.0], [1.0]], [[10.0], [11.0]]),
        ("uneven_all_to_all", [[0.0], [1.0]], [[0.0, 5.0], [1.0, 5.0]]),
        ("complex", [[1.0, 2.0]], [[1.0, 2.0]]),
        ("complex_part", [[1.0, 2.0]], [[1.0, 2.0]]),
        ("complex_broadcast", [[1.0, 1.0]], [[1.0, 1.0]]),
        ("complex_functional", [[0.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]),
        ("functional_average", [0.5, 1.0], [0.5, 1.0]),
        ("functional_part", [0.5], [1.0]),
        ("scattered_future", [2.0], [4.0]),
        ("all_to_all_single", [0.0, 1.0], [10.0, 11.0]),
        ("broadcast", [1.0], [1.0]),
        ("scatter", [5.0], [6.0]),
        ("gather", [[0.0], [1.0]], None),
        ("pair", [1.0], [0.0]),
        ("send", "sent", [7.0]),
        ("any_source", ANY_SOURCE, ANY_SOURCE),
        ("gloo_any_source", "sent", [7.0]),
        ("objects", [[{"rank": 0}, {"rank": 1}], [0, "x"]], [[{"rank": 0}, {"rank": 1}], [0, "x"]]),
        ("barrier", None, None),
        ("coalesced", [[1.0], [1.0, 2.0]], [[1.0], [1.0, 2.0]]),
        ("functional", [1.0, 2.0], [1.0, 2.0]),
        ("functional_gather", [0.0, 1.0], [0.0, 1.0]),
        ("both_on_device", [1.0], [1.0]),
        ("gloo_on_device", [1.0], [1.0]),
        ("gloo_sparse", [[2.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 2.0]]),
    ],
)
def test_collectives_give_what_nccl_gives(ranks, name, first, second):
    assert ranks[name] == (first, second)


def test_reduce_fills_the_root(ranks):
    assert ranks["reduce"][0] == [3.0]


def test_an_asynchronous_collective_is_late_and_its_future_complete(ranks):
    assert ranks["asynchronous"][0] == [False, True, 4.0, 4.0]


def test_a_functional_collective_keeps_its_input_until_somebody_waits(ranks):
    """As ProcessGroupNCCL's TensorShelf does: nothing else gets memory that is still read on the group's stream."""
    assert ranks["functional_kept"][0] == [2, 0, 2.0]


def test_errors_are_nccls(ranks):
    assert ranks["cpu_tensor"][0] == "RuntimeError: No backend type associated with device type cpu"
    assert ranks["sparse"][0].startswith("RuntimeError: NCCL does not support all_reduce with sparse tensors")
    assert ranks["not_contiguous"][0] == "ValueError: Tensors must be contiguous"
    assert ranks["short"][0] == "TypeError: Input tensor data type is not supported for NCCL process group: Short"
    size = "ValueError: output tensor size must be equal to world_size times input tensor size"
    assert ranks["wrong_size"] == (size, size)
    part = "ValueError: input tensor must be the same size as output size times world size"
    assert ranks["wrong_part"] == (part, part)
    float8 = "RuntimeError: Float8 dtypes are not currenlty supported for NCCL reductions"
    assert ranks["float8_sum"][0] == ranks["float8_functional_sum"][0] == float8
    assert ranks["bits"][0] == "ValueError: Cannot use ReduceOp.BAND with NCCL"
    assert ranks["mean_truth"][0] == "TypeError: Cannot use ReduceOp.AVG with boolean inputs"
    since_2_14 = "ValueError: monitored_barrier requires a group with a CPU-capable backend (e.g. GLOO)."
    before = "ValueError: monitored_barrier is only implemented for GLOO backend."
    assert ranks["monitored_barrier"][0] == (since_2_14 if VERSION >= (2, 14) else before)


def test_other_groups(ranks):
    assert ranks["gloo"] == (["gloo", [2.0, 2.0]], ["gloo", [2.0, 2.0]])
    assert ranks["both"] == ([4.0, 4.0], [4.0, 4.0])
    assert ranks["alone"] == ("nccl", "True")


def test_both_ranks_are_in_a_collective_at_the_same_time(ranks):
    first, second = (
        [(record.signature.name, record.start_ns, record.end_ns) for record in ranks.collectives(rank)]
        for rank in (0, 1)
    )
    together = [name for name, _, _ in first if name.startswith("c10d::")]
    assert len(together) > 20
    assert [entry for entry in first if entry[0].startswith("c10d::")] == [
        entry for entry in second if entry[0].startswith("c10d::")
    ]


def test_an_asynchronous_one_runs_on_a_stream_of_the_group(ranks):
    streams = {record.lane.stream for record in ranks.collectives(0)}
    takes_turns = "async_op" in str(torch.ops.c10d.allreduce_.default._schema)  # from pytorch#148590 on
    assert (0 in streams) == takes_turns
    assert len(streams) > 1
    assert not ranks.traces[0].hazards
    assert not ranks.traces[1].hazards


def test_each_rank_uses_its_own_device(ranks):
    for rank in (0, 1):
        assert {record.lane.device for record in ranks.collectives(rank)} == {rank}


@pytest.mark.parametrize("name", ["plain", "unused", "views", "static", "small_buckets", "hook", "sharded"])
def test_two_ranks_train_as_one_process_does(models, name):
    assert models[name] == (True, True)


def test_no_backend_named_means_nccl(models):
    assert models["backend"] == ("undefined", "undefined")
    assert models.collectives(0)


def test_no_sync_keeps_gradients_apart_until_the_next_backward(models):
    assert models["no_sync"] == ([1.0, 2.0], [1.0, 2.0])


def test_fully_shard_splits_the_rows(models):
    assert models["sharded_rows"] == (4, 4)


def test_the_sampler_splits_the_data(models):
    assert models["rows"] == ([0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 7.0])


def test_no_hazard_in_training(models):
    assert [trace.hazards for trace in models.traces] == [[], []]


def test_gradients_travel_while_backward_goes_on(models):
    reduced = [record for record in models.collectives(0) if record.signature.name == "c10d::allreduce_"]
    assert {record.lane.stream for record in reduced} != {0}


def test_dtensors_know_their_device_and_draw_random_numbers(tmp_path):
    assert _lines("dtensors.py", tmp_path) == [f"rank {i}: [[0.0, 1.0]] cuda:{i}" for i in (0, 1)]


def test_a_destroyed_group_leaves_no_thread_that_could_abort_the_process(tmp_path):
    assert _lines("leaving.py", tmp_path) == ["True 0", "True 0"]


def _lines(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", "--nproc-per-node", "2"),
            str(PROGRAMS / program),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_rpc_refuses_tensors_of_devices(tmp_path):
    there, _ = Ranks(tmp_path, "rpc_calls.py")["refused"]
    assert len(there) == 2
    assert all("TensorPipe RPC backend only supports CPU tensors by default" in text for text in there)
    assert all("cuda:0" in text for text in there)


def test_the_first_barrier_of_a_group_is_where_pytorch_of_this_version_has_it() -> None:
    """Before PyTorch 2.8 on the GPU of the rank's number, since then on the current one."""
    with windtunnel.emulate("2xV100") as session:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        torch.cuda.set_device(1)
        dist.barrier()
        dist.destroy_process_group()
    (barrier,) = [record for record in session.trace if record.kind == Kind.COLLECTIVE]
    assert barrier.lane.device == (1 if VERSION >= (2, 8) else 0)


def test_a_group_that_is_told_its_device_does_not_initialize_cuda() -> None:
    """NCCL connects in C++; `DeviceMesh` chooses the rank's device as long as PyTorch's Python side has none."""
    with windtunnel.emulate("2xA100"):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 1))
        try:
            assert not torch.cuda.is_initialized()
            torch.cuda.set_device(1)
            assert torch.cuda.is_initialized()
        finally:
            dist.destroy_process_group()
