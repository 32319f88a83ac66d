"""Plans over clusters: few ranks are played for all, and the rows count all of them."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import windtunnel
from windtunnel.errors import UsageError
from windtunnel.launch import Program
from windtunnel.planning import layout, plan, specs_of
from windtunnel.planning.demand import family_of
from windtunnel.planning.measurement import measure
from windtunnel.planning.planner import Question
from windtunnel.planning.rehearsal import rehearse
from windtunnel.planning.rows import _command

TRAINING = """
import argparse, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=16)
arguments = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
data = TensorDataset(torch.arange(4096).reshape(512, 8))
net = DistributedDataParallel(torch.nn.Embedding(4096, arguments.width).cuda())
optimizer = torch.optim.Adam(net.parameters())
for (tokens,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    net(tokens.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def question(folder, *specs, arguments=(), **options):
    return Question(Program("script", "train.py", arguments), specs, options=options, folder=str(folder))


@pytest.mark.long
def test_a_cluster_of_one_machine_is_that_machine(tmp_path):
    """Played ranks and real ones give the same step and the same memory."""
    (tmp_path / "train.py").write_text(TRAINING)
    asked = question(tmp_path, "1x4xA100")
    played = rehearse(asked.job("1x4xA100", (), False)).measurement
    machine = Question(asked.program, ("4xA100",), processes="gpu", folder=str(tmp_path))
    real = rehearse(machine.job("4xA100", (), False))
    assert played.status == "ran", played.message
    one = real.measurement
    assert (played.step_ns, played.samples, played.tokens, played.processes) == (
        one.step_ns, one.samples, one.tokens, one.processes,
    )  # fmt: skip
    assert max(need.reserved_bytes for need in played.devices) == max(need.reserved_bytes for need in one.devices)


@pytest.mark.long
def test_a_plan_of_clusters(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    clusters = "2x4xA100,4x4xA100"
    rows = plan("train.py", ["--width=8"], cluster=clusters, price={"A100": 2}, steps=1000, cache=False)
    assert sorted((row.gpus, row.gpu_count, row.price_per_hour) for row in rows) == [
        ("2x4xA100", 8, 16.0), ("4x4xA100", 16, 32.0),
    ]  # fmt: skip
    assert {row.status for row in rows} == {"fits"}
    small, large = sorted(rows, key=lambda row: row.gpu_count)
    assert (small.samples_per_step, large.samples_per_step) == (32, 64)
    assert small.command.startswith(
        "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 --nproc-per-node=4 train.py"
    )


@pytest.mark.long
def test_what_only_more_ranks_could_answer_is_a_row_that_says_so(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nsys.exit('no such option')\n")
    found = rehearse(question(tmp_path, "8x8xA100").job("8x8xA100", (), False)).measurement
    assert (found.status, found.message) == ("failed", "it ended with 1: no such option")


def test_a_cluster_takes_as_many_batches_as_its_samplers_have_replicas():
    data = TensorDataset(torch.ones(512, 8))
    with windtunnel.emulate("A100", no_data=True) as session:
        net = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(net.parameters())
        sampler = DistributedSampler(data, num_replicas=4, rank=0)
        for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
            net(x.cuda()).sum().backward()
            optimizer.step()
    assert measure([session.trace], 16).samples == 16
    del session.trace.facts["replicas"]
    assert measure([session.trace], 16).samples == 64
    assert measure([session.trace]).samples == 4


def test_a_text_names_machines_and_gpus():
    assert (layout.nodes("64x8xH100"), layout.machine("64x8xH100")) == (64, "8xH100")
    assert (layout.nodes("8xH100"), layout.machine("8xH100")) == (1, "8xH100")
    assert len(layout.models("64x8xH100")) == 8
    asked = question(".", "64x8xH100", "H100")
    assert (asked.ranks("64x8xH100"), asked.ranks("H100")) == (512, None)
    assert asked.job("64x8xH100", (), True).nodes == 64
    assert asked.job("64x8xH100", (), True).key() != asked.job("32x8xH100", (), True).key()
    assert family_of("8x8xH100", "13.0") != family_of("16x8xH100", "13.0"), "a shard's size follows the machines"


def test_what_is_no_cluster_is_refused():
    assert specs_of("T4", "8x8xH100,16x8xA100") == ("T4", "8x8xH100", "16x8xA100")
    with pytest.raises(UsageError, match="--cluster 8x8xH100"):
        specs_of("8x8xH100")
    with pytest.raises(UsageError, match="give nodes, GPUs of a node and their model"):
        specs_of((), "8xH100")
    with pytest.raises(UsageError, match="a plan needs GPUs to choose from"):
        specs_of((), ())


def test_the_command_is_for_each_machine():
    program = Program("module", "train", ("--a=b c",))
    assert _command(program, {}, "1x8xH100", 8) == "torchrun --standalone --nproc-per-node=8 -m train '--a=b c'"
    assert _command(Program("command", "run.sh"), {"X": None}, "T4", None) == "env -u X run.sh"
