"""PyTorch's backend "fake": one process plays one rank of many, and its collectives take the time that theirs do."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import multi_threaded_pg
from torch.testing._internal.distributed.fake_pg import FakeStore

import windtunnel
from windtunnel.trace.operation import Kind


@pytest.fixture(params=[False, True], ids=["data", "no data"])
def session(request: pytest.FixtureRequest) -> Iterator[windtunnel.Session]:
    """One GPU of an emulated job of eight, with data and without."""
    with windtunnel.emulate("A100", no_data=request.param) as session:
        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        yield session
        dist.destroy_process_group()


def collectives(session: windtunnel.Session) -> list[str]:
    """The names of the collectives in the trace."""
    return [record.signature.name for record in session.trace if record.kind == Kind.COLLECTIVE]


def train(model: nn.Module) -> None:
    """One step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()


def test_a_collective_is_one_of_eight_ranks(session: windtunnel.Session) -> None:
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    dist.all_reduce(x)
    (record,) = (record for record in session.trace if record.kind == Kind.COLLECTIVE)
    assert record.value == 4 << 20
    assert record.end_ns - record.start_ns > 10_000
    assert session.trace.facts["world_size"] == 8


def test_ddp_reduces_its_gradients(session: windtunnel.Session) -> None:
    train(DistributedDataParallel(nn.Linear(64, 64).cuda()))
    assert collectives(session)[-1] == "c10d::allreduce_"


def test_fsdp_gathers_and_scatters(session: windtunnel.Session) -> None:
    model = nn.Linear(64, 64).cuda()
    fully_shard(model)
    train(model)
    found = collectives(session)
    assert [name.removeprefix("c10d::").strip("_") for name in found] == ["allgather_base", "reduce_scatter_base"]
    assert model.weight.to_local().shape[0] == 8


def test_a_result_that_nobody_waited_for_leaves_no_wait_to_what_takes_its_place(session: windtunnel.Session) -> None:
    group, functional = dist.group.WORLD, torch.ops._c10d_functional
    assert group is not None
    x = torch.ones(8, device="cuda")
    before = torch.cuda.memory_allocated()
    for _ in range(64):  # what is made next may have the address of what has gone
        functional.all_reduce(x, "sum", group.group_name)
        functional.wait_tensor(torch.empty(8, device="cuda"))
    assert not [record for record in session.trace if record.kind == Kind.EVENT_WAIT and record.lane.stream == 0]
    torch.cuda.synchronize()
    dist.all_reduce(x)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("is_kept", [False, True])
def test_memory_that_a_collective_alone_kept_is_free_when_it_has_ended(
    session: windtunnel.Session, is_kept: bool
) -> None:
    out, small, kept = torch.empty(8 << 22, device="cuda"), torch.ones(8, device="cuda"), []

    def gather() -> torch.futures.Future[object]:
        x = torch.ones(1 << 22, device="cuda")
        kept.append(x)
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        assert work is not None
        return work.get_future()

    future = gather()
    if not is_kept:
        kept.clear()
    time.sleep(1.0)
    dist.all_reduce(small)  # NCCL's watchdog has seen the end of what came before
    before = torch.cuda.memory_allocated()
    for x in kept:
        x.zero_()  # nobody has waited for the collective that reads it
    again = torch.zeros(1 << 22, device="cuda")
    assert torch.cuda.memory_allocated() == before + again.nbytes
    future.wait()
    codes = {one.code for one in session.findings()} & {"freed-in-use", "unsynchronized-access"}
    assert codes == ({"unsynchronized-access"} if is_kept else set())


def test_numbers_that_each_rank_has_of_its_own_are_told_from_those_that_all_have() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        model = DistributedDataParallel(nn.Linear(64, 64).cuda())
        loss = model(torch.rand(4, 64).cuda()).sum()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        mean = loss.detach() / 8
        own = bool(loss.item() > 0), bool(torch.isnan(mean)), mean.item()
        assert own
        dist.all_reduce(mean)
        both = mean * mean.clone()
        shared = norm.item(), both.item(), bool(torch.isnan(both + 1))
        assert shared
        notes = [dict(note.detail) for note in session.trace.notes if note.code == "assumed-value"]
        dist.destroy_process_group()
    assert [note.get("own", 0) for note in notes] == [1] * len(own) + [0] * len(shared)


def test_ranks_may_be_threads() -> None:
    """The backend of PyTorch's own tests, each of whose ranks is a thread of one process."""
    seen: list[object] = []
    together = threading.Barrier(4)

    def rank(number: int, store: dist.HashStore) -> None:
        dist.init_process_group("threaded", rank=number, world_size=4, store=store)
        torch.cuda.set_device(number % 2)
        x = torch.full((2,), number + 1.0, device="cuda")
        dist.all_reduce(x)
        seen.append((x.tolist(), x.device.index))
        together.wait(30)
        dist.destroy_process_group()
        seen.append("destroyed")

    with windtunnel.emulate("2xV100"):
        multi_threaded_pg._install_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        try:
            store = dist.HashStore()
            threads = [threading.Thread(target=rank, args=(number, store), daemon=True) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        finally:
            torch._C._distributed_c10d._set_thread_isolation_mode(False)
            multi_threaded_pg._uninstall_threaded_pg()
    assert sorted(seen, key=str) == [([10.0, 10.0], 0)] * 2 + [([10.0, 10.0], 1)] * 2 + ["destroyed"] * 4


@pytest.mark.filterwarnings("ignore:.*ShardedTensor.*:FutureWarning")
def test_shards_without_values_are_planned_for_a_checkpoint_and_not_written(tmp_path) -> None:
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    shards = importlib.import_module("torch.distributed._shard.sharded_tensor")
    with windtunnel.emulate("A100", no_data=True):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        placed = shards.ShardMetadata([0, 0], [8, 4], "rank:0/cuda:0")
        whole = shards.init_from_local_shards([shards.Shard(torch.empty(8, 4, device="cuda"), placed)], 8, 4)
        saved = checkpoint.save({"weight": whole}, checkpoint_id=tmp_path / "saved")
        dist.destroy_process_group()
    assert saved.state_dict_metadata["weight"].size == (8, 4)
    assert list(tmp_path.iterdir()) == []
