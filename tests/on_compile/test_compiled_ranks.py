"""torch.compile in programs of several ranks: DDP and FSDP2 train as they do without it, and need no more memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import gelu, mse_loss
from torch.nn.parallel import DistributedDataParallel

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))

def compiled_blocks(model):
    for block in model:
        block.compile()
    return model

def ddp(model):
    return DistributedDataParallel(model, device_ids=[dist.get_rank()], bucket_cap_mb=2)

def sharded(model):
    for block in model:
        fully_shard(block)
    return fully_shard(model)

WAYS = {
    "ddp": ddp,
    "ddp compiled": lambda model: torch.compile(ddp(model)),
    "ddp of a compiled model": lambda model: ddp(torch.compile(model)),
    "ddp, cuda graphs": lambda model: torch.compile(ddp(model), mode="reduce-overhead"),
    "fsdp": sharded,
    "fsdp compiled": lambda model: torch.compile(sharded(model)),
    "fsdp of compiled blocks": lambda model: sharded(compiled_blocks(model)),
}

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
kind, found = sys.argv[1], {}
for way, wrapped in WAYS.items():
    if not way.startswith(kind):
        continue
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), Block()).cuda()
    run = wrapped(model)
    optimizer = torch.optim.SGD(run.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    batches, losses = torch.randn(4, 64, 256, device="cuda"), []
    for step, batch in enumerate(batches):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        loss = mse_loss(run(batch), batch.roll(1, 0))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found[way] = losses, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del model, run, optimizer, loss, batches
    torch._dynamo.reset()
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_train_as_without_compilation(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ranks = ["--gpus", "2xA100", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", "windtunnel", "run", *ranks, str(program), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not-modelled" not in done.stderr
    found = json.loads(done.stdout)
    losses, peak = found.pop(kind)
    assert found
    for way, (others, other_peak) in found.items():
        assert others == pytest.approx(losses, rel=1e-5), way
        assert other_peak <= peak or "graphs" in way, way


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
mesh = init_device_mesh("cuda", (2,))
shapes = []

def product(x, weight):
    shapes.append(tuple(x.shape))
    return torch.relu(x @ weight)

on_shards = local_map(
    product, out_placements=[Shard(0)], in_placements=([Shard(0)], [Replicate()]), device_mesh=mesh
)
torch.manual_seed(0)
x, weight = torch.randn(8, 16), torch.randn(16, 4)
found = []
for run in (on_shards, torch.compile(on_shards, fullgraph=True)):
    rows = distribute_tensor(x.cuda(), mesh, [Shard(0)]).requires_grad_()
    columns = distribute_tensor(weight.cuda(), mesh, [Replicate()])
    out = run(rows, columns).sin()
    out.sum().backward()
    found.append((out.full_tensor(), rows.grad.full_tensor()))
for one, other in zip(*found):
    torch.testing.assert_close(one, other)
torch.testing.assert_close(found[0][0].cpu(), torch.relu(x @ weight).sin())
assert set(shapes) == {(4, 16)}
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
dist.destroy_process_group()
"""


def test_local_map_compiles_to_operators_on_the_shards(tmp_path: Path) -> None:
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(SHARDED)
    ranks = ["--gpus", "2xA100", "--nproc-per-node", "2", "--report", str(report)]
    command = [sys.executable, "-m", "windtunnel", "run", *ranks, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not-modelled" not in done.stderr
    assert json.loads(report.read_text())["compiled"]["graphs"]
