"""Rehearsals of ranks that all do the same play few of them, and measure what all of them give."""

from dataclasses import replace

import pytest

from windtunnel.launch import Program
from windtunnel.planning import folded
from windtunnel.planning.folded import everybody
from windtunnel.planning.rehearsal import Job, rehearse
from windtunnel.ranks.fold import Fold
from windtunnel.trace.trace import Trace

TRAINING = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
data = TensorDataset(torch.arange(512).reshape(64, 8))
net = DistributedDataParallel(torch.nn.Embedding(512, 16).cuda())
optimizer = torch.optim.Adam(net.parameters())
for (tokens,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    loss = net(tokens.cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] == "log" and rank == 0:
        print(loss.item())
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["plain", pytest.param("log", marks=pytest.mark.weekly)])
def test_few_played_ranks_measure_what_all_of_them_do(tmp_path, monkeypatch, how):
    (tmp_path / "train.py").write_text(TRAINING)
    job = Job(Program("script", "train.py", (how,)), "4xA100", {"no_data": True}, processes=4, folder=str(tmp_path))
    attempts = []
    play = folded.play
    monkeypatch.setattr(folded, "play", lambda *args: attempts.append(play(*args)) or attempts[-1])
    found = rehearse(job).measurement
    assert (attempts[0] is None) == (how == "log"), found  # a first rank that does more needs all of them
    monkeypatch.setattr(folded, "play", lambda *args: None)
    real = rehearse(job).measurement
    assert found.status == "ran", found.message
    assert replace(found, seconds=0, resident_bytes=0) == replace(real, seconds=0, resident_bytes=0)
    assert (found.processes, found.samples, found.tokens) == (4, 16, 128)


def test_ranks_that_are_not_played_have_gpus_and_batches_of_their_own():
    traces = {rank: Trace() for rank in (0, 3)}
    for rank, trace in traces.items():
        trace.facts.update(rank=rank, batches=f"content {rank}", devices=[{"physical": rank}])
    found = everybody(Fold(4, 4), traces)
    assert [one.facts["devices"][0]["physical"] for one in found] == [0, 1, 2, 3]
    assert len({one.facts["batches"] for one in found}) == 4
    traces[3].facts["batches"] = traces[0].facts["batches"]
    assert {one.facts["batches"] for one in everybody(Fold(4, 4), traces)} == {"content 0"}
